//! The floors: the bare commands that a lock needs at least, as a careful client would send them by hand.

mod memory;
mod redis;
mod redlock;
mod zk;

use std::future::Future;

use polylock::OwnerId;
use polylock::backend::LeaseKind;

use self::memory::BareMutex;
pub(crate) use self::redis::BareRedis;
use self::redlock::BareRedlock;
use self::zk::BareZk;
pub(crate) use self::zk::SESSIONS as ZK_SESSIONS;
use crate::backends::Target;
use crate::failure::{Failure, Outcome};
use crate::options::BackendName;
use crate::url;

/// The commands of one acquisition and one release, and nothing else.
pub(crate) trait Floor: Send {
    /// Acquires the lock, which must be free.
    fn acquire(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    /// Releases it.
    fn release(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    /// Removes what it left on the server.
    fn clean(self) -> impl Future<Output = Outcome<()>> + Send;
}

/// The floor of a backend.
#[derive(Debug)]
pub(crate) enum Bare {
    /// A mutex of the runtime.
    Memory(BareMutex),
    /// The commands of one Redis server.
    Redis(BareRedis),
    /// The same commands on all masters.
    Redlock(BareRedlock),
    /// The requests of a ZooKeeper session.
    Zk(BareZk),
}

impl Bare {
    /// Connects to the servers of the backend, for a lock of this name and lease.
    pub(crate) async fn connect(target: &Target, lease: LeaseKind, name: &str) -> Outcome<Self> {
        let url = target.url();
        Ok(match (target.backend(), lease) {
            (BackendName::Memory, _) => Self::Memory(BareMutex::default()),
            (BackendName::Redis, LeaseKind::Ttl { default: ttl, .. }) => {
                let host = url::first_host(url);
                Self::Redis(BareRedis::connect(url, host, name, OwnerId::random(), ttl).await?)
            }
            (BackendName::Redlock, LeaseKind::Ttl { default: ttl, .. }) => {
                Self::Redlock(BareRedlock::connect(url, name, ttl).await?)
            }
            (BackendName::Zk, LeaseKind::Session { timeout, .. }) => {
                Self::Zk(BareZk::connect(url, name, timeout).await?)
            }
            (backend, lease) => return Err(no_floor(backend, lease)),
        })
    }

    /// As [`connect`](Self::connect), for a lock with fencing tokens, which the bare commands of Redis lack.
    pub(crate) async fn connect_minting(target: &Target, lease: LeaseKind, name: &str) -> Outcome<Self> {
        let (url, owner) = (target.url(), OwnerId::random());
        Ok(match (target.backend(), lease) {
            (BackendName::Redis, LeaseKind::Ttl { default: ttl, .. }) => {
                let bare = BareRedis::connect(url, url::first_host(url), name, owner, ttl).await?;
                Self::Redis(bare.minting(name, owner, ttl).await?)
            }
            (BackendName::Redlock, LeaseKind::Ttl { default: ttl, .. }) => {
                Self::Redlock(BareRedlock::connect_minting(url, name, ttl).await?)
            }
            (backend, lease) => return Err(no_floor(backend, lease)),
        })
    }
}

fn no_floor(backend: BackendName, lease: LeaseKind) -> Failure {
    Failure::new(format!("{backend} has no floor for leases of the kind {lease:?}"))
}

impl Floor for Bare {
    async fn acquire(&mut self) -> Outcome<()> {
        match self {
            Self::Memory(floor) => floor.acquire().await,
            Self::Redis(floor) => floor.acquire().await,
            Self::Redlock(floor) => floor.acquire().await,
            Self::Zk(floor) => floor.acquire().await,
        }
    }

    async fn release(&mut self) -> Outcome<()> {
        match self {
            Self::Memory(floor) => floor.release().await,
            Self::Redis(floor) => floor.release().await,
            Self::Redlock(floor) => floor.release().await,
            Self::Zk(floor) => floor.release().await,
        }
    }

    async fn clean(self) -> Outcome<()> {
        match self {
            Self::Memory(floor) => floor.clean().await,
            Self::Redis(floor) => floor.clean().await,
            Self::Redlock(floor) => floor.clean().await,
            Self::Zk(floor) => floor.clean().await,
        }
    }
}

/// No floor, for a measurement without one.
impl Floor for () {
    async fn acquire(&mut self) -> Outcome<()> {
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        Ok(())
    }

    async fn clean(self) -> Outcome<()> {
        Ok(())
    }
}
