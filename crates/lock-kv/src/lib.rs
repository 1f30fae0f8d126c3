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
//! | `waiters` | how many stand in a record, for how long each lives after it has said so, who is passed over |
//! | `observed` | what a client has seen, and since when |
//! | `pace` | how long a store takes, and how clients of one lock keep out of each other's way |
//! | `boot` | which processes share a clock |
//! | `mailbox` | when a waiter reads again |
//! | `probe` | whether the store refuses a swap on an old version |
//! | `adapters` | registers in etcd, a SQLite file, a table of MySQL or MariaDB, or a bucket, and their options |
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

#[cfg(any(feature = "etcd", feature = "mysql", feature = "s3", feature = "sqlite"))]
mod adapters;
mod backend;
mod boot;
mod error;
mod mailbox;
mod observed;
mod pace;
mod probe;
mod registers;
mod store;
mod stored;
mod waiters;

#[cfg(feature = "s3")]
pub use adapters::bucket::{Bucket, config::S3Config};
#[cfg(feature = "etcd")]
pub use adapters::etcd::{Etcd, config::EtcdConfig};
#[cfg(feature = "mysql")]
pub use adapters::mysql::{Mysql, config::MysqlConfig};
#[cfg(feature = "sqlite")]
pub use adapters::sqlite::{Sqlite, config::SqliteConfig};
pub use backend::{Kv, KvConfig};
#[cfg(feature = "s3")]
pub use object_store;
pub use registers::{About, Exchanged, Notice, Notified, Registers, Version, Versioned};
pub use store::KvStore;
