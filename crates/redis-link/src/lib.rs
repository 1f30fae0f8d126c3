//! The Redis client of polylock, and what both of its Redis backends need of one server.
//!
//! **Use `polylock`, `lock-redis` or `lock-redlock`.** This crate is a part of them, and its API changes with them.
//!
//! * Connections: [`client`] sends scripts to a server, `link` keeps its [`connection`], over which a `multiplexer` sends the
//!   requests of many tasks, of which each has a [`dispatch`]; `reply` cuts what arrives. [`dial`] opens it, with
//!   [`credentials`] that are read then and the `handshake` of TLS. `sentinel` and `cluster` find the server. [`topology`] and
//!   [`tls`] read its address from a URL.
//! * Notifications: [`push`] delivers what the server publishes to waiters, over a `push_connection`, as
//!   a `message`, believed by its [`proof`]; [`key_watch`] is its report that a key has changed.
//! * Locks: [`keys`] names their keys, [`inspection`] parses their state, [`mod@take_back`] removes what a request
//!   without an answer may have left, [`break_lock`] what was seen.
//! * Migrations: `claim` notes which one the locks take part in, `writers` finds who may still acquire them, [`scan`] reads
//!   them all.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connect;
pub mod error;
mod notify;
mod operate;
mod route;
mod scripts;
pub mod wall_clock;

pub use connect::{connection, credentials, dial, greeting, tls, topology};
pub use notify::{acquisitions, key_watch, proof, push, unclaimed_grant};
pub use operate::{break_lock, inspection};
pub use route::{client, commands, dispatch, scan};
pub use scripts::{keys, lock_answer, owner_cache, script, take_back, wire};

pub use deadpool_redis;
pub use redis;
