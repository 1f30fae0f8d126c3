//! Registers in a SQLite file: durable locks between the processes of one host.

pub(crate) mod config;
mod place;

use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{Error, ErrorKind, Finding, Outcome, Result, random};
use rand::Rng;
use sqlx::Row;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::Mutex;
use tokio::time::{self, Instant, sleep, timeout_at};

use self::place::{Place, moved};
use crate::adapters::own_thread::OwnThread;
use crate::adapters::records::{MANY, of_records};
use crate::error::silent;
use crate::registers::{About, LOCKS, Registers, Version, Versioned};

pub(crate) const NAME: &str = "sqlite";
/// A read is a few system calls.
const POLL: Duration = Duration::from_millis(5);
/// Each has a thread. One writes at a time.
const CONNECTIONS: u32 = 4;
/// How many keys are listed at a time.
const PAGE: i64 = 10_000;
const TABLE: &str = "CREATE TABLE IF NOT EXISTS polylock (key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL)";
/// The part of the timeout for which SQLite waits for the file at a time.
const BUSY: u32 = 6;
/// Until a file that is just being made is opened again.
const PAUSE: Duration = Duration::from_millis(10);

/// Values in a table of a SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    thread: OwnThread,
    pool: SqlitePool,
    /// One writes at a time. SQLite lets others try again now and then; tasks of a process wait in order here.
    writer: Arc<Mutex<()>>,
    /// How long a write may wait until it begins: see [`patience`].
    patience: Duration,
    /// The files that were opened: others may come to be at their paths.
    place: Arc<Place>,
}

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
            .busy_timeout(timeout / BUSY);
        let thread = OwnThread::start(NAME)?;
        let open = move |makes| {
            let pool = open_pool(options.clone().create_if_missing(makes), timeout);
            async { pool.await.map_err(|error| failed(error, Outcome::NotApplied)) }
        };
        let open = open_in_place(path, open, |pool: SqlitePool| async move { pool.close().await });
        // The file system may hang. Its thread is left behind then.
        let opened = time::timeout(timeout, thread.run(Outcome::NotApplied, open)).await;
        let (pool, place) = opened.map_err(|_| silent(NAME, timeout, Outcome::NotApplied))??;
        let (writer, patience) = (Arc::default(), patience(timeout));
        Ok(Self { thread, pool, writer, patience, place: Arc::new(place) })
    }

    /// Runs a read, which counts if the file is still in place: SQLite would go on reading one that was deleted.
    async fn read<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T> {
        let place = Arc::clone(&self.place);
        let read = async move {
            let read = read.await.map_err(|error| failed(error, Outcome::NotApplied))?;
            place.check(Outcome::NotApplied).map(|()| read)
        };
        self.thread.run(Outcome::NotApplied, read).await
    }
}

impl Registers for Sqlite {
    fn about(&self) -> About {
        about()
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let row = sqlx::query("SELECT version, value FROM polylock WHERE key = ?").bind(key.to_owned());
        let pool = self.pool.clone();
        let read = |row: sqlx::sqlite::SqliteRow| {
            let version = row.try_get::<i64, _>(0)?.cast_unsigned();
            Ok(Versioned::new(version.into(), row.try_get(1)?))
        };
        self.read(async move { row.fetch_optional(&pool).await?.map(read).transpose() }).await
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
        let (key, value) = (key.to_owned(), value.to_owned());
        let (pool, writer, patience) = (self.pool.clone(), Arc::clone(&self.writer), self.patience);
        let place = Arc::clone(&self.place);
        let swap = self.thread.run(Outcome::Unknown, async move {
            let deadline = Instant::now() + patience;
            let turn = async {
                let turn = writer.lock().await;
                pool.acquire().await.map(|connection| (turn, connection))
            };
            let turn = timeout_at(deadline, turn).await.map_err(|_| no_turn())?;
            let (_turn, mut connection) = turn.map_err(|error| failed(error, Outcome::NotApplied))?;
            // SQLite would go on writing to files that were deleted, while others lock new ones.
            place.check(Outcome::NotApplied)?;
            let swapped = loop {
                let swap = sqlx::query(swap).bind(new.cast_signed()).bind(&*value).bind(&*key);
                match swap.execute(&mut *connection).await {
                    Err(error) if is_busy(&error) && Instant::now() < deadline => {}
                    swapped => break swapped.map_err(|error| failed(error, Outcome::Unknown))?,
                }
            };
            // The write may have waited.
            place.check(Outcome::Unknown)?;
            Ok((swapped.rows_affected() == 1).then(|| new.into()))
        });
        swap.await
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let sql = "SELECT key FROM polylock WHERE key >= ? AND key > ? AND typeof(key) = 'text' ORDER BY key LIMIT ?";
        let rows = sqlx::query_scalar(sql).bind(prefix.to_owned()).bind(after.to_owned()).bind(PAGE);
        let pool = self.pool.clone();
        let keys: Vec<String> = self.read(async move { rows.fetch_all(&pool).await }).await?;
        Ok(keys.into_iter().take_while(|key| key.starts_with(prefix)).collect())
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        // The keys alone are read.
        let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM polylock WHERE key >= ?1 || '/' AND key < ?1 || '0' LIMIT ?2)";
        let count = sqlx::query_scalar(sql).bind(LOCKS.trim_end_matches('/')).bind(MANY.cast_signed());
        let pool = self.pool.clone();
        let count: Result<i64> = self.read(async move { count.fetch_one(&pool).await }).await;
        Ok(vec![of_records(count.map(i64::cast_unsigned))])
    }

    async fn close(&self) {
        let pool = self.pool.clone();
        _ = self.thread.run(Outcome::NotApplied, async move { pool.close().map(Ok).await }).await;
    }
}

