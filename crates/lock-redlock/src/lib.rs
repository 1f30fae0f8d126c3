//! Distributed locks on a quorum of independent Redis servers: Redlock.
//!
//! The client asks all masters at once for a plain `SET NX PX` lock. It holds the lock when more than half of them granted
//! it and enough of the ttl is left. The value of the key begins with the owner id.
//!
//! A master that does not answer is left out until it does. A restarted master does not vote until every lock that it may
//! have lost has expired. Masters notify waiters in queue order when the lock is released. The queue is a hint: no vote
//! depends on it.
//!
//! Source of the algorithm: the Redis documentation, "Distributed Locks with Redis", section "The Redlock Algorithm". Its
//! limits: Kleppmann, "How to do distributed locking" (2016). Use the fencing token.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod config;
mod connect;
mod context;
mod error;
mod leases;
mod operate;
mod servers;
mod voting;

#[doc(hidden)]
pub use voting::ballot;

pub use backend::Redlock;
pub use config::{MasterConfig, RedlockConfig};
pub use redis_link::connection::Connection;
pub use redis_link::dial::{Dial, Stream, StreamDial, with_nodelay};
pub use redis_link::tls::Tls;
pub use redis_link::topology::connection_info;
pub use redis_link::wall_clock::WallClock;
pub use redis_link::{deadpool_redis, redis};
pub use voting::votes::Votes;
