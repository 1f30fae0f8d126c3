//! Registers in a table of MySQL or MariaDB: locks beside the data that they guard.

pub(crate) mod config;
mod error;
mod server;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{Error, ErrorKind, Finding, Outcome, Result, random};
use rand::Rng;
use sqlx::Row;
use sqlx::mysql::{MySql, MySqlArguments, MySqlRow};
use sqlx::query::Query;
use tokio::time::{Instant, timeout};

use self::error::{DUPLICATE, Failed, NAME};
use self::server::LONGEST_TABLE;
use self::sessions::{Login, Sessions};
use crate::adapters::own_thread::OwnThread;
use crate::adapters::records::of_records;
use crate::error::overtaken;
use crate::registers::{About, Registers, Version, Versioned};

/// A read is a round trip, and a look at a primary key in memory.
const POLL: Duration = Duration::from_millis(25);
/// How many keys are listed at a time: with long names a megabyte.
const PAGE: i64 = 1_000;
/// How often a request is sent that breaks its connection, or finds a server that does not write any more.
const TRIES: u32 = 3;
/// A version follows the one before by no more than this.
const LONGEST_STEP: i64 = 1 << 20;

/// Values in a table of MySQL or MariaDB.
#[derive(Debug)]
pub struct Mysql {
    thread: OwnThread,
    table: Arc<Table>,
}

/// The statements, each of which is a transaction.
#[derive(Debug)]
struct Table {
    sessions: Sessions,
    /// How long all tries of a request may take.
    patience: Duration,
    read: String,
    insert: String,
    update: String,
    list: String,
    count: String,
}

/// What is written: a version that never was one of this key, and a value that no other swap has.
struct Written<'a> {
    key: &'a [u8],
    old: Option<i64>,
    new: i64,
    value: &'a [u8],
}

impl Written<'_> {
    /// Whether this swap is the last one, by what is there, though the last of its statements was refused; an error if an earlier one is in
    /// doubt.
    fn settled(&self, found: Option<(i64, Vec<u8>)>, in_doubt: bool) -> Result<bool> {
        let is_ours = found.is_some_and(|(version, value)| version == self.new && value == self.value);
        if is_ours || !in_doubt { Ok(is_ours) } else { Err(overtaken(NAME)) }
    }
}

impl Mysql {
    /// Connects to the first of the servers that can be written, and makes the table if it does not exist.
    pub(crate) async fn open(sessions: Sessions, table: &str, limit: Duration) -> Result<Self> {
        let thread = OwnThread::start(NAME)?;
        let table = Arc::new(Table::new(sessions, table, limit));
        let mysql = Self { thread, table: Arc::clone(&table) };
        mysql.thread.run(Outcome::NotApplied, async move { table.sessions.check().await }).await?;
        Ok(mysql)
    }
}

impl Registers for Mysql {
    fn about(&self) -> About {
        About { passes_over: self.table.sessions.passes_over(), ..about() }
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let (table, key) = (Arc::clone(&self.table), key.to_owned());
        let request = async move {
            let found = table.read(key.as_bytes()).await?;
            Ok(found.map(|(version, value)| Versioned::new(version.cast_unsigned().into(), value)))
        };
        self.thread.run(Outcome::NotApplied, request).await
    }

    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        let old = match expected.map(|version| version.number().map(u64::cast_signed)) {
            None => None,
            Some(Some(old)) => Some(old),
            // It is none of this store.
            Some(None) => return Ok(None),
        };
        let (table, key, value) = (Arc::clone(&self.table), key.to_owned(), value.to_owned());
        let request = async move {
            let new = match old {
                Some(old) => old.checked_add(random::rng().random_range(1..=LONGEST_STEP)),
                // At random, so that no version comes back after somebody has deleted the row.
                None => Some(i64::from(random::rng().random::<u32>())),
            };
            let Some(new) = new else { return Err(no_more_versions()) };
            let written = Written { key: key.as_bytes(), old, new, value: &value };
            let swapped = table.swap(&written).await?;
            Ok(swapped.then(|| new.cast_unsigned().into()))
        };
        self.thread.run(Outcome::Unknown, request).await
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let (table, prefix, after) = (Arc::clone(&self.table), prefix.to_owned(), after.to_owned());
        self.thread.run(Outcome::NotApplied, async move { table.list(&prefix, &after).await }).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let table = Arc::clone(&self.table);
        let examined = async move {
            let mut findings = table.sessions.doctor().await?;
            findings.push(of_records(table.count().await));
            Ok(findings)
        };
        self.thread.run(Outcome::NotApplied, examined).await
    }

    async fn close(&self) {
        let table = Arc::clone(&self.table);
        _ = self.thread.run(Outcome::NotApplied, async move { table.sessions.close().map(Ok).await }).await;
    }
}

impl Table {
    fn new(sessions: Sessions, table: &str, limit: Duration) -> Self {
        Self {
            sessions,
            patience: limit * 9 / 10,
            read: format!("SELECT version, value FROM `{table}` WHERE name = ?"),
            insert: format!("INSERT INTO `{table}` (version, value, name) VALUES (?, ?, ?)"),
            update: format!("UPDATE `{table}` SET version = ?, value = ? WHERE name = ? AND version = ?"),
            list: format!("SELECT name FROM `{table}` WHERE name >= ? AND name > ? ORDER BY name LIMIT ?"),
            count: format!(
                "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
            ),
        }
    }

