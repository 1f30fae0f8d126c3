#![cfg_attr(docsrs, feature(doc_cfg))]
//! One distributed-lock API over ZooKeeper, Redis and five-master Redlock.
//!
//! ```
//! # use polylock::Locks;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> polylock::Result<()> {
//! let locks = Locks::connect("memory://").await?; // or redis:// redlock:// zk://
//! let guard = locks.mutex("orders/42").acquire().await?;
//! let token = guard.token(); // send it along with every write
//! guard.run(async { /* the work; dropped when the lock is lost */ }).await?;
//! guard.release().await?;
//! # let _ = token;
//! # Ok(())
//! # }
//! ```
//!
//! # Crate features
//!
//! None is on by default. A feature makes a backend available; the URL or the typed configuration
//! chooses it.
//!
//! * **redis**: `redis://`, one Redis server, a master behind sentinels, or a cluster.
//! * **redlock**: `redlock://`, a quorum of independent Redis servers.
//! * **zk**: `zk://`, a ZooKeeper ensemble.
//! * **tls**: `rediss://`, `redlocks://` and `zks://`, the same over TLS. Enables no backend.
//! * **sasl**: `auth=sasl` for `zk://`. Enables no backend.
//!
//! The embedded backend, `memory://`, is always there.

mod connect;

pub use connect::Locks;
#[doc(no_inline)]
pub use lock_core::CancellationToken;
pub use lock_core::{
    BootInstant, Capabilities, Clock, DoctorReport, Error, ErrorKind, Finding, FindingLevel, Guard,
    GuardState, Holder, HolderInfo, LeaseKind, LockMode, LockName, LockOptions, LockState, LossReason,
    Memory, MemoryConfig, Mutex, Outcome, OwnerId, OwnerInfo, Released, Result, RunError, RwLock, Semaphore,
    ServerLockState, ServerView, Token, Validity, WaiterInfo,
};
/// All of the Redis backend: for configurations made in code, with its driver and pool.
#[cfg(feature = "redis")]
pub use lock_redis as redis;
#[cfg(feature = "redis")]
pub use lock_redis::{RecipeUnit, Redis, RedisConfig, RedisRecipe, RedisWait, WallClock};
/// All of the Redlock backend.
#[cfg(feature = "redlock")]
pub use lock_redlock as redlock;
#[cfg(feature = "redlock")]
pub use lock_redlock::{MasterConfig, Redlock, RedlockConfig, Votes};
/// All of the ZooKeeper backend, with its driver.
#[cfg(feature = "zk")]
pub use lock_zk as zk;
#[cfg(feature = "zk")]
pub use lock_zk::{Committed, FencedExt, FencedWriter, NodeAcl, Zk, ZkConfig, ZkLayout, ZkRecipe, ZkWait};

/// What a backend implements: for those who write one.
pub mod backend {
    pub use lock_core::backend::*;
    pub use lock_core::renewal;
    pub use lock_core::url::{LockUrl, OptionValue};
    pub use lock_core::{HandOver, Lazy, Lease, Revocation, RevocationCell, ValidityCell};

    /// The locks of any backend, and what a typed configuration connects to. [`polylock::Locks`](crate::Locks) derefs to it,
    /// and is made from it by `From`.
    pub use lock_core::Locks;
}

/// The program in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
