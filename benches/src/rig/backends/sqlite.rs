//! A connection to a SQLite file beside those of the locks: set as ours, without their code.

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Executor as _};
use tokio::sync::Mutex;

use crate::data::Outcome;
use crate::rig::url;

/// One connection, as one writes at a time, and a table for the floor.
#[derive(Clone, Debug)]
pub(crate) struct Sqlite(Arc<Mutex<SqliteConnection>>);

impl Sqlite {
    pub(crate) async fn connect(url: &str) -> Outcome<Self> {
        let options = SqliteConnectOptions::new()
            .filename(url::without_options(url).trim_start_matches("sqlite://"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(PATIENCE)
            .disable_statement_logging();
        let mut connection = options.connect().await?;
        connection.execute(TABLE).await?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Writes if the row has this version, which is zero for one that does not exist.
    pub(crate) async fn swap(&self, key: &str, version: u64, value: &[u8]) -> Outcome<bool> {
        let sql = if version == 0 { INSERT } else { UPDATE };
        let swap = sqlx::query(sql).bind(i64::try_from(version + 1)?).bind(value).bind(key);
        Ok(swap.execute(&mut *self.0.lock().await).await?.rows_affected() == 1)
    }

    pub(super) async fn version(&self) -> Outcome<String> {
        Ok(sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *self.0.lock().await).await?)
    }

    /// Removes the rows of this run, and the table of the floor.
    pub(super) async fn clean(&self, run: &str) -> Outcome<()> {
        // The name of the run has letters, digits and a dash alone.
        let clean =
            format!("DELETE FROM polylock WHERE instr(key, '{run}') > 0; DROP TABLE polylock_bench_floor");
        self.0.lock().await.execute(clean.as_str()).await?;
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
const TABLE: &str = "CREATE TABLE IF NOT EXISTS polylock_bench_floor (key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL)";
const INSERT: &str =
    "INSERT INTO polylock_bench_floor (version, value, key) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
const UPDATE: &str =
    "UPDATE polylock_bench_floor SET version = ?1, value = ?2 WHERE key = ?3 AND version = ?1 - 1";
