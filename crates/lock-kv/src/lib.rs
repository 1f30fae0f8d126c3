//! Locks in any store that can compare and swap.
//!
//! A store implements [`Registers`]: read a value with its version, and write one if the version is still that. [`KvConfig::connect`] makes
//! locks of it: mutexes, read/write locks, semaphores and elections, with fencing tokens and a fair queue.
//!
//! | file | role |
//! |---|---|
//! | `registers` | what is asked of a store |
//! | `backend` | the options, and the backend |
//! | `store` | a store of leases, for the engine of lock-core |
//! | `stored` | the record of a lock, as it is stored |
//! | `observed` | what a client has seen, and since when |
//! | `pace` | how long a store takes, and how clients of one lock keep out of each other's way |
//! | `boot` | which processes share a clock |
//! | `mailbox` | when a waiter reads again |
//! | `probe` | whether the store refuses a swap on an old version |
//! | `etcd`, `etcd_config` | registers in etcd, and their options |
//! | `sqlite`, `sqlite_config` | registers in a SQLite file, and their options |
//! | `mysql`, `mysql_config` | registers in a table of MySQL or MariaDB, and their options |
//! | `bucket`, `s3_config` | registers in the objects of a bucket, and their options |
//! | `options`, `host` | the options that several stores have, and the address of a server |
//! | `own_thread` | the thread that runs the requests of SQLite, MySQL or a bucket |
//!
//! # The protocol
//!
//! 1. **Every change is one swap on the version that was read.** A request that is executed late does nothing: the version has moved.
//! 2. **Each written value is unique**, as the versions of some stores are hashes.
//! 3. **No clock is compared with another.** A guard is valid from before its last swap was sent. An entry is dead when its owner has
//!    not changed it for its ttl and a margin, since a read that showed it has *returned*; a swap on that version removes it. Processes of one boot may share a clock: see
//!    [`About::one_host`].
//! 4. **A swap of unknown outcome is settled by another one** on the same version: a roll-back ends with a swap, whatever it reads.
//! 5. **Tokens grow inside the record**, in blocks.
//! 6. **Waiters stand in the record**, and a release grants to the first of them in the same swap. A granted waiter confirms by a swap, and
//!    is valid from before that was sent.
//!
//! `docs/design/kv.md` shows what happens without each rule, as the search of a model found it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod boot;
#[cfg(feature = "s3")]
mod bucket;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
mod etcd_config;
#[cfg(any(feature = "etcd", feature = "mysql"))]
mod host;
mod mailbox;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_config;
mod observed;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "s3", feature = "sqlite"))]
mod options;
#[cfg(any(feature = "mysql", feature = "s3", feature = "sqlite"))]
mod own_thread;
mod pace;
mod probe;
mod registers;
#[cfg(feature = "s3")]
mod s3_config;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_config;
mod store;
mod stored;

pub use backend::{Kv, KvConfig};
#[cfg(feature = "s3")]
pub use bucket::Bucket;
#[cfg(feature = "etcd")]
pub use etcd::Etcd;
#[cfg(feature = "etcd")]
pub use etcd_config::EtcdConfig;
#[cfg(feature = "mysql")]
pub use mysql::Mysql;
#[cfg(feature = "mysql")]
pub use mysql_config::MysqlConfig;
#[cfg(feature = "s3")]
pub use object_store;
pub use registers::{About, Exchanged, Notice, Registers, Version, Versioned};
#[cfg(feature = "s3")]
pub use s3_config::S3Config;
#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;
#[cfg(feature = "sqlite")]
pub use sqlite_config::SqliteConfig;
pub use store::KvStore;
