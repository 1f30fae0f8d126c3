//! Peers: the Redis locks of other crates, as their documentation shows them and with the delays that they come with.
//!
//! None of them gives fencing tokens, so that their histories are judged by wall time alone.

mod async_redis_lock;
mod distkit;
mod rlock;
mod rslock;

use serde::{Deserialize, Serialize};

pub(crate) use self::async_redis_lock::AsyncRedisLock;
pub(crate) use self::distkit::Distkit;
pub(crate) use self::rlock::Rlock;
pub(crate) use self::rslock::Rslock;

/// A peer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// <https://docs.rs/rslock>
    Rslock,
    /// <https://docs.rs/rlock>
    Rlock,
    /// <https://docs.rs/async-redis-lock>
    AsyncRedisLock,
    /// <https://docs.rs/distkit>
    Distkit,
}

impl Peer {
    /// All of them, in the order of the results.
    pub(crate) const ALL: [Self; 4] = [Self::Rslock, Self::Rlock, Self::AsyncRedisLock, Self::Distkit];

    /// The name of the crate.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rslock => "rslock",
            Self::Rlock => "rlock",
            Self::AsyncRedisLock => "async-redis-lock",
            Self::Distkit => "distkit",
        }
    }

    /// How it waits, in a few words.
    pub(crate) const fn waiting(self) -> &'static str {
        match self {
            Self::Rslock => "asks again after 0 to 200 ms",
            Self::Rlock | Self::AsyncRedisLock => "asks again every 100 ms",
            Self::Distkit => "asks again every 50 ms",
        }
    }
}
