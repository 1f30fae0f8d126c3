//! Peers: the locks of other libraries, used as their documentation shows, with their default delays.
//!
//! None of them has fencing tokens, so that their histories are checked by wall time alone.

mod async_redis_lock;
mod distkit;
mod etcd_lock;
mod get_lock;
mod installed;
mod rlock;
mod rslock;
mod sqlx;
mod subprocess;
mod zookeeper_client;

pub(crate) use self::async_redis_lock::AsyncRedisLock;
pub(crate) use self::distkit::Distkit;
pub(crate) use self::etcd_lock::EtcdLock;
pub(crate) use self::get_lock::GetLock;
pub(crate) use self::installed::{missing, target};
pub(crate) use self::rlock::Rlock;
pub(crate) use self::rslock::Rslock;
pub(crate) use self::sqlx::Sqlx;
pub(crate) use self::subprocess::{JVM_FLAGS, Subprocess};
pub(crate) use self::zookeeper_client::DriverLock;
use super::measured_lock::MeasuredLock;
use crate::data::{Failure, Outcome};

/// A library of Rust.
pub(crate) trait Library: MeasuredLock + Send + Sized + 'static {
    /// The lock of this name on a server, whose URL has no options.
    fn open(url: &str, name: &str) -> impl Future<Output = Outcome<Self>>;

    /// The lock of another name, over the same connections.
    fn with_name(&self, _name: &str) -> Outcome<Self> {
        Err(Failure::new("it has a connection for each lock"))
    }
}
