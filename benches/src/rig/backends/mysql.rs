//! Sessions with MySQL servers beside those of the locks: as many and set as ours, without their code.

use std::sync::Arc;

use futures_util::future::try_join_all;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::{ConnectOptions as _, Executor as _, MySql};

use crate::data::{Failure, Outcome};
use crate::rig::idle::Idle;
use crate::rig::url;

/// Sessions, and a table for the floor.
#[derive(Clone, Debug)]
pub(crate) struct Mysql(Arc<Idle<MySqlConnection>>);

/// A session.
#[derive(Debug)]
pub(crate) struct Session(MySqlConnection);

impl Mysql {
    pub(crate) async fn connect(url: &str) -> Outcome<Self> {
        let sessions = try_join_all((0..SESSIONS).map(|_| open(url))).await?;
        let made = Self(Arc::new(Idle::of(sessions)));
        made.execute(TABLE).await?;
        Ok(made)
    }

    /// Writes if the row has this version, which is zero for one that does not exist.
    pub(crate) async fn swap(&self, key: &str, version: u64, value: &[u8]) -> Outcome<bool> {
        let sql = if version == 0 { INSERT } else { UPDATE };
        let (old, key) = (i64::try_from(version)?, key.as_bytes());
        let mut swap = sqlx::query::<MySql>(sql).bind(old + 1).bind(value).bind(key);
        if version > 0 {
            swap = swap.bind(old);
        }
        let mut session = self.0.take().await?;
        let swapped = swap.execute(&mut session).await;
        self.0.put_back(session).await;
        Ok(swapped?.rows_affected() == 1)
    }

    pub(super) async fn version(&self) -> Outcome<String> {
        let mut session = self.0.take().await?;
        let version = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut session).await;
        self.0.put_back(session).await;
        Ok(version?)
    }

    /// Removes the rows of this run, and the table of the floor.
    pub(super) async fn clean(&self, url: &str, run: &str) -> Outcome<()> {
        let table = url::option(url, "table").unwrap_or("polylock");
        // The name of the run has letters, digits and a dash alone.
        self.execute(&format!("DELETE FROM `{table}` WHERE INSTR(name, '{run}') > 0")).await?;
        self.execute("DROP TABLE polylock_bench_floor").await
    }

    async fn execute(&self, sql: &str) -> Outcome<()> {
        let mut session = self.0.take().await?;
        let done = session.execute(sql).await;
        self.0.put_back(session).await;
        done.map(drop).map_err(Failure::from)
    }
}

impl Session {
    /// Without TLS.
    pub(crate) async fn open(url: &str) -> Outcome<Self> {
        open(url).await.map(Self)
    }

    pub(crate) async fn execute(&mut self, sql: &str) -> Outcome<()> {
        self.0.execute(sql).await.map(drop).map_err(Failure::from)
    }

    /// The number that a statement about these names returns, or NULL.
    pub(crate) async fn number(&mut self, sql: &str, names: &[&str]) -> Outcome<Option<i64>> {
        let asked = names.iter().fold(sqlx::query_scalar::<MySql, _>(sql), |asked, name| asked.bind(*name));
        Ok(asked.fetch_one(&mut self.0).await?)
    }
}

async fn open(url: &str) -> Outcome<MySqlConnection> {
    let options: MySqlConnectOptions = url::without_options(url).parse()?;
    let options = options.ssl_mode(MySqlSslMode::Disabled).disable_statement_logging();
    let options =
        options.pipes_as_concat(false).no_engine_substitution(false).timezone(None).set_names(false);
    let mut session = options.connect().await?;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE").await?;
    Ok(session)
}

/// As many as a client of ours has at most.
const SESSIONS: usize = 8;
const TABLE: &str = "CREATE TABLE IF NOT EXISTS polylock_bench_floor (name VARBINARY(1040) NOT NULL PRIMARY KEY, \
                     version BIGINT NOT NULL, value LONGBLOB NOT NULL) ENGINE = InnoDB";
const INSERT: &str = "INSERT INTO polylock_bench_floor (version, value, name) VALUES (?, ?, ?)";
const UPDATE: &str = "UPDATE polylock_bench_floor SET version = ?, value = ? WHERE name = ? AND version = ?";
