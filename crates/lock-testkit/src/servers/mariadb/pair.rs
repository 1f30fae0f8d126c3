//! A primary with a replica.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::MariadbServer;
use crate::error::{Error, Result};
use crate::servers::process::tail;

/// A primary and a replica, which takes no writes. Clients know both by one URL.
#[derive(Debug)]
pub struct MariadbPair {
    servers: [MariadbServer; 2],
}

impl MariadbPair {
    /// Starts a primary and an asynchronous replica, which may lack the last commits.
    ///
    /// # Errors
    ///
    /// As for [`MariadbServer::start`].
    pub async fn start() -> Result<Self> {
        let primary = MariadbServer::builder().flag("--server-id=1").flag("--log-bin").start().await?;
        let replica = MariadbServer::builder().flag("--server-id=2").flag("--read-only").start().await?;
        let pair = Self { servers: [primary, replica] };
        pair.replicate().await?;
        Ok(pair)
    }

    /// The same with a semi-synchronous replica: the primary confirms no commit before the replica has it, however long that takes.
    ///
    /// # Errors
    ///
    /// As for [`MariadbServer::start`].
    pub async fn start_semi_synchronous() -> Result<Self> {
        let pair = Self::start().await?;
        let [primary, replica] = &pair.servers;
        replica.sql("STOP SLAVE; SET GLOBAL rpl_semi_sync_slave_enabled = 1").await?;
        let wait = "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC', GLOBAL rpl_semi_sync_master_timeout = 4294967295, \
                    GLOBAL rpl_semi_sync_master_enabled = 1";
        primary.sql(wait).await?;
        replica.sql("START SLAVE").await?;
        let clients = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'";
        let has_one = async || Ok(primary.sql(clients).await?.ends_with("\t1"));
        pair.until("the replica is semi-synchronous", has_one).await?;
        Ok(pair)
    }

    /// `mysql://me:password@127.0.0.1:port,127.0.0.1:port/app`.
    pub fn url(&self) -> String {
        let [primary, replica] = self.servers.each_ref().map(MariadbServer::addr);
        self.servers[0].url().replacen(&primary.to_string(), &format!("{primary},{replica}"), 1)
    }

    /// The initial primary, and the replica.
    pub fn servers(&self) -> &[MariadbServer; 2] {
        &self.servers
    }

    /// Takes care that the replica gets nothing more, once it has what was committed before.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] after a minute.
    pub async fn detach(&self) -> Result<()> {
        let [primary, replica] = &self.servers;
        let position = primary.sql("SELECT @@gtid_binlog_pos").await?;
        let has_it = format!("SELECT MASTER_GTID_WAIT('{position}', 0)");
        self.until("the replica has caught up", async || Ok(replica.sql(&has_it).await? == "0")).await?;
        replica.sql("STOP SLAVE").await.map(drop)
    }

    /// Makes the replica take writes, with all that it has received.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] after a minute.
    pub async fn promote(&self) -> Result<()> {
        let replica = &self.servers[1];
        replica.sql("STOP SLAVE IO_THREAD; START SLAVE SQL_THREAD").await?;
        let has_all =
            async || Ok(replica.sql("SHOW SLAVE STATUS").await?.contains("Slave has read all relay log"));
        self.until("the replica has applied what it has received", has_all).await?;
        replica.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0").await.map(drop)
    }

    /// Has the replica get what the primary commits, from its first transaction on.
    async fn replicate(&self) -> Result<()> {
        let [primary, replica] = &self.servers;
        let (user, password) = (MariadbServer::USER, MariadbServer::PASSWORD);
        primary.sql(&format!("GRANT REPLICATION SLAVE ON *.* TO {user}")).await?;
        let follow = format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = '{user}', \
             MASTER_PASSWORD = '{password}', MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos; START SLAVE",
            primary.addr().port()
        );
        replica.sql(&follow).await.map(drop)
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while !is_so().await? {
            if began.elapsed() > PATIENCE {
                let replica = &self.servers[1].inner.process;
                let (server, log) = (format!("{} ({what})", replica.name()), tail(&replica.log()));
                return Err(Error::NotReady { server, waited: PATIENCE, log });
            }
            sleep(LOOK).await;
        }
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
