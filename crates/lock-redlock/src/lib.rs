//! Distributed locks on a quorum of independent Redis servers: Redlock.
//!
//! Each master is asked for a plain `SET NX PX` lock, all at once; the lock is ours when more than half
//! of them granted it and enough of the time to live is left. The single-master parts are those of
//! [`lock_redis`].
//!
//! Source of the algorithm: the Redis documentation, "Distributed Locks with Redis", section "The
//! Redlock Algorithm". Its limits: Kleppmann, "How to do distributed locking" (2016). Use the fencing
//! token.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod campaign;
mod config;
mod lease;
mod master;
mod quorum;

pub use backend::Redlock;
pub use config::{MasterConfig, RedlockConfig};
pub use lock_redis;
