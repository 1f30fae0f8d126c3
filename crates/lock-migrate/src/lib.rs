//! Moves the locks of a running fleet from Redis to ZooKeeper, and back, without a moment of double locking.
//!
//! `docs/MIGRATION.md` has the protocol. [`Migration`] is a backend over those of both stores; the [`Record`] says
//! which [`Rung`] is in force for which names.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod capabilities;
mod config;
mod connect;
mod context;
mod error;
mod leases;
mod rungs;

pub use backend::Migration;
pub use config::MigrationConfig;
pub use leases::shadow_counts::ShadowReport;
pub use rungs::member::{MemberInfo, SessionInfo};
pub use rungs::operator::{
    FinishTerms, Gate, Obstacle, Operator, Progress, Status, Straggler, TombstoneCount,
};
pub use rungs::record::{Phase, Record, Rule};
pub use rungs::rung::Rung;
