//! Registers in a SQLite file: durable locks between the processes of one host.

#[cfg(unix)]
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Outcome, Result, random};
use rand::Rng;
use sqlx::Row;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::own_thread::OwnThread;
use crate::registers::{About, Registers, Version, Versioned};

pub(crate) const NAME: &str = "sqlite";
/// A read is a few system calls.
const POLL: Duration = Duration::from_millis(5);
/// Each has a thread. One writes at a time.
const CONNECTIONS: u32 = 4;
/// How many keys are listed at a time.
const PAGE: i64 = 10_000;
const TABLE: &str = "CREATE TABLE IF NOT EXISTS polylock (key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL)";
/// Parts of the timeout for which a write waits for its turn, and then for the file. What is left is for the write itself: an answer after
/// the timeout says nothing of the outcome.
const PART: u32 = 3;
/// Until a file that is just being made is opened again.
const PAUSE: Duration = Duration::from_millis(10);

/// Values in a table of a SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    thread: OwnThread,
    pool: SqlitePool,
    /// One writes at a time. SQLite lets others try again now and then; tasks of a process wait in order here.
    writer: Arc<Mutex<()>>,
    /// How long a write waits for its turn.
    patience: Duration,
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
        let patience = timeout / PART;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(patience);
        let thread = OwnThread::start().map_err(|error| {
            let error = failed(sqlx::Error::Io(error), Outcome::NotApplied);
            error.with_message("a thread for the file cannot be started")
        })?;
        let pool = thread.run(open_pool(options, timeout)).await.unwrap_or(Err(sqlx::Error::WorkerCrashed));
        let pool = pool.map_err(|error| failed(error, Outcome::NotApplied))?;
        let file = file_at(&path);
        Ok(Self { thread, pool, writer: Arc::default(), patience, path, file })
    }

    /// Runs a request to its end, or for as long as its caller waits.
    async fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, sqlx::Error> {
        self.thread.run(request).await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
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
        let row = self.run(async move { row.fetch_optional(&pool).await }).await;
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
        let (pool, writer, patience) = (self.pool.clone(), Arc::clone(&self.writer), self.patience);
        let swapped = self.run(async move {
            let turn = async {
                let turn = writer.lock().await;
                pool.acquire().await.map(|connection| (turn, connection))
            };
            let Ok(turn) = timeout(patience, turn).await else { return Ok(None) };
            let (_turn, mut connection) = turn?;
            swap.execute(&mut *connection).await.map(Some)
        });
        let swapped = swapped.await.map_err(|error| failed(error, Outcome::Unknown))?;
        let swapped = swapped.ok_or_else(no_turn)?;
        Ok((swapped.rows_affected() == 1).then(|| new.into()))
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let sql = "SELECT key FROM polylock WHERE key >= ? AND key > ? ORDER BY key LIMIT ?";
        let rows = sqlx::query_scalar(sql).bind(prefix.to_owned()).bind(after.to_owned()).bind(PAGE);
        let pool = self.pool.clone();
        let rows = self.run(async move { rows.fetch_all(&pool).await }).await;
        let keys: Vec<String> = rows.map_err(|error| failed(error, Outcome::NotApplied))?;
        Ok(keys.into_iter().take_while(|key| key.starts_with(prefix)).collect())
    }

    async fn close(&self) {
        let pool = self.pool.clone();
        self.thread.run(async move { pool.close().await }).await;
    }
}

pub(crate) fn about() -> About {
    About { one_host: true, ..About::new(NAME, POLL) }
}

/// Opens the file. SQLite may refuse that at once, whatever its own timeout, while another process makes the file.
async fn open_pool(options: SqliteConnectOptions, timeout: Duration) -> Result<SqlitePool, sqlx::Error> {
    // The last try may wait for a part of its own.
    let deadline = Instant::now() + timeout - timeout / PART;
    let connect = async || {
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(timeout);
        let pool = pool.test_before_acquire(false).connect_with(options.clone()).await?;
        sqlx::query(TABLE).execute(&pool).await?;
        Ok(pool)
    };
    let pool = loop {
        match connect().await {
            Err(error) if is_busy(&error) && Instant::now() < deadline => sleep(PAUSE).await,
            opened => break opened?,
        }
    };
    // A later connection must not make a new file in place of one that was deleted.
    pool.set_connect_options(options.create_if_missing(false));
    Ok(pool)
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

fn no_turn() -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message("other writes of this process took too long, and this one was not sent")
        .with_hint("see whether the disk is slow, or another program keeps the file locked")
        .with_outcome(Outcome::NotApplied)
}

/// The number of SQLite's error, without its details.
fn code_of(error: &sqlx::Error) -> Option<u32> {
    let code = error.as_database_error()?.code()?.parse::<u32>().ok()?;
    Some(code & 0xff)
}

fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code_of(error), Some(5 | 6))
}

/// What became of a request is known if SQLite itself has refused it: a statement is a transaction.
fn failed(error: sqlx::Error, otherwise: Outcome) -> Error {
    let code = code_of(&error);
    let (kind, message, hint) = match (code, &error) {
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
    let is_known = matches!(code, Some(3 | 5 | 6 | 8 | 11 | 13 | 14 | 23 | 26))
        || matches!(error, sqlx::Error::PoolTimedOut);
    let outcome = if is_known { Outcome::NotApplied } else { otherwise };
    Error::new(kind, NAME).with_message(message).with_hint(hint).with_outcome(outcome).caused_by(error)
}
