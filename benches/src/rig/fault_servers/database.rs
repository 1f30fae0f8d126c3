//! What befalls PostgreSQL alone.

use lock_testkit::{PostgresOptions, PostgresPair, PostgresServer};
use tokio_postgres::Client;

use super::journal::MAKE_JOURNAL;
use super::{FaultServers, Servers};
use crate::data::{Failure, Outcome};
use crate::rig::backends::postgres::connect;

/// All connections that a server allows. They are given back when this is dropped.
pub(crate) struct TakenConnections {
    administrator: Client,
    others: Vec<Client>,
}

impl TakenConnections {
    /// Whether no lock has a connection.
    pub(crate) async fn are_all(&self) -> Outcome<bool> {
        Ok(self.administrator.query_one(COUNT_SESSIONS, &[]).await?.get::<_, i64>(0) == 0)
    }

    /// Ends the sessions of all locks, and takes every connection that is free. Whether none was left to them.
    async fn take(&mut self, url: &str) -> Outcome<bool> {
        self.administrator.query_one(END_SESSIONS, &[]).await?;
        while let Ok(other) = connect(url).await {
            self.others.push(other);
        }
        self.are_all().await
    }
}

impl FaultServers {
    pub(crate) fn pair(&self) -> Outcome<&PostgresPair> {
        match &self.servers {
            Servers::PostgresPair(pair) => Ok(pair),
            _ => Err(Failure::new("there is no standby")),
        }
    }

    pub(crate) fn postgres(&self, server: usize) -> &PostgresServer {
        match &self.servers {
            Servers::Postgres(alone) => alone,
            Servers::PostgresPair(pair) => &pair.servers()[server],
            _ => unreachable!("the caller has handled these"),
        }
    }

    /// Ends the sessions of all locks. Returns how many there were.
    pub(crate) async fn end_sessions(&self) -> Outcome<u64> {
        let ended = self.postgres(0).sql(&[END_SESSIONS]).await?;
        ended.parse().map_err(|_| Failure::new(format!("{ended:?} is no number")))
    }

    /// Fills the disk of the server, or gives it room again. Whether it is full.
    pub(crate) async fn fill_disk(&self, full: bool) -> Outcome<bool> {
        let rows = if full { DISK_MB * 10 } else { 0 };
        let fill = format!(
            "DO $$ BEGIN EXECUTE format('COPY (SELECT repeat(''x'', 100000) FROM generate_series(1, {rows})) TO %L', \
             current_setting('data_directory') || '/ballast'); END $$"
        );
        match self.postgres(0).sql(&[&fill]).await {
            Ok(_) => Ok(false),
            Err(error) if error.to_string().contains("No space left on device") => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the sessions of all locks, and takes every connection that the server allows before they are opened again.
    pub(crate) async fn take_connections(&self) -> Outcome<TakenConnections> {
        let url = self.postgres(0).url();
        let mut taken = TakenConnections { administrator: connect(&url).await?, others: Vec::new() };
        self.until("no lock has a connection", async || taken.take(&url).await).await?;
        Ok(taken)
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
