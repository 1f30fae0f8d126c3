//! The measured backends and their servers.

#[cfg(not(feature = "stores"))]
mod absent;
#[cfg(feature = "stores")]
pub(crate) mod etcd;
#[cfg(feature = "stores")]
pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod redis;
#[cfg(feature = "stores")]
pub(crate) mod s3;
#[cfg(feature = "stores")]
pub(crate) mod sqlite;
pub(crate) mod zk;

use std::any::Any;
use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::{EtcdServer, MariadbServer, PostgresServer, RedisFive, RedisServer, S3Server, ZooKeeper};
use polylock::{DoctorReport, Locks};
use tokio::time::timeout;

#[cfg(not(feature = "stores"))]
pub(crate) use self::absent::{etcd, mysql, s3, sqlite};
use crate::data::{BackendName, Failure, Outcome};
use crate::rig::{peers, url};

/// A backend that is ready to be measured. Its own servers end when this is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    backend: BackendName,
    url: String,
    is_foreign: bool,
    processes: Vec<u32>,
    masters: Option<RedisFive>,
    /// Servers end, and files are removed, with this.
    _servers: Box<dyn Any + Send + Sync>,
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

/// Whether the server of a backend is not installed that is measured where it is.
pub(crate) fn is_missing(backend: BackendName) -> bool {
    match backend {
        BackendName::Etcd => EtcdServer::is_missing(),
        BackendName::Mysql => MariadbServer::is_missing(),
        BackendName::S3 => S3Server::is_missing(peers::target()),
        _ => false,
    }
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
        self.is_foreign
    }

    pub(crate) fn masters(&self) -> &[RedisServer] {
        self.masters.as_ref().map_or(&[], |five| five.servers())
    }

    /// The process ids of our own servers, without the processes that these have started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.processes.clone()
    }

    pub(crate) async fn version(&self) -> Option<String> {
        let host = url::first_host(&self.url);
        let asking = async {
            match self.backend {
                BackendName::Memory => None,
                BackendName::Redis | BackendName::Redlock => redis::version(&self.url, host).await.ok(),
                BackendName::Zk => zk::version(host).await.ok(),
                BackendName::Postgres => postgres::version(&self.url).await.ok(),
                BackendName::Etcd => etcd::Etcd::connect(&self.url).await.ok()?.version().await.ok(),
                BackendName::Mysql => mysql::Mysql::connect(&self.url).await.ok()?.version().await.ok(),
                BackendName::Sqlite => sqlite::Sqlite::connect(&self.url).await.ok()?.version().await.ok(),
                BackendName::S3 if self.is_foreign() => None,
                BackendName::S3 => Some("moto".to_owned()),
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
                BackendName::Etcd => etcd::clean(&self.url, run).await,
                BackendName::Mysql => mysql::Mysql::connect(&self.url).await?.clean(&self.url, run).await,
                BackendName::Sqlite => sqlite::Sqlite::connect(&self.url).await?.clean(run).await,
                BackendName::S3 => s3::Bucket::connect(&self.url)?.clean(run).await,
            }
        };
        let cleaned = timeout(PATIENCE, cleaning).await;
        cleaned.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {PATIENCE:?}"))))
    }

    async fn start(wanted: &Wanted<'_>, run: &str) -> Outcome<Self> {
        let &Wanted { backend, url, ensemble } = wanted;
        let with = |url, processes, servers| Self {
            backend,
            url,
            is_foreign: false,
            processes,
            masters: None,
            _servers: servers,
        };
        let without = |url| with(url, Vec::new(), Box::new(()));
        Ok(match (url, backend) {
            (Some(url), _) => Self { is_foreign: true, ..without(url.to_owned()) },
            // A named store, which all connections of this process share.
            (None, BackendName::Memory) => without(format!("memory://{run}")),
            (None, BackendName::Redis) => {
                let server = RedisServer::start().await?;
                with(server.url(), vec![server.pid()], Box::new(server))
            }
            (None, BackendName::Redlock) => {
                let five = RedisFive::start().await?;
                for master in five.servers() {
                    // As docs/SAFETY.md says of new masters: a client that connects during the first grant of all would
                    // take those without a key for restarted ones.
                    master.command(&["SET", "set-up", "1"]).await?;
                }
                let (url, processes) = (five.url(), five.servers().iter().map(RedisServer::pid).collect());
                Self { processes, masters: Some(five), ..without(url) }
            }
            (None, BackendName::Zk) if ensemble => {
                let ensemble = ZooKeeper::builder().for_load(true).start_ensemble(3).await?;
                let processes = ensemble.nodes().iter().map(ZooKeeper::pid).collect();
                with(ensemble.url(), processes, Box::new(ensemble))
            }
            (None, BackendName::Zk) => {
                let server = ZooKeeper::builder().for_load(true).start().await?;
                with(server.url(), vec![server.pid()], Box::new(server))
            }
            (None, BackendName::Postgres) => {
                // As services have it: what is committed is on the disk.
                let server = PostgresServer::builder().config("fsync", "on");
                let server = server.config("max_connections", MOST_SESSIONS).start().await?;
                with(server.url(), vec![server.pid()], Box::new(server))
            }
            (None, BackendName::Etcd) => {
                // A full run writes more than the usual quota has room for.
                let server = EtcdServer::builder().flag("--quota-backend-bytes=8589934592").start().await?;
                with(server.url(), vec![server.pid()], Box::new(server))
            }
            (None, BackendName::Mysql) => {
                // As services have it, too.
                let durable = ["--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=fsync"];
                let server =
                    durable.into_iter().fold(MariadbServer::builder(), |options, flag| options.flag(flag));
                let server = server.flag(format!("--max-connections={MOST_SESSIONS}")).start().await?;
                with(server.url(), vec![server.pid()], Box::new(server))
            }
            (None, BackendName::Sqlite) => {
                let dir = tempfile::tempdir()?;
                with(format!("sqlite://{}/locks.db", dir.path().display()), Vec::new(), Box::new(dir))
            }
            (None, BackendName::S3) => {
                let server = S3Server::start(peers::target()).await?;
                with(S3Server::url(server.addr(), "bench"), Vec::new(), Box::new(server))
            }
        })
    }
}

/// Of hundreds of processes that each have a pool.
const MOST_SESSIONS: &str = "2000";
/// The timeout of requests that are not measured.
const PATIENCE: Duration = Duration::from_secs(10);
