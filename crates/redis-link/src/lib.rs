//! The Redis client of polylock, and what both of its Redis backends need of one server.
//!
//! **Use `polylock`, `lock-redis` or `lock-redlock`.** This crate is a part of them, and its API changes with them.
//!
//! * Connections: [`client`] sends scripts to a server, `link` keeps its [`connection`], over which a `multiplexer` sends the
//!   requests of many tasks, of which each has a [`dispatch`]; `reply` cuts what arrives. [`dial`] opens it, with
//!   [`credentials`] that are read then and the `handshake` of TLS. `sentinel` and `cluster` find the server. [`topology`] and
//!   [`tls`] read its address from a URL.
//! * Notifications: [`push`] delivers what the server publishes to waiters, over a `push_connection`, as
//!   [`message`]s; [`key_watch`] is its report that a key has changed.
//! * Locks: [`keys`] names their keys, [`inspection`] parses their state, [`mod@take_back`] removes what a request
//!   without an answer may have left, [`break_lock`] what was seen.
//! * Migrations: `claim` notes which one the locks take part in, `writers` finds who may still acquire them, [`scan`] reads
//!   them all.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod acquisitions;
pub mod break_lock;
mod claim;
pub mod client;
mod cluster;
pub mod connection;
pub mod credentials;
pub mod dial;
pub mod dispatch;
pub mod error;
mod examination;
pub mod greeting;
#[cfg(feature = "tls")]
mod handshake;
pub mod inspection;
pub mod key_watch;
pub mod keys;
mod last_tokens;
mod link;
pub mod lock_answer;
pub mod message;
mod multiplexer;
pub mod owner_cache;
pub mod push;
mod push_connection;
mod push_rights;
mod reply;
pub mod scan;
pub mod script;
mod sentinel;
mod server_clock;
mod slot;
pub mod take_back;
pub mod tls;
pub mod topology;
pub mod unclaimed_grant;
pub mod wall_clock;
pub mod wire;
mod writers;

pub use deadpool_redis;
pub use lock_core::{drift, timeouts, waiting};
pub use redis;
