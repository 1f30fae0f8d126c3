//! A primary with a standby.

use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{PostgresOptions, PostgresServer, USER, as_a_user, give_away, program};
use crate::error::{Error, Result};
use crate::servers::process::tail;

/// A primary and a hot standby that was made by `pg_basebackup` and streams from it. Clients know both by one URL.
#[derive(Debug)]
pub struct PostgresPair {
    servers: [PostgresServer; 2],
}

impl PostgresPair {
    /// Starts a primary and an asynchronous standby, which may lack the last commits.
    ///
    /// # Errors
    ///
    /// As for [`PostgresServer::start`].
    pub async fn start() -> Result<Self> {
        Self::start_with(PostgresServer::builder()).await
    }

    /// The same, both with these options.
    ///
    /// # Errors
    ///
    /// As for [`PostgresServer::start`].
    pub async fn start_with(options: PostgresOptions) -> Result<Self> {
        let primary = options.clone().start().await?;
        let standby = options.start_standby(&primary).await?;
        let pair = Self { servers: [primary, standby] };
        pair.catch_up().await?;
        Ok(pair)
    }

    /// The same with a synchronous standby: the primary confirms no commit before the standby has it.
    ///
    /// # Errors
    ///
    /// As for [`PostgresServer::start`].
    pub async fn start_synchronous() -> Result<Self> {
        let pair = Self::start().await?;
        let [primary, _] = &pair.servers;
        primary.set("synchronous_standby_names", "*").await?;
        let count = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        pair.until("the standby is synchronous", async || Ok(primary.sql(&[count]).await? == "1")).await?;
        Ok(pair)
    }

    /// `postgres://postgres@127.0.0.1:port,127.0.0.1:port/postgres`.
    pub fn url(&self) -> String {
        let [primary, standby] = &self.servers;
        primary.url().replacen(
            &primary.addr().to_string(),
            &format!("{},{}", primary.addr(), standby.addr()),
            1,
        )
    }

    /// The initial primary, and the standby.
    pub fn servers(&self) -> &[PostgresServer; 2] {
        &self.servers
    }

    /// Waits until the standby has what the primary has committed.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] after a minute.
    pub async fn catch_up(&self) -> Result<()> {
        let [primary, standby] = &self.servers;
        let position = primary.sql(&["SELECT pg_current_wal_lsn()"]).await?;
        let has_it = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
        self.until("the standby has caught up", async || Ok(standby.sql(&[&has_it]).await? == "t")).await
    }

    /// Takes care that the standby gets nothing more, once it has what was committed before.
    ///
    /// # Errors
    ///
    /// As for [`catch_up`](Self::catch_up).
    pub async fn detach(&self) -> Result<()> {
        self.catch_up().await?;
        let standby = &self.servers[1];
        standby.set("primary_conninfo", "").await?;
        let count = "SELECT count(*) FROM pg_stat_wal_receiver";
        self.until("the standby is detached", async || Ok(standby.sql(&[count]).await? == "0")).await
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while !is_so().await? {
            if began.elapsed() > PATIENCE {
                let standby = &self.servers[1].inner.process;
                let (server, log) = (format!("{} ({what})", standby.name()), tail(&standby.log()));
                return Err(Error::NotReady { server, waited: PATIENCE, log });
            }
            sleep(LOOK).await;
        }
        Ok(())
    }
}

impl PostgresOptions {
    /// Starts a standby on a backup of this server.
    async fn start_standby(self, primary: &PostgresServer) -> Result<PostgresServer> {
        let port = primary.port();
        self.start_on(move |inner| {
            let mut backup = as_a_user(&program("pg_basebackup")?)?;
            backup.args(["--write-recovery-conf", "--checkpoint", "fast", "--no-sync"]);
            backup.arg("--dbname").arg(conninfo(port)).arg("--pgdata").arg(inner.data());
            inner.finish(backup.current_dir(inner.process.dir()))
        })
        .await
    }
}

impl PostgresServer {
    /// Starts a server that was shut down as a standby of its successor.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn follow(&self, primary: &Self) -> Result<()> {
        let data = self.inner.data();
        let write = || {
            let file = data.join("postgresql.auto.conf");
            let settings = fs::read_to_string(&file)?;
            fs::write(&file, format!("{settings}primary_conninfo = '{}'\n", conninfo(primary.port())))?;
            fs::write(data.join("standby.signal"), "")
        };
        write().map_err(|error| Error::io(format!("write to {}", data.display()), error))?;
        give_away(&data.join("standby.signal"))?;
        self.start_again().await
    }
}

fn conninfo(port: u16) -> String {
    format!("host=127.0.0.1 port={port} user={USER}")
}

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
