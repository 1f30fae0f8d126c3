//! The store that locks move from.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::Tombstone;
use crate::seam::backend::Support;
use crate::{BootInstant, Finding, Lease, LockName, Result, Token};

/// A store that locks can move from, name by name: it keeps a [`Tombstone`] in the place of each lock that has moved.
///
/// # Contract
///
/// * **A tombstone excludes.** [`Backend::acquire`](crate::Backend::acquire) fails with
///   [`Moved`](crate::ErrorKind::Moved) where one is, also for a waiter whose lock is replaced by one while it waits.
/// * **Only the holder writes one**, by a compare-and-set on its own lock.
/// * **Only its own text removes it**, and no later than asked for.
#[async_trait]
pub trait MigrationSource: Debug + Send + Sync {
    /// Whether it keeps tombstones. Where it does not, locks are held on both stores until all of them move at once.
    fn keeps_tombstones(&self) -> Support {
        Support::Yes
    }

    /// The store and the prefix of its keys, as a URL without a password.
    fn identity(&self) -> String;

    /// What [`claim`](Self::claim) noted; `None` if nothing is.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn claimed(&self) -> Result<Option<String>>;

    /// Notes that the locks of this store take part in a migration, unless it is noted that they take part in another one.
    /// Returns the text that the store has now.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn claim(&self, migration: &str) -> Result<String>;

    /// Deletes what [`claim`](Self::claim) noted, if it is this text.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn unclaim(&self, migration: &str) -> Result<()>;

    /// What would endanger a migration from this store, beyond what [`doctor`](crate::Backend::doctor) reports: missing rights,
    /// eviction, no persistence, replicas that cannot be waited for, other migrations over the same keys.
    ///
    /// # Errors
    ///
    /// When the server is unavailable.
    async fn examine(&self, migration: &str) -> Result<Vec<Finding>>;

    /// The servers that have locks of this store, or may have them after a failover: masters and their replicas, each as host and
    /// port or as the path of a socket. Those that do not answer may be missing.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when none answers.
    async fn servers(&self) -> Result<Vec<String>>;

    /// Who may still acquire locks of this store, on any of its servers: nobody once it is closed. The user of this connection
    /// counts, too.
    ///
    /// # Errors
    ///
    /// When a server is unavailable, or does not tell.
    async fn writers(&self) -> Result<Vec<Writer>>;

    /// The longest remaining life of the locks that are held; `None` if there is none. Tombstones do not count.
    ///
    /// # Errors
    ///
    /// When a server is unavailable or refuses.
    async fn longest_lease(&self) -> Result<Option<Duration>>;

    /// The largest token that the store remembers, of all locks; `None` if it remembers none. It may be one that it was
    /// [raised](crate::Lease::raise_token) to.
    ///
    /// # Errors
    ///
    /// When a server is unavailable or refuses.
    async fn largest_token(&self) -> Result<Option<Token>>;

    /// Replaces the lock of an exclusive lease by a tombstone, and ends the lease. It first stops and joins the renewal.
    /// Waiters are notified. Where the store has replicas, it waits until all of them have the tombstone.
    ///
    /// It may be called again after its future was dropped or failed, until it returns `Ok`. A request that arrives late
    /// does no harm: it still needs the lock of this lease.
    ///
    /// # Errors
    ///
    /// [`Unexpected`](crate::ErrorKind::Unexpected) for a lease of another backend or mode;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the outcome is unknown, or replicas do not answer.
    async fn swap(&self, lease: &mut dyn Lease, tombstone: &Tombstone) -> Result<Swapped>;

    /// Reads the tombstone of a lock, and refreshes it to its whole life if less than half of that is left. A refresh never
    /// creates one.
    ///
    /// # Errors
    ///
    /// [`Unexpected`](crate::ErrorKind::Unexpected) for a tombstone of a later format; when the server is unavailable or
    /// refuses.
    async fn read_tombstone(&self, name: &LockName) -> Result<Option<Reading>>;

    /// Whether the connection over which a tombstone was read is still the present one. A new connection may lead to a
    /// server that was restarted without its data, so what was read before does not count.
    ///
    /// A connection that is lost and not replaced counts as the present one.
    fn is_current(&self, reading: &Reading, name: &LockName) -> bool;

    /// Removes a tombstone, and raises the last token of the lock, in one step.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses. With an unknown outcome, read the tombstone after the
    /// [deadline](Removal::until).
    async fn remove_tombstone(&self, removal: &Removal<'_>) -> Result<Removed>;

    /// The tombstones of all locks whose names begin with this prefix. None of them is refreshed.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn tombstones(&self, prefix: &str) -> Result<Vec<Reading>>;

    /// The clock of the store, from which its tokens are made: microseconds since 1970.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn time(&self, name: &LockName) -> Result<u64>;
}

/// A user or client that may acquire locks of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Writer {
    /// The server, as host and port.
    pub server: String,
    /// The user.
    pub user: String,
    /// The number of connections that this user has there now.
    pub connections: usize,
}

impl Writer {
    /// A user of a server who may acquire locks.
    #[must_use]
    pub fn new(server: impl Into<String>, user: impl Into<String>, connections: usize) -> Self {
        Self { server: server.into(), user: user.into(), connections }
    }
}

/// The outcome of [`MigrationSource::swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swapped {
    /// The tombstone is written.
    Done {
        /// It lives at least until then.
        until: BootInstant,
    },
    /// The lease had ended: nothing was written.
    NotHeld,
}

/// A tombstone that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// What it says.
    pub tombstone: Tombstone,
    /// It lives at least until then: counted from before the request was sent.
    pub until: BootInstant,
    /// When the request was sent.
    pub sent: BootInstant,
    /// The connection over which it was read.
    pub connection: u64,
}

impl Reading {
    /// A reading over this connection, by a request that was sent then.
    #[must_use]
    pub const fn new(tombstone: Tombstone, until: BootInstant, sent: BootInstant, connection: u64) -> Self {
        Self { tombstone, until, sent, connection }
    }

    /// Whether more than half of the whole life is left.
    #[must_use]
    pub fn is_fresh(&self, now: BootInstant) -> bool {
        self.until.saturating_duration_since(now) > self.tombstone.life / 2
    }
}

/// A removal of a tombstone.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the parameters of one method")]
pub struct Removal<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The tombstone: another one stays.
    pub tombstone: &'a Tombstone,
    /// Later tokens of the lock are larger.
    pub floor: Token,
    /// The clock of the store by which the removal is refused, in microseconds since 1970.
    pub until: u64,
    /// The longest time to live of a lease, for which the store keeps the last token at least.
    pub ttl: Duration,
}

/// The outcome of [`MigrationSource::remove_tombstone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Removed {
    /// It is removed.
    Done,
    /// There was none, or another one.
    NotThere,
    /// The request came after its deadline.
    TooLate,
}
