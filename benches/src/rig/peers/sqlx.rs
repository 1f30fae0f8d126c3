//! sqlx: `PgAdvisoryLock`, a lock of the session. Each held lock has a connection.

use lock_testkit::history::ReleaseOutcome;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgConnectOptions, PgPool, PgPoolOptions};

use super::Library;
use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;

#[derive(Debug)]
pub(crate) struct Sqlx {
    pool: PgPool,
    lock: PgAdvisoryLock,
}

impl Sqlx {
    /// The lock of this name, over so many connections at most.
    pub(crate) async fn connect(url: &str, name: &str, connections: u32) -> Outcome<Self> {
        Self::connect_with(url.parse()?, name, connections).await
    }

    /// As [`connect`](Self::connect), over one connection, as its documentation says for PgBouncer.
    pub(crate) async fn connect_by_a_pooler(url: &str, name: &str) -> Outcome<Self> {
        let options: PgConnectOptions = url.parse()?;
        Self::connect_with(options.statement_cache_capacity(0), name, 1).await
    }

    async fn connect_with(options: PgConnectOptions, name: &str, connections: u32) -> Outcome<Self> {
        let pool = PgPoolOptions::new().max_connections(connections);
        Ok(Self { pool: pool.connect_with(options).await?, lock: PgAdvisoryLock::new(name) })
    }

    pub(crate) async fn close(self) {
        self.pool.close().await;
    }
}

impl Library for Sqlx {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Self::connect(url, name, POOL).await
    }

    fn with_name(&self, name: &str) -> Outcome<Self> {
        Ok(Self { pool: self.pool.clone(), lock: PgAdvisoryLock::new(name) })
    }
}

impl MeasuredLock for Sqlx {
    type Held = PoolConnection<Postgres>;

    async fn acquire(&self) -> Outcome<Self::Held> {
        Ok(self.lock.acquire(self.pool.acquire().await?).await?.leak())
    }

    async fn release(&self, held: Self::Held) -> Outcome<ReleaseOutcome> {
        let (_, released) = self.lock.force_release(held).await?;
        Ok(if released { ReleaseOutcome::Released } else { ReleaseOutcome::AlreadyLost })
    }
}

/// As many connections as a client of ours has: four for requests, and one that listens.
const POOL: u32 = 5;
