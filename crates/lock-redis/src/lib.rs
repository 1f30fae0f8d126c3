//! Distributed locks on Redis: one server, a master behind sentinels, or a cluster.
//!
//! The lock is a plain string with a time to live, so that clients in any language that use
//! `SET key value NX PX ttl` exclude us and are excluded. Everything that compares runs as a script
//! on the server. A fleet that still keeps the time of expiry in the key can be joined, see [`Recipe`].
//!
//! Source of the algorithm: the Redis documentation, "Distributed Locks with Redis", section on the
//! single instance.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod backend;
mod cluster;
mod config;
mod dial;
mod doctor;
mod error;
mod greeting;
mod info;
mod inspect;
mod keys;
mod lease;
mod line;
mod link;
mod probe;
pub mod push;
mod recipe;
mod renewers;
mod scripts;
mod sentinel;
pub mod server;
mod slot;
mod tls;
mod topology;
mod undo;
pub mod unwanted;
mod waiting;

pub use backend::Redis;
pub use backend::not_a_lock;
pub use config::{RedisConfig, WaitBy, check_timeout};
pub use deadpool_redis;
pub use dial::{Dial, Stream, StreamDial, with_nodelay};
pub use info::Infos;
pub use inspect::state;
pub use keys::Keys;
pub use lease::trusted_until;
pub use link::Identity;
pub use recipe::{Recipe, RecipeUnit, WallClock};
pub use redis;
pub use server::Server;
pub use tls::Tls;
pub use topology::{SentinelInfo, Topology, connection_info};
