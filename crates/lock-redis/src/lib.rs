//! Distributed locks on Redis: one server, a master behind sentinels, or a cluster.
//!
//! The lock is a plain string key with a time to live. Clients in any language that use `SET key value NX PX ttl` exclude
//! this library, and are excluded by it. Requests that compare run as scripts on the server. [`RedisRecipe`] has a second
//! format, for fleets that store the time of expiry in the key.
//!
//! Source of the algorithm: the Redis documentation, "Distributed Locks with Redis", section on the single instance.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod config;
mod error;
mod mailbox;
mod operate;
mod order;
mod recent_names;
mod recipes;
#[doc(hidden)]
pub mod server;
mod store;

#[doc(hidden)]
pub use recipes::request;

pub use backend::Redis;
pub use config::{RedisConfig, RedisWait};
pub use recipes::recipe::RedisRecipe;
pub use recipes::setnx_timestamp::RecipeUnit;
pub use redis_link::connection::Connection;
pub use redis_link::dial::{Dial, Stream, StreamDial, with_nodelay};
pub use redis_link::tls::Tls;
pub use redis_link::topology::{SentinelInfo, Topology, connection_info};
pub use redis_link::wall_clock::WallClock;
pub use redis_link::{deadpool_redis, redis};
