//! What befalls databases, and what only a statement can do: PostgreSQL and MariaDB, and etcd where it has the same.

use lock_testkit::{PostgresOptions, PostgresServer};
use tokio_postgres::Client;

use super::journal::MAKE_JOURNAL;
use super::{FaultServers, Servers};
use crate::data::{Failure, Outcome};
use crate::rig::backends::mysql::Session;
use crate::rig::backends::postgres::connect;

/// All connections that a server allows. They are given back when this is dropped.
pub(crate) enum TakenConnections {
    Postgres { administrator: Client, others: Vec<Client> },
    Mysql { administrator: Session, others: Vec<Session> },
}

impl TakenConnections {
    /// Whether no lock has a connection.
    pub(crate) async fn are_all(&mut self) -> Outcome<bool> {
        Ok(match self {
            Self::Postgres { administrator, .. } => {
                administrator.query_one(COUNT_SESSIONS, &[]).await?.get::<_, i64>(0) == 0
            }
            Self::Mysql { administrator, .. } => administrator.number(MYSQL_SESSIONS, &[]).await? == Some(0),
        })
    }

    /// Ends the sessions of all locks, and takes every connection that is free. Whether none was left to them.
    async fn take(&mut self, url: &str) -> Outcome<bool> {
        match self {
            Self::Postgres { administrator, others } => {
                administrator.query_one(END_SESSIONS, &[]).await?;
                while let Ok(other) = connect(url).await {
                    others.push(other);
                }
            }
            Self::Mysql { administrator, others } => {
                administrator.execute(END_MYSQL_SESSIONS).await?;
                while let Ok(other) = Session::open(url).await {
                    others.push(other);
                }
            }
        }
        Ok(match self {
            Self::Postgres { .. } => self.are_all().await?,
            Self::Mysql { administrator, .. } => {
                administrator.number(MYSQL_CONNECTIONS, &[]).await? == Some(0)
            }
        })
    }
}

impl FaultServers {
    pub(crate) fn postgres(&self, server: usize) -> &PostgresServer {
        match &self.servers {
            Servers::Postgres(alone) => alone,
            Servers::PostgresPair(pair) => &pair.servers()[server],
            _ => unreachable!("the caller has handled these"),
        }
    }

    /// Whether there is a primary with a standby or a replica.
    pub(crate) const fn has_standby(&self) -> bool {
        matches!(self.servers, Servers::PostgresPair(_) | Servers::MysqlPair(_))
    }

    /// Takes care that the standby gets nothing more.
    pub(crate) async fn detach(&self) -> Outcome<()> {
        match &self.servers {
            Servers::PostgresPair(pair) => Ok(pair.detach().await?),
            Servers::MysqlPair(pair) => Ok(pair.detach().await?),
            _ => Err(Failure::new("there is no standby")),
        }
    }

    /// Kills the primary, and promotes the standby. Whether it takes writes.
    pub(crate) async fn promote(&self) -> Outcome<bool> {
        match &self.servers {
            Servers::PostgresPair(pair) => {
                let [primary, standby] = pair.servers();
                primary.kill();
                standby.promote().await?;
                Ok(standby.sql(&["SELECT NOT pg_is_in_recovery()"]).await? == "t")
            }
            Servers::MysqlPair(pair) => {
                let [primary, replica] = pair.servers();
                primary.kill();
                pair.promote().await?;
                Ok(replica.sql("SELECT @@read_only").await? == "0")
            }
            _ => Err(Failure::new("there is no standby")),
        }
    }

    /// Ends the sessions of all locks. Returns how many there were.
    pub(crate) async fn end_sessions(&self) -> Outcome<u64> {
        let ended = match &self.servers {
            Servers::Mysql(server) => server.sql(&format!("{MYSQL_SESSIONS}; {END_MYSQL_SESSIONS}")).await?,
            _ => self.postgres(0).sql(&[END_SESSIONS]).await?,
        };
        ended.parse().map_err(|_| Failure::new(format!("{ended:?} is no number")))
    }

    /// Fills the disk of the server, or gives it room again. Whether it is full.
    pub(crate) async fn fill_disk(&self, full: bool) -> Outcome<bool> {
        Ok(match &self.servers {
            Servers::Mysql(server) => server.fill_disk(full).await?,
            Servers::Etcd(cluster) => cluster.members()[0].raise_alarm(full).await?,
            _ => self.postgres(0).fill_disk(full).await?,
        })
    }

    /// Ends the sessions of all locks, and takes every connection that the server allows before they are opened again.
    pub(crate) async fn take_connections(&self) -> Outcome<TakenConnections> {
        let (url, mut taken) = match &self.servers {
            Servers::Mysql(server) => {
                let prepare = "CREATE USER other, administrator; GRANT ALL ON *.* TO administrator";
                server.sql(&format!("{prepare}; SET GLOBAL max_connections = {MOST_CONNECTIONS}")).await?;
                let url = |user| format!("mysql://{user}@{}/information_schema", server.addr());
                let administrator = Session::open(&url("administrator")).await?;
                (url("other"), TakenConnections::Mysql { administrator, others: Vec::new() })
            }
            _ => {
                let url = self.postgres(0).url();
                let administrator = connect(&url).await?;
                (url, TakenConnections::Postgres { administrator, others: Vec::new() })
            }
        };
        self.until("no lock has a connection", async || taken.take(&url).await).await?;
        Ok(taken)
    }

    /// Makes a lease one that has ended, or deletes the record of its lock. Returns how many there were, unless it takes more than a
    /// statement.
    pub(crate) async fn end_lease(&self, lock: &str) -> Outcome<Option<u64>> {
        let ended = match &self.servers {
            Servers::Postgres(server) => {
                let end = format!(
                    "WITH ended AS (UPDATE polylock.lease SET expires_at = '-infinity' WHERE name = '{lock}' RETURNING 1) \
                     SELECT count(*) FROM ended"
                );
                server.sql(&[&end]).await?
            }
            Servers::Mysql(server) => {
                let delete = format!("DELETE FROM polylock WHERE name = 'lock/{lock}'; SELECT ROW_COUNT()");
                server.sql(&delete).await?
            }
            Servers::Etcd(cluster) => {
                let existed = cluster.members()[0].delete(&format!("polylock/lock/{lock}")).await?;
                return Ok(Some(u64::from(existed)));
            }
            _ => return Ok(None),
        };
        Ok(Some(ended.parse().unwrap_or(0)))
    }
}

/// The options of the servers of the fault table.
pub(super) fn options() -> PostgresOptions {
    PostgresServer::builder().config("max_connections", MOST_CONNECTIONS)
}

/// Starts the server of a soak. Sessions whose connection was forgotten on the way stay, so it allows many.
pub(super) async fn start_with_journal() -> Outcome<PostgresServer> {
    let options = PostgresServer::builder().config("max_connections", "1000");
    let server = options.config("track_commit_timestamp", "on").start().await?;
    server.sql(&[MAKE_JOURNAL]).await?;
    Ok(server)
}

/// A new server takes less than half of it.
pub(super) const DISK_MB: u32 = 100;
const MOST_CONNECTIONS: &str = "100";
pub(super) const END_SESSIONS: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'polylock%'";
const COUNT_SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock%'";
const END_MYSQL_SESSIONS: &str = "KILL USER me";
/// One that logs in may be refused, as there are too many, or become a session.
const MYSQL_CONNECTIONS: &str =
    "SELECT COUNT(*) FROM information_schema.processlist WHERE user IN ('me', 'unauthenticated user')";
const MYSQL_SESSIONS: &str =
    "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'me' AND command <> 'Connect'";
