//! Moves the locks of a running fleet from Redis to ZooKeeper, and back, without a moment of double locking.
//!
//! `docs/MIGRATION.md` has the protocol. [`Migration`] is a backend over those of both stores; the [`Record`] says
//! which [`Rung`] is in force for which names.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod capabilities;
mod change;
mod config;
mod connect;
mod context;
mod error;
mod glob;
mod half;
mod halves;
mod later;
mod lead;
mod lease;
mod member;
mod one;
mod operator;
mod process;
mod record;
mod rung;
mod rungs_by_name;
mod shadow;
mod shadow_counts;
mod time;
mod tombstone_watch;
mod tombstones;

pub use backend::Migration;
pub use config::MigrationConfig;
pub use member::{MemberInfo, SessionInfo};
pub use operator::{FinishTerms, Gate, Obstacle, Operator, Progress, Status, Straggler, TombstoneCount};
pub use record::{Phase, Record, Rule};
pub use rung::Rung;
pub use shadow_counts::ShadowReport;
