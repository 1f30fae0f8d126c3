//! The measured backends and their servers.

pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod zk;

use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::{PostgresServer, RedisFive, RedisServer, ZkEnsemble, ZooKeeper};
use polylock::{DoctorReport, Locks};
use tokio::time::timeout;

use crate::data::{BackendName, Failure, Outcome};
use crate::rig::url;

/// A backend that is ready to be measured. Its own servers end when this is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    backend: BackendName,
    url: String,
    servers: Servers,
}

/// The servers of a backend; ours end when they are dropped.
#[derive(Debug)]
enum Servers {
    None,
    Redis(RedisServer),
    Five(RedisFive),
    ZooKeeper(ZooKeeper),
    Ensemble(ZkEnsemble),
    Postgres(PostgresServer),
    /// Running servers, given by `--url`.
    Foreign,
}

#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) backend: BackendName,
    /// Running ones; without a URL they are started.
    pub(crate) url: Option<&'a str>,
    /// Three ZooKeeper servers instead of one.
    pub(crate) ensemble: bool,
}

/// Starts all servers at once. A backend whose servers do not start has its reason instead.
///
/// Not cancel safe: a server that is starting would stay.
pub(crate) async fn start(wanted: &[Wanted<'_>], run: &str) -> Vec<(BackendName, Outcome<Target>)> {
    join_all(wanted.iter().map(|wanted| async { (wanted.backend, Target::start(wanted, run).await) })).await
}

impl Target {
    pub(crate) const fn backend(&self) -> BackendName {
        self.backend
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.backend.as_str()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the servers were given by `--url`.
    pub(crate) const fn is_foreign(&self) -> bool {
        matches!(self.servers, Servers::Foreign)
    }

    pub(crate) fn masters(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Five(five) => five.servers(),
            _ => &[],
        }
    }

    /// The process ids of our own servers, without the processes that these have started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        match &self.servers {
            Servers::None | Servers::Foreign => Vec::new(),
            Servers::Redis(server) => vec![server.pid()],
            Servers::Five(five) => five.servers().iter().map(RedisServer::pid).collect(),
            Servers::ZooKeeper(server) => vec![server.pid()],
            Servers::Ensemble(ensemble) => ensemble.nodes().iter().map(ZooKeeper::pid).collect(),
            Servers::Postgres(server) => vec![server.pid()],
        }
    }

    pub(crate) async fn version(&self) -> Option<String> {
        let host = url::first_host(&self.url);
        let asking = async {
            match self.backend {
                BackendName::Memory => None,
                BackendName::Redis | BackendName::Redlock => redis::version(&self.url, host).await.ok(),
                BackendName::Zk => zk::version(host).await.ok(),
                BackendName::Postgres => postgres::version(&self.url).await.ok(),
            }
        };
        timeout(PATIENCE, asking).await.ok().flatten()
    }

    pub(crate) async fn doctor(&self) -> Outcome<DoctorReport> {
        let asking = async {
            let locks = Locks::connect(&self.url).await?;
            let report = locks.doctor().await;
            locks.close().await?;
            report
        };
        Ok(timeout(PATIENCE, asking).await??)
    }

    /// Removes what this run left on servers given by `--url`.
    pub(crate) async fn clean(&self, run: &str) -> Outcome<()> {
        if !self.is_foreign() {
            return Ok(());
        }
        let cleaning = async {
            match self.backend {
                BackendName::Memory => Ok(()),
                BackendName::Redis | BackendName::Redlock => redis::clean(&self.url, run).await,
                BackendName::Zk => zk::clean(&self.url, run).await,
                BackendName::Postgres => postgres::clean(&self.url, run).await,
            }
        };
        let cleaned = timeout(PATIENCE, cleaning).await;
        cleaned.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {PATIENCE:?}"))))
    }

    async fn start(wanted: &Wanted<'_>, run: &str) -> Outcome<Self> {
        let &Wanted { backend, url, ensemble } = wanted;
        let (url, servers) = match (url, backend) {
            (Some(url), _) => (url.to_owned(), Servers::Foreign),
            // A named store, which all connections of this process share.
            (None, BackendName::Memory) => (format!("memory://{run}"), Servers::None),
            (None, BackendName::Redis) => {
                let server = RedisServer::start().await?;
                (server.url(), Servers::Redis(server))
            }
            (None, BackendName::Redlock) => {
                let five = RedisFive::start().await?;
                for master in five.servers() {
                    // As docs/SAFETY.md says of new masters: a client that connects during the first grant of all would
                    // take those without a key for restarted ones.
                    master.command(&["SET", "set-up", "1"]).await?;
                }
                (five.url(), Servers::Five(five))
            }
            (None, BackendName::Zk) if ensemble => {
                let ensemble = ZooKeeper::builder().for_load(true).start_ensemble(3).await?;
                (ensemble.url(), Servers::Ensemble(ensemble))
            }
            (None, BackendName::Zk) => {
                let server = ZooKeeper::builder().for_load(true).start().await?;
                (server.url(), Servers::ZooKeeper(server))
            }
            (None, BackendName::Postgres) => {
                // As services have it: what is committed is on the disk.
                let server = PostgresServer::builder().config("fsync", "on");
                let server = server.config("max_connections", MOST_SESSIONS).start().await?;
                (server.url(), Servers::Postgres(server))
            }
        };
        Ok(Self { backend, url, servers })
    }
}

/// Of hundreds of processes that each have a pool.
const MOST_SESSIONS: &str = "2000";
/// The timeout of requests that are not measured.
const PATIENCE: Duration = Duration::from_secs(10);
