#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backends;
#[cfg(feature = "blocking")]
pub mod blocking;
mod connect;

pub use connect::Locks;
#[doc(no_inline)]
pub use lock_core::CancellationToken;
/// What happens to locks, for metrics, traces and logs of your own: see [`Locks::observe`].
pub use lock_core::observe;
pub use lock_core::{
    BootInstant, Capabilities, Clock, DoctorReport, Election, Error, ErrorKind, Finding, FindingLevel, Guard,
    GuardState, GuardView, Holder, HolderInfo, Leader, Leadership, LeaseKind, LockMode, LockName,
    LockOptions, LockState, LossReason, Memory, MemoryConfig, Multi, MultiGuard, Mutex, Observer, Outcome,
    OwnerId, OwnerInfo, Password, Persistence, Reentrant, ReentrantGuard, Released, Result, RunError, RwLock,
    Semaphore, ServerLockState, ServerView, Token, Validity, WaiterInfo, one_line,
};
/// The backend of files, for configurations made in code.
#[cfg(all(feature = "flock", unix))]
pub use lock_flock as flock;
#[cfg(all(feature = "flock", unix))]
pub use lock_flock::{Flock, FlockConfig};
/// Locks in any store that can compare and swap: implement [`Registers`], and pass it to [`Locks::on`].
#[cfg(feature = "kv")]
pub use lock_kv as kv;
#[cfg(feature = "etcd")]
pub use lock_kv::EtcdConfig;
#[cfg(feature = "mysql")]
pub use lock_kv::MysqlConfig;
#[cfg(feature = "s3")]
pub use lock_kv::S3Config;
#[cfg(feature = "sqlite")]
pub use lock_kv::SqliteConfig;
#[cfg(feature = "kv")]
pub use lock_kv::{KvConfig, Registers};
/// Layers over any backend, for [`Locks::layer`].
#[cfg(any(
    feature = "layers-chaos",
    feature = "layers-metrics",
    feature = "layers-prefix",
    feature = "layers-tracing"
))]
pub use lock_layers as layers;
/// The way from one store to another, for configurations made in code, and for operators.
#[cfg(feature = "zk")]
pub use lock_migrate as migrate;
#[cfg(feature = "zk")]
pub use lock_migrate::{Migration, MigrationConfig, Operator, Record, Rung};
/// The PostgreSQL backend, with its driver, for configurations made in code.
#[cfg(feature = "postgres")]
pub use lock_postgres as postgres;
#[cfg(feature = "postgres")]
pub use lock_postgres::{Fence, Postgres, PostgresConfig, PostgresSync};
/// The Redis backend, with its driver and pool, for configurations made in code.
#[cfg(feature = "redis")]
pub use lock_redis as redis;
#[cfg(feature = "redis")]
pub use lock_redis::{RecipeUnit, Redis, RedisConfig, RedisRecipe, RedisWait, WallClock};
/// The Redlock backend, for configurations made in code.
#[cfg(feature = "redlock")]
pub use lock_redlock as redlock;
#[cfg(feature = "redlock")]
pub use lock_redlock::{MasterConfig, Redlock, RedlockConfig, Votes};
/// The ZooKeeper backend, with its driver, for configurations made in code.
#[cfg(feature = "zk")]
pub use lock_zk as zk;
#[cfg(feature = "zk")]
pub use lock_zk::{Committed, FencedExt, FencedWriter, NodeAcl, Zk, ZkConfig, ZkLayout, ZkRecipe, ZkWait};

/// The traits that a backend implements, and what they use.
pub mod backend {
    pub use lock_core::backend::*;
    pub use lock_core::url::{LockUrl, OptionValue};
    pub use lock_core::{HandOver, Lazy, Lease, Revocation, RevocationCell, TokenBlock, ValidityCell};
    pub use lock_core::{engine, record, renewal};

    /// The locks of any backend: what a configuration connects to. [`polylock::Locks`](crate::Locks) dereferences to it, and
    /// is made from it by `From`.
    pub use lock_core::Locks;
}

/// The Rust code of a page of the docs is compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/COMING-FROM.md")]
mod coming_from {}
