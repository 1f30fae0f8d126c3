//! The floors: the bare commands that a lock needs at least, as a careful client would send them by hand.

mod memory;
mod postgres;
mod redis;
mod redlock;
#[cfg_attr(not(feature = "stores"), allow(unused_variables, reason = "there are no stores"))]
mod swaps;
mod zk;

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
use crate::data::Outcome;
use crate::rig::backends::{Target, redis as redis_servers, zk as zk_servers};
use crate::rig::url;

/// The commands of one acquisition and one release, and nothing else.
pub(crate) trait Floor: Send + Sized {
    fn acquire(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    fn release(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    /// Waits for answers that nobody needed so far, before a pause: their requests may not have been sent.
    fn settle(&mut self) -> impl Future<Output = Outcome<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Removes what it left on the server.
    fn clean(self) -> impl Future<Output = Outcome<()>> + Send {
        std::future::ready(Ok(()))
    }
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
        let lease = lease.default_ttl();
        // Whether the driver sends what belongs together in one packet differs from session to session.
        BareConnections::open_some(target.url(), lease, ZK_SESSIONS).await?.floor(name, lease).await
    }

    /// As [`connect`](Self::connect), for a lock with fencing tokens, which the bare commands of Redis lack.
    pub(crate) async fn connect_minting(target: &Target, lease: LeaseKind, name: &str) -> Outcome<Self> {
        let lease = lease.default_ttl();
        BareConnections::open(target.url(), lease).await?.minting_floor(name, lease).await
    }
}

/// The connections of one process, which the floors of many locks share.
#[derive(Debug)]
pub(crate) enum BareConnections {
    Memory,
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
        Self::open_some(url, session_timeout, 1).await
    }

    /// As [`open`](Self::open), with so many sessions of ZooKeeper.
    async fn open_some(url: &str, session_timeout: Duration, sessions: usize) -> Outcome<Self> {
        let scheme = LockUrl::parse(url)?.scheme;
        if let Some(store) = Store::open(&scheme, url).await? {
            return Ok(Self::Swaps(store));
        }
        Ok(match scheme.as_str() {
            "memory" => Self::Memory,
            "zk" => {
                let connect = (0..sessions).map(|_| zk_servers::connect(url, session_timeout));
                Self::Zk(try_join_all(connect).await?)
            }
            "postgres" => Self::Postgres(Arc::new(Sessions::open(url).await?)),
            "redlock" => {
                let connect = url::hosts(url).into_iter().map(|host| redis_servers::connect(url, host));
                Self::Redlock(try_join_all(connect).await?)
            }
            _ => Self::Redis(redis_servers::connect(url, url::first_host(url)).await?),
        })
    }

    /// The floor of a lock. The ttl does not matter for a session.
    pub(crate) async fn floor(&self, name: &str, ttl: Duration) -> Outcome<Bare> {
        let owner = OwnerId::random();
        Ok(match self {
            Self::Memory => Bare::Memory(BareMutex::default()),
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

/// What all floors have, of whichever it is.
macro_rules! each {
    ($bare:expr, $floor:ident => $call:expr) => {
        match $bare {
            Self::Memory($floor) => $call,
            Self::Redis($floor) => $call,
            Self::Redlock($floor) => $call,
            Self::Zk($floor) => $call,
            Self::Postgres($floor) => $call,
            Self::Swaps($floor) => $call,
        }
    };
}

impl Floor for Bare {
    async fn acquire(&mut self) -> Outcome<()> {
        each!(self, floor => floor.acquire().await)
    }

    async fn release(&mut self) -> Outcome<()> {
        each!(self, floor => floor.release().await)
    }

    async fn settle(&mut self) -> Outcome<()> {
        each!(self, floor => floor.settle().await)
    }

    async fn clean(self) -> Outcome<()> {
        each!(self, floor => floor.clean().await)
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
}
