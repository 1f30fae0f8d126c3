//! The store that locks move to, which also keeps the record of the migration.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Finding, Lease, LockName, Result};

/// A store that locks can move to. It keeps one small record for all processes, and the list of those that take part.
///
/// # Contract
///
/// * **Seen before any grant.** After [`join`](Self::join), every session that has locks registers the member and watches the
///   record before it is granted a lock. So the record [as of a grant](Self::record_at) is not older than the grant.
/// * **Registered as long as the locks last.** What a session registered ends with it, and not before its locks.
#[async_trait]
pub trait MigrationTarget: Debug + Send + Sync {
    /// The store and the directory of its locks, as a URL without a password: what tombstones name.
    fn identity(&self) -> String;

    /// Takes part in the migration from now on: registers the member, follows the record, and does both again in each session
    /// that follows or has locks.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if this connection takes part already; when the server refuses. If it is
    /// [unavailable](crate::ErrorKind::Unavailable), the connection takes part all the same, as soon as the server answers.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection takes no part.
    async fn join(&self, member: Arc<dyn Member>) -> Result<()>;

    /// The record as of a time no earlier than the grant of this lease; `None` if it does not exist. No round trip, unless
    /// it has just changed.
    ///
    /// # Errors
    ///
    /// [`Unexpected`](crate::ErrorKind::Unexpected) for a lease of another backend; when the server is unavailable.
    async fn record_at(&self, lease: &dyn Lease) -> Result<Option<StoredRecord>>;

    /// The age of a lock that was granted, with everything that this process has raised so far. No round trip, unless the
    /// tokens have just been raised.
    ///
    /// # Errors
    ///
    /// [`Unexpected`](crate::ErrorKind::Unexpected) for a lease of another backend; when the server is unavailable.
    async fn age(&self, lease: &dyn Lease) -> Result<LockAge>;

    /// Reads the record, as a quorum knows it.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn read_record(&self) -> Result<Option<StoredRecord>>;

    /// Writes the record if its version is still `version`, or if it does not exist yet for `None`. Returns whether it was
    /// written.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses. With an unknown outcome it may have been written: read it.
    async fn write_record(&self, data: &[u8], version: Option<i32>) -> Result<bool>;

    /// What the sessions of all processes have registered.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn members(&self) -> Result<Vec<MemberState>>;

    /// Notes that these locks have moved here, so that the loss of their tombstones is found. To note one again changes nothing.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses. Some of them may be noted.
    async fn note_moved(&self, names: &[LockName]) -> Result<()>;

    /// The locks that are noted as moved.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn moved(&self) -> Result<Vec<LockName>>;

    /// Deletes the notes of these locks, whose tombstones are removed.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses. Some of them may be deleted.
    async fn forget_moved(&self, names: &[LockName]) -> Result<()>;

    /// What would endanger a migration to this store, beyond what [`doctor`](crate::Backend::doctor) reports: missing rights,
    /// other migrations over the same locks.
    ///
    /// # Errors
    ///
    /// When the server is unavailable.
    async fn examine(&self) -> Result<Vec<Finding>>;
}

/// A process that takes part in a migration.
pub trait Member: Debug + Send + Sync {
    /// What a session registers: once it has seen this record, again when the record changes, and whenever the text is another
    /// one, up to a second later.
    ///
    /// It is called before the registration is sent: what was known before does not count any more in this session.
    fn registration(&self, seen: Option<&StoredRecord>) -> Vec<u8>;
}

/// The record of a migration, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredRecord {
    /// Its text.
    pub data: Arc<[u8]>,
    /// How often it was written.
    pub version: i32,
}

impl StoredRecord {
    /// A record of this version.
    #[must_use]
    pub const fn new(data: Arc<[u8]>, version: i32) -> Self {
        Self { data, version }
    }
}

/// What one session of a process has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberState {
    /// The session.
    pub session: String,
    /// What [`Member::registration`] returned.
    pub data: Vec<u8>,
}

impl MemberState {
    /// What this session has registered.
    #[must_use]
    pub const fn new(session: String, data: Vec<u8>) -> Self {
        Self { session, data }
    }
}

/// The age of a lock that was granted: transactions of the store, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockAge {
    /// The transaction from which its token is made.
    pub created: u64,
    /// That transaction, or the one that last raised the tokens, whichever is newer.
    pub newest: u64,
}

impl LockAge {
    /// The age of a lock.
    #[must_use]
    pub const fn new(created: u64, newest: u64) -> Self {
        Self { created, newest }
    }
}
