//! Clients of other libraries for Redis.

mod redlock_rb;
mod rust;

use std::fmt;

use serde_json::json;

use super::program::{Kind, Program};
use super::servers::Site;
use super::{Peer, Remote};

/// What there is to know of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Client {
    RedisPy,
    PythonRedisLock,
    Pottery,
    NodeRedlock,
    RedlockRb,
    Rslock,
    /// `RLock`
    Redisson,
    /// `RFairLock`
    RedissonFair,
    /// No client of a name, but the recipe that many have written down for themselves.
    Setnx,
}

impl Client {
    pub const ALL: [Self; 6] = [
        Self::RedisPy,
        Self::PythonRedisLock,
        Self::Pottery,
        Self::NodeRedlock,
        Self::RedlockRb,
        Self::Rslock,
    ];

    /// Those that know how to share a lock over independent masters.
    pub const REDLOCK: [Self; 4] = [Self::Pottery, Self::NodeRedlock, Self::RedlockRb, Self::Rslock];

    /// Those whose locks are of another type than ours.
    pub const OF_ANOTHER_TYPE: [Self; 2] = [Self::Redisson, Self::RedissonFair];

    /// Those that take locks without a time to live.
    pub const WITHOUT_TTL: [Self; 2] = [Self::RedisPy, Self::PythonRedisLock];

    /// What the client puts before the name to make the key.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::PythonRedisLock => "lock:",
            Self::Pottery => "redlock:",
            _ => "",
        }
    }

    /// One that is ready to take the lock of this name.
    pub async fn start(self, site: &Site, name: &str) -> Box<dyn Peer> {
        let kind = match self {
            Self::RedlockRb => return Box::new(redlock_rb::RedlockRb::new(site, name)),
            Self::Rslock => return Box::new(rust::Rslock::new(&site.urls().await, name)),
            Self::NodeRedlock => Kind::RedisNode,
            Self::Redisson | Self::RedissonFair => Kind::Redisson,
            Self::RedisPy | Self::PythonRedisLock | Self::Pottery | Self::Setnx => Kind::RedisPython,
        };
        let (mut program, servers) = (Program::start(kind, &site.servers.idle).await, site.urls().await);
        if kind == Kind::Redisson {
            // In a new process it takes seconds, which is more than some locks last.
            program.does(json!({ "call": "connect", "servers": servers })).await;
        }
        let lock = json!({ "client": self.to_string(), "servers": servers, "name": name });
        Box::new(Remote::new(program, lock))
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::Pottery => "pottery",
            Self::NodeRedlock => "node-redlock",
            Self::RedlockRb => "redlock-rb",
            Self::Rslock => "rslock",
            Self::Redisson => "redisson",
            Self::RedissonFair => "redisson-fair",
            Self::Setnx => "setnx",
        })
    }
}
