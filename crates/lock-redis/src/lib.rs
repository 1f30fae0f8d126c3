//! Distributed locks on Redis: one server, a master behind sentinels, or a cluster.
//!
//! The lock is a plain string key with a time to live. Clients in any language that use `SET key value NX PX ttl` exclude
//! this library, and are excluded by it. Requests that compare run as scripts on the server. [`RedisRecipe`] has a second
//! format, for fleets that store the time of expiry in the key.
//!
//! Source of the algorithm: the Redis documentation, "Distributed Locks with Redis", section on the single instance.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod break_lock;
mod config;
mod doctor;
mod error;
mod mailbox;
mod migration;
mod order;
mod preflight;
mod recent_names;
mod recipe;
#[doc(hidden)]
pub mod request;
#[doc(hidden)]
pub mod server;
mod set_nx_px;
mod setnx_timestamp;
mod store;
mod tombstone;

pub use backend::Redis;
pub use config::{RedisConfig, RedisWait};
pub use recipe::RedisRecipe;
pub use redis_link::connection::Connection;
pub use redis_link::dial::{Dial, Stream, StreamDial, with_nodelay};
pub use redis_link::tls::Tls;
pub use redis_link::topology::{SentinelInfo, Topology, connection_info};
pub use redis_link::wall_clock::WallClock;
pub use redis_link::{deadpool_redis, redis};
pub use setnx_timestamp::RecipeUnit;
