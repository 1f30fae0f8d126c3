//! The floors: the bare commands that a lock needs at least, as a careful client would send them by hand.

mod memory;
mod postgres;
mod redis;
mod redlock;
mod swaps;
mod zk;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use futures_util::future::try_join_all;
use polylock::OwnerId;
use polylock::backend::{LeaseKind, LockUrl};
use zookeeper_client::Client;

use self::memory::BareMutex;
pub(crate) use self::postgres::make_table;
use self::postgres::{BarePostgres, Sessions};
use self::redis::BareRedis;
use self::redlock::BareRedlock;
use self::swaps::{BareSwaps, Store};
use self::zk::BareZk;
pub(crate) use self::zk::SESSIONS as ZK_SESSIONS;
use crate::data::{BackendName, Failure, Outcome};
use crate::rig::backends::{Target, redis as redis_servers, zk as zk_servers};
use crate::rig::url;

/// The commands of one acquisition and one release, and nothing else.
pub(crate) trait Floor: Send {
    fn acquire(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    fn release(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    /// Waits for answers that nobody needed so far, before a pause: their requests may not have been sent.
    fn settle(&mut self) -> impl Future<Output = Outcome<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Removes what it left on the server.
    fn clean(self) -> impl Future<Output = Outcome<()>> + Send;
}

#[derive(Debug)]
pub(crate) enum Bare {
    /// A mutex of the runtime.
    Memory(BareMutex),
    Redis(Box<BareRedis>),
    Redlock(BareRedlock),
    /// The requests of a ZooKeeper session.
    Zk(BareZk),
    /// The statements of a PostgreSQL session.
    Postgres(BarePostgres),
    Swaps(BareSwaps),
}

impl Bare {
    /// Connects to the servers of the backend, for a lock of this name and lease.
    pub(crate) async fn connect(target: &Target, lease: LeaseKind, name: &str) -> Outcome<Self> {
        match (target.backend(), lease) {
            (BackendName::Memory, _) => Ok(Self::Memory(BareMutex::default())),
            // Whether the driver sends what belongs together in one packet differs from session to session.
            (BackendName::Zk, LeaseKind::Session { timeout, .. }) => {
                BareConnections::sessions(target.url(), timeout, ZK_SESSIONS)
                    .await?
                    .floor(name, timeout)
                    .await
            }
            (_, LeaseKind::Ttl { default: ttl, .. }) => {
                BareConnections::open(target.url(), ttl).await?.floor(name, ttl).await
            }
            (backend, lease) => Err(no_floor(backend, lease)),
        }
    }

    /// As [`connect`](Self::connect), for a lock with fencing tokens, which the bare commands of Redis lack.
    pub(crate) async fn connect_minting(target: &Target, lease: LeaseKind, name: &str) -> Outcome<Self> {
        let LeaseKind::Ttl { default: ttl, .. } = lease else {
            return Err(no_floor(target.backend(), lease));
        };
        BareConnections::open(target.url(), ttl).await?.minting_floor(name, ttl).await
    }
}

/// The connections of one process, which the floors of many locks share.
#[derive(Debug)]
pub(crate) enum BareConnections {
    Redis(MultiplexedConnection),
    /// One for each master.
    Redlock(Vec<MultiplexedConnection>),
    /// The sessions, which take turns.
    Zk(Vec<Client>),
    Postgres(Arc<Sessions>),
    Swaps(Store),
}

impl BareConnections {
    /// Connects once to each server of this URL, or to the ensemble.
    pub(crate) async fn open(url: &str, session_timeout: Duration) -> Outcome<Self> {
        let scheme = LockUrl::parse(url)?.scheme;
        if let Some(store) = Store::open(&scheme, url).await? {
            return Ok(Self::Swaps(store));
        }
        match scheme.as_str() {
            "zk" => Self::sessions(url, session_timeout, 1).await,
            "postgres" => Ok(Self::Postgres(Arc::new(Sessions::open(url).await?))),
            "redlock" => {
                let connect = url::hosts(url).into_iter().map(|host| redis_servers::connect(url, host));
                Ok(Self::Redlock(try_join_all(connect).await?))
            }
            _ => Ok(Self::Redis(redis_servers::connect(url, url::first_host(url)).await?)),
        }
    }

    async fn sessions(url: &str, timeout: Duration, count: usize) -> Outcome<Self> {
        let connect = (0..count).map(|_| zk_servers::connect(url, timeout));
        Ok(Self::Zk(try_join_all(connect).await?))
    }

    /// The floor of a lock. The ttl does not matter for a session.
    pub(crate) async fn floor(&self, name: &str, ttl: Duration) -> Outcome<Bare> {
        let owner = OwnerId::random();
        Ok(match self {
            Self::Redis(connection) => {
                Bare::Redis(Box::new(BareRedis::on(connection.clone(), name, owner, ttl).await?))
            }
            Self::Redlock(masters) => Bare::Redlock(BareRedlock::on(masters, name, owner, ttl).await?),
            Self::Zk(sessions) => Bare::Zk(BareZk::on(sessions.clone(), name).await?),
            Self::Postgres(sessions) => Bare::Postgres(BarePostgres::on(sessions, name, owner, ttl)?),
            Self::Swaps(store) => Bare::Swaps(BareSwaps::on(store, name, owner)),
        })
    }

    /// As [`floor`](Self::floor), with a fencing token for each acquisition. The floor of ZooKeeper has one already: the
    /// transaction that creates its node.
    pub(crate) async fn minting_floor(&self, name: &str, ttl: Duration) -> Outcome<Bare> {
        Ok(match self.floor(name, ttl).await? {
            Bare::Redis(floor) => Bare::Redis(Box::new(floor.minting())),
            Bare::Redlock(floor) => Bare::Redlock(floor.minting()),
            other => other,
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
            Self::Postgres(floor) => floor.acquire().await,
            Self::Swaps(floor) => floor.acquire().await,
        }
    }

    async fn release(&mut self) -> Outcome<()> {
        match self {
            Self::Memory(floor) => floor.release().await,
            Self::Redis(floor) => floor.release().await,
            Self::Redlock(floor) => floor.release().await,
            Self::Zk(floor) => floor.release().await,
            Self::Postgres(floor) => floor.release().await,
            Self::Swaps(floor) => floor.release().await,
        }
    }

    async fn settle(&mut self) -> Outcome<()> {
        match self {
            Self::Redlock(floor) => floor.settle().await,
            _ => Ok(()),
        }
    }

    async fn clean(self) -> Outcome<()> {
        match self {
            Self::Memory(floor) => floor.clean().await,
            Self::Redis(floor) => floor.clean().await,
            Self::Redlock(floor) => floor.clean().await,
            Self::Zk(floor) => floor.clean().await,
            Self::Postgres(floor) => floor.clean().await,
            Self::Swaps(floor) => floor.clean().await,
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
