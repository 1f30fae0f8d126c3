//! Who takes part: the backends, and the servers behind them.

pub(crate) mod redis;
mod zk;

use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::{RedisFive, RedisServer, ZkEnsemble, ZooKeeper};
use polylock::{DoctorReport, Locks};
use tokio::time::timeout;

use crate::address;
use crate::failure::{Failure, Outcome};
use crate::options::{BackendName, Options};

/// A backend, ready to be measured. Servers of our own end when this is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    backend: BackendName,
    url: String,
    servers: Servers,
}

/// What is behind a backend. Most of it is only kept, to be ended by its drop.
#[derive(Debug)]
enum Servers {
    /// Nothing.
    None,
    /// Servers of our own.
    Redis(RedisServer),
    Five(RedisFive),
    ZooKeeper(ZooKeeper),
    Ensemble(ZkEnsemble),
    /// Somebody else's, at the URL that we were given.
    Foreign,
}

/// Starts the servers that are needed, all at once. Not to be cancelled: a server that is being started would stay.
///
/// # Errors
///
/// When one of them does not start; then none stays.
pub(crate) async fn start(options: &Options, run: &str) -> Outcome<Vec<Target>> {
    let backends = options.backends();
    let starts = backends.iter().map(|&backend| Target::start(backend, options, run));
    // All of them are awaited, also when one has failed: what the others have started must end in order.
    join_all(starts).await.into_iter().collect()
}

impl Target {
    /// The backend.
    pub(crate) const fn backend(&self) -> BackendName {
        self.backend
    }

    /// The backend's name in the results.
    pub(crate) const fn name(&self) -> &'static str {
        self.backend.as_str()
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the servers are somebody else's.
    pub(crate) const fn is_foreign(&self) -> bool {
        matches!(self.servers, Servers::Foreign)
    }

    /// The servers, where they are several Redis masters of our own.
    pub(crate) fn masters(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Five(five) => five.servers(),
            _ => &[],
        }
    }

    /// The processes of the servers, as far as they are ours.
    pub(crate) fn processes(&self) -> Vec<u32> {
        match &self.servers {
            Servers::None | Servers::Foreign => Vec::new(),
            Servers::Redis(server) => vec![server.pid()],
            Servers::Five(five) => five.servers().iter().map(RedisServer::pid).collect(),
            Servers::ZooKeeper(server) => vec![server.pid()],
            Servers::Ensemble(ensemble) => ensemble.nodes().iter().map(ZooKeeper::pid).collect(),
        }
    }

    /// The version of the servers, `None` where there are none or they do not tell.
    pub(crate) async fn version(&self) -> Option<String> {
        let host = address::hosts(&self.url).first().map(|host| (*host).to_owned())?;
        let asking = async {
            match self.backend {
                BackendName::Memory => None,
                BackendName::Redis | BackendName::Redlock => redis::version(&self.url, &host).await.ok(),
                BackendName::Zk => zk::version(&host).await.ok(),
            }
        };
        timeout(PATIENCE, asking).await.ok().flatten()
    }

    /// What about the servers is good to know before they are measured.
    ///
    /// # Errors
    ///
    /// When they do not tell.
    pub(crate) async fn doctor(&self) -> Outcome<DoctorReport> {
        let asking = async {
            let locks = Locks::connect(&self.url).await?;
            let report = locks.doctor().await;
            locks.close().await?;
            report
        };
        Ok(timeout(PATIENCE, asking).await??)
    }

    /// Removes what this run has left on servers that are not ours. Servers of our own take it with them.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub(crate) async fn clean(&self, run: &str) -> Outcome<()> {
        if !self.is_foreign() {
            return Ok(());
        }
        let cleaning = async {
            match self.backend {
                BackendName::Memory => Ok(()),
                BackendName::Redis | BackendName::Redlock => redis::clean(&self.url, run).await,
                BackendName::Zk => zk::clean(&self.url, run).await,
            }
        };
        let cleaned = timeout(PATIENCE, cleaning).await;
        cleaned.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {PATIENCE:?}"))))
    }

    async fn start(backend: BackendName, options: &Options, run: &str) -> Outcome<Self> {
        let (url, servers) = match (options.url(backend), backend) {
            (Some(url), _) => (url.to_owned(), Servers::Foreign),
            // A name, so that every connection of this process sees the same locks.
            (None, BackendName::Memory) => (format!("memory://{run}"), Servers::None),
            (None, BackendName::Redis) => {
                let server = RedisServer::start().await?;
                (server.url(), Servers::Redis(server))
            }
            (None, BackendName::Redlock) => {
                let five = RedisFive::start().await?;
                (five.url(), Servers::Five(five))
            }
            (None, BackendName::Zk) if options.ensemble => {
                let ensemble = ZkEnsemble::start().await?;
                (ensemble.url(), Servers::Ensemble(ensemble))
            }
            (None, BackendName::Zk) => {
                let server = ZooKeeper::start().await?;
                (server.url(), Servers::ZooKeeper(server))
            }
        };
        Ok(Self { backend, url, servers })
    }
}

/// How long servers may take for questions beside the measurements.
const PATIENCE: Duration = Duration::from_secs(10);
