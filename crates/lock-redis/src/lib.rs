//! Distributed locks on Redis: one server, a master behind sentinels, or a cluster.
//!
//! The lock is a plain string with a time to live, so that clients in any language that use
//! `SET key value NX PX ttl` exclude us and are excluded. Everything that compares runs as a script
//! on the server. A fleet that still keeps the time of expiry in the key can be joined, see [`RedisRecipe`].
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
#[doc(hidden)]
pub mod push;
mod recipe;
mod renewers;
mod scripts;
mod sentinel;
#[doc(hidden)]
pub mod server;
mod slot;
mod tls;
mod topology;
mod undo;
#[doc(hidden)]
pub mod unwanted;
mod waiting;

pub use backend::Redis;
pub use config::{RedisConfig, RedisWait};
pub use deadpool_redis;
pub use dial::{Dial, Stream, StreamDial, with_nodelay};
pub use recipe::{RecipeUnit, RedisRecipe, WallClock};
pub use redis;
pub use tls::Tls;
pub use topology::{SentinelInfo, Topology, connection_info};

// What the backend for several masters shares with this one.
#[doc(hidden)]
pub use backend::not_a_lock;
#[doc(hidden)]
pub use config::check_timeout;
#[doc(hidden)]
pub use info::Infos;
#[doc(hidden)]
pub use inspect::state;
#[doc(hidden)]
pub use keys::Keys;
#[doc(hidden)]
pub use lease::trusted_until;
#[doc(hidden)]
pub use link::Identity;
#[doc(hidden)]
pub use server::Server;
