//! Registers in a SQLite file: durable locks between the processes of one host.

#[cfg(unix)]
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::MAX_LISTED;
use lock_core::{Error, ErrorKind, Outcome, Result, random};
use rand::Rng;
use sqlx::Row;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::registers::{About, Registers, Version, Versioned};

pub(crate) const NAME: &str = "sqlite";
/// A read is a few system calls.
const POLL: Duration = Duration::from_millis(5);
/// Each has a thread. One writes at a time.
const CONNECTIONS: u32 = 4;

/// Values in a table of a SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    pool: SqlitePool,
    /// One writes at a time. SQLite lets others try again now and then; tasks of a process wait in order here.
    writer: Arc<Mutex<()>>,
    path: PathBuf,
    /// The file that was opened: another one may come to be at its path.
    file: Option<FileId>,
}

/// What tells a file from another one at the same path.
type FileId = (u64, u64);

impl Sqlite {
    /// Opens the file, and makes it and its table if they do not exist.
    pub(crate) async fn open(path: &Path, timeout: Duration) -> Result<Self> {
        // The process may change its directory.
        let path = absolute(path).unwrap_or_else(|_| path.to_owned());
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(timeout);
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(timeout);
        let pool = pool.test_before_acquire(false).connect_with(options.clone()).await;
        let pool = pool.map_err(|error| failed(error, Outcome::NotApplied))?;
        let table = "CREATE TABLE IF NOT EXISTS polylock (key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL)";
        sqlx::query(table).execute(&pool).await.map_err(|error| failed(error, Outcome::NotApplied))?;
        // A later connection must not make a new file in place of one that was deleted.
        pool.set_connect_options(options.create_if_missing(false));
        let file = file_at(&path);
        Ok(Self { pool, writer: Arc::default(), path, file })
    }

    /// Whether the file is still at its path. SQLite would go on writing to one that was deleted, while others lock a new one.
    fn is_in_place(&self) -> bool {
        self.file.is_none() || self.file == file_at(&self.path)
    }
}

impl Registers for Sqlite {
    fn about(&self) -> About {
        about()
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let row = sqlx::query("SELECT version, value FROM polylock WHERE key = ?").bind(key.to_owned());
        let pool = self.pool.clone();
        let row = as_task(async move { row.fetch_optional(&pool).await }).await;
        let row = row.map_err(|error| failed(error, Outcome::NotApplied))?;
        let read = |row: sqlx::sqlite::SqliteRow| {
            let version = row.try_get::<i64, _>(0)?.cast_unsigned();
            Ok(Versioned::new(version.into(), row.try_get(1)?))
        };
        row.map(read).transpose().map_err(|error| failed(error, Outcome::NotApplied))
    }

    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        let (swap, new) = match expected.map(Version::number) {
            Some(Some(old)) => {
                let sql = "UPDATE polylock SET version = ?1, value = ?2 WHERE key = ?3 AND version = ?1 - 1";
                (sql, old.wrapping_add(1))
            }
            // It is none of this store.
            Some(None) => return Ok(None),
            // At random, so that no version comes back after somebody has deleted the row.
            None => {
                let sql =
                    "INSERT INTO polylock (version, value, key) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
                (sql, u64::from(random::rng().random::<u32>()))
            }
        };
        if !self.is_in_place() {
            return Err(moved());
        }
        let swap = sqlx::query(swap).bind(new.cast_signed()).bind(value.to_owned()).bind(key.to_owned());
        let (pool, writer) = (self.pool.clone(), Arc::clone(&self.writer));
        let swapped = as_task(async move {
            let _turn = writer.lock().await;
            swap.execute(&pool).await
        });
        let swapped = swapped.await.map_err(|error| failed(error, Outcome::Unknown))?;
        Ok((swapped.rows_affected() == 1).then(|| new.into()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let rows = sqlx::query_scalar("SELECT key FROM polylock WHERE key >= ? ORDER BY key LIMIT ?");
        let rows = rows.bind(prefix.to_owned()).bind(MAX_LISTED as i64 + 2);
        let pool = self.pool.clone();
        let rows = as_task(async move { rows.fetch_all(&pool).await }).await;
        let keys: Vec<String> = rows.map_err(|error| failed(error, Outcome::NotApplied))?;
        Ok(keys.into_iter().take_while(|key| key.starts_with(prefix)).collect())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

pub(crate) fn about() -> About {
    About::new(NAME, POLL)
}

/// Awaits a request as a task, which ends with its caller. The runtime drops it: outside of one, a connection cannot be given back.
async fn as_task<T: Send + 'static>(
    request: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
) -> Result<T, sqlx::Error> {
    let mut task = JoinSet::new();
    task.spawn(request);
    task.join_next().await.and_then(|ended| ended.ok()).unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

#[cfg(unix)]
fn file_at(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// An open file can be neither deleted nor replaced.
#[cfg(not(unix))]
fn file_at(_: &Path) -> Option<FileId> {
    None
}

fn moved() -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message("the file was deleted, moved or replaced while its locks were in use")
        .with_hint("nobody may do that while a process uses them; connect again once all have ended")
        .with_outcome(Outcome::NotApplied)
}

/// What became of a request is known if SQLite itself has refused it: a statement is a transaction.
fn failed(error: sqlx::Error, otherwise: Outcome) -> Error {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    let (kind, message, hint) = match (code.map(|code| code & 0xff), &error) {
        (Some(5 | 6), _) => (
            ErrorKind::Unavailable,
            "another connection has locked the file for too long",
            "end its transaction",
        ),
        (Some(3 | 8 | 14 | 23), _) => (
            ErrorKind::Denied,
            "the file cannot be opened or written",
            "check that its directory exists, and the rights on both",
        ),
        (Some(13), _) => (ErrorKind::Exhausted, "there is no room on the disk", "make some"),
        (Some(11 | 26), _) => {
            (ErrorKind::InvalidConfig, "the file is no SQLite database, or damaged", "name another file")
        }
        (_, sqlx::Error::PoolClosed) => return Error::closed(NAME),
        (_, sqlx::Error::PoolTimedOut) => {
            (ErrorKind::Unavailable, "all connections are in use", "use fewer locks at a time")
        }
        _ => (ErrorKind::Unavailable, "the file cannot be used", "see the cause"),
    };
    let is_known = matches!(code.map(|code| code & 0xff), Some(3 | 5 | 6 | 8 | 11 | 13 | 14 | 23 | 26))
        || matches!(error, sqlx::Error::PoolTimedOut);
    let outcome = if is_known { Outcome::NotApplied } else { otherwise };
    Error::new(kind, NAME).with_message(message).with_hint(hint).with_outcome(outcome).caused_by(error)
}