    async fn read(&self, key: &[u8]) -> Result<Option<(i64, Vec<u8>)>> {
        self.until_answered(|| self.try_read(key)).await
    }

    /// Reads once more if that may do better.
    async fn until_answered<T, F: Future<Output = Result<T, Failed>> + Send>(
        &self,
        read: impl Fn() -> F + Send + Sync,
    ) -> Result<T> {
        let deadline = Instant::now() + self.patience;
        let mut tries = 1;
        loop {
            match read().await {
                Err(failed) if self.tries_again(&failed, &mut tries, deadline) => {}
                read => return read.map_err(|failed| failed.error.with_outcome(Outcome::NotApplied)),
            }
        }
    }

    async fn try_read(&self, key: &[u8]) -> Result<Option<(i64, Vec<u8>)>, Failed> {
        let rows = self.rows(sqlx::query(&self.read).bind(key)).await?;
        let row = |row: &MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.first().map(row).transpose().map_err(|error| Failed::new(error, false))
    }

    /// What a statement returns that reads.
    async fn rows(&self, read: Query<'_, MySql, MySqlArguments>) -> Result<Vec<MySqlRow>, Failed> {
        let limit = self.sessions.limit();
        let mut session = self.sessions.take().await?;
        let rows = timeout(limit, read.fetch_all(&mut session.connection)).await;
        self.sessions.settle(session, limit, rows)
    }

    /// Writes if the version is still the old one.
    ///
    /// A statement whose outcome is unknown is sent again, until one is answered. One that was refused was executed all the same if the value
    /// is there, as no two swaps have the same one: it was sent twice, by this or by something on the way.
    async fn swap(&self, written: &Written<'_>) -> Result<bool> {
        let deadline = Instant::now() + self.patience;
        let (mut tries, mut in_doubt) = (1, false);
        loop {
            match self.try_swap(written).await {
                Ok(true) => return Ok(true),
                Ok(false) => {
                    let found = self.read(written.key).await;
                    let found = found.map_err(|error| error.with_outcome(Outcome::Unknown))?;
                    return written.settled(found, in_doubt);
                }
                Err(failed) => {
                    in_doubt |= failed.error.outcome() != Outcome::NotApplied;
                    if !self.tries_again(&failed, &mut tries, deadline) {
                        let outcome = if in_doubt { Outcome::Unknown } else { Outcome::NotApplied };
                        return Err(failed.error.with_outcome(outcome));
                    }
                }
            }
        }
    }

    /// One statement, which commits by itself. Whether it has written.
    async fn try_swap(&self, written: &Written<'_>) -> Result<bool, Failed> {
        let limit = self.sessions.limit_of_writes();
        let mut session = self.sessions.take().await?;
        let sql = if written.old.is_some() { &self.update } else { &self.insert };
        let mut swap = sqlx::query::<MySql>(sql).bind(written.new).bind(written.value).bind(written.key);
        if let Some(old) = written.old {
            swap = swap.bind(old);
        }
        let swapped = timeout(limit, swap.execute(&mut session.connection)).await;
        match self.sessions.settle(session, limit, swapped) {
            Ok(done) => Ok(done.rows_affected() == 1),
            Err(failed) if written.old.is_none() && failed.code == Some(DUPLICATE) => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let list =
            || self.rows(sqlx::query(&self.list).bind(prefix.as_bytes()).bind(after.as_bytes()).bind(PAGE));
        let rows = self.until_answered(list).await?;
        let names = rows.iter().filter_map(|row| String::from_utf8(row.try_get(0).ok()?).ok());
        Ok(names.take_while(|name| name.starts_with(prefix)).collect())
    }

    /// How many rows there are, as the server estimates it: to count millions takes seconds.
    async fn count(&self) -> Result<u64> {
        let rows = self.until_answered(|| self.rows(sqlx::query(&self.count))).await?;
        let count = rows.first().and_then(|row| row.try_get_unchecked::<Option<u64>, _>(0).ok().flatten());
        count
            .ok_or_else(|| Error::new(ErrorKind::Unexpected, NAME).with_message("the server has no estimate"))
    }

    /// Whether another session may do better, and there is time for it.
    fn tries_again(&self, failed: &Failed, tries: &mut u32, deadline: Instant) -> bool {
        *tries += 1;
        failed.may_pass && *tries <= TRIES && Instant::now() + self.sessions.limit() < deadline
    }
}

pub(crate) fn about() -> About {
    About::new(NAME, POLL)
}

fn no_more_versions() -> Error {
    Error::new(ErrorKind::Exhausted, NAME)
        .with_message("the version of the record is the last one")
        .with_hint("delete the row while nobody uses the lock")
        .with_outcome(Outcome::NotApplied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_that_was_refused_was_executed_if_its_version_and_its_value_are_there() {
        let written = Written { key: b"a", old: Some(1), new: 7, value: b"ours" };
        let found = |version, value: &[u8]| Some((version, value.to_vec()));
        assert!([true, false].iter().all(|in_doubt| written.settled(found(7, b"ours"), *in_doubt).unwrap()));
        for other in [found(7, b"other"), found(8, b"ours"), None] {
            assert!(!written.settled(other.clone(), false).unwrap());
            let error = written.settled(other, true).unwrap_err();
            assert_eq!((error.outcome(), error.hint()), (Outcome::Unknown, Some("try again")), "{error}");
        }
    }
}