pub(crate) fn about() -> About {
    About { one_host: true, ..About::new(NAME, POLL) }
}

/// What is left of the timeout is for the last try, which waits up to twice for the file: an answer after the timeout says nothing of the
/// outcome.
fn patience(timeout: Duration) -> Duration {
    timeout - timeout / BUSY * 2
}

/// Opens the file. SQLite may refuse that at once, whatever its own timeout, while another process makes the file.
async fn open_pool(options: SqliteConnectOptions, timeout: Duration) -> Result<SqlitePool, sqlx::Error> {
    let deadline = Instant::now() + patience(timeout);
    let connect = async || {
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(timeout);
        // The last one that is closed removes the files beside this one, and they would be others from then on.
        let pool = pool.min_connections(1).idle_timeout(None).max_lifetime(None);
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

/// Opens what is at the path, and returns which files these are. A file that does not exist is made first: so each that is opened was
/// looked at before.
async fn open_in_place<T, O, C>(
    path: PathBuf,
    open: impl Fn(bool) -> O + Send + Sync,
    close: impl Fn(T) -> C + Send + Sync,
) -> Result<(T, Place)>
where
    T: Send,
    O: Future<Output = Result<T>> + Send,
    C: Future<Output = ()> + Send,
{
    if !path.exists() {
        close(open(true).await?).await;
    }
    let before = Place::of(&path)?;
    let opened = open(false).await?;
    let place = Place::of(&path)?;
    if place.has_the_file_of(&before) { Ok((opened, place)) } else { Err(moved(Outcome::NotApplied)) }
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
        (Some(1), _) => (
            ErrorKind::InvalidConfig,
            "the table is missing, or is none of ours",
            "connect again, or use another file",
        ),
        (_, sqlx::Error::ColumnDecode { .. }) => {
            (ErrorKind::Unexpected, "a row is none of ours", "delete it while nobody uses the lock")
        }
        (_, sqlx::Error::PoolClosed) => return Error::closed(NAME),
        (_, sqlx::Error::PoolTimedOut) => {
            (ErrorKind::Unavailable, "all connections are in use", "use fewer locks at a time")
        }
        _ => (ErrorKind::Unavailable, "the file cannot be used", "see the cause"),
    };
    // An internal error, an abort, no memory, an interruption, and the disk: they may come when it commits.
    let is_known = code.is_some_and(|code| !matches!(code, 2 | 4 | 7 | 9 | 10));
    let outcome = if is_known { Outcome::NotApplied } else { otherwise };
    Error::new(kind, NAME).with_message(message).with_hint(hint).with_outcome(outcome).caused_by(error)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::future::ready;

    use super::*;

    /// As by a start script that removes it late.
    #[tokio::test]
    async fn a_file_that_is_replaced_once_it_is_opened_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks.db");
        let open = |_| {
            // It stays, so that no other file has its number.
            let moved = dir.path().join(random::rng().random::<u64>().to_string());
            fs::File::options().append(true).create(true).open(&path).unwrap();
            fs::rename(&path, moved).unwrap();
            fs::write(&path, "").unwrap();
            ready(Ok(()))
        };
        let error = open_in_place(path.clone(), open, ready).await.unwrap_err();
        assert!(error.message().contains("replaced"), "{error}");
    }
}
