//! What the acquisitions of one migration share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::backend::Backend;
use lock_core::background::Background;
use lock_core::migration::{Member, MigrationSource, MigrationTarget, Reading, StoredRecord, Tombstone};
use lock_core::{Clock, Error, ErrorKind, Lease, LockName, Result};
use tokio::runtime::Handle;

use crate::config::MigrationConfig;
use crate::half::Half;
use crate::record::{BACKEND, Phase, Record};
use crate::rung::Rung;

/// Both stores, and what is known of the migration between them.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) from: Arc<dyn Backend>,
    pub(crate) to: Arc<dyn Backend>,
    /// The new store, as tombstones name it.
    identity: String,
    config: MigrationConfig,
    process: Arc<Process>,
    readings: Mutex<HashMap<LockName, (Reading, u64)>>,
    pub(crate) cleanup: Arc<Background>,
    pub(crate) runtime: Handle,
    pub(crate) clock: Clock,
}

/// What is known of the record, in the session that learned of it last.
#[derive(Debug)]
struct Process {
    namespace: String,
    record: Mutex<Option<(StoredRecord, Arc<Record>)>>,
}

impl Context {
    pub(crate) async fn join(
        config: MigrationConfig,
        from: Arc<dyn Backend>,
        to: Arc<dyn Backend>,
        runtime: Handle,
    ) -> Result<Arc<Self>> {
        let process = Arc::new(Process { namespace: config.namespace.clone(), record: Mutex::default() });
        let target = to.migration_target().ok_or_else(no_store)?;
        let identity = target.identity();
        if let Some(stored) = target.read_record().await? {
            process.learn(&stored)?;
        }
        target.join(Arc::clone(&process) as Arc<dyn Member>).await?;
        let (readings, cleanup, clock) = (Mutex::default(), Arc::default(), Clock::boot());
        Ok(Arc::new(Self { from, to, identity, config, process, readings, cleanup, runtime, clock }))
    }

    pub(crate) fn source(&self) -> Result<&dyn MigrationSource> {
        self.from.migration_source().ok_or_else(no_store)
    }

    pub(crate) fn target(&self) -> Result<&dyn MigrationTarget> {
        self.to.migration_target().ok_or_else(no_store)
    }

    /// The rung of a name for the next acquisition.
    pub(crate) fn rung(&self, name: &LockName) -> Rung {
        let record = lock(&self.process.record);
        let record = record.as_ref().map(|(_, record)| record);
        if record.is_some_and(|record| record.phase == Phase::Sealed) {
            return Rung::New;
        }
        self.config.rung.unwrap_or_else(|| record.map_or(Rung::Old, |record| record.rung(name)))
    }

    /// The record as this lock's session knows it now, which is not older than the grant. That of a migration that nobody has
    /// set up yet is open.
    pub(crate) async fn record_at(&self, lease: &dyn Lease) -> Result<Arc<Record>> {
        match self.target()?.record_at(lease).await? {
            Some(stored) => self.process.learn(&stored),
            None if lock(&self.process.record).is_some() => Err(no_record()),
            None => Ok(Arc::new(Record::new(&*self.config.namespace))),
        }
    }

    pub(crate) fn half(&self, lease: Box<dyn Lease>) -> Half {
        Half::new(lease, &self.cleanup, &self.runtime)
    }

    /// The tombstone of a name that moves now.
    pub(crate) fn tombstone(&self, name: &LockName, newest: u64) -> Tombstone {
        let millis = wall_clock().as_millis();
        Tombstone {
            to: self.identity.clone(),
            namespace: self.config.namespace.clone(),
            lock: name.clone(),
            written: UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)),
            life: self.config.tombstone_life,
            newest,
        }
    }

    /// Refuses the tombstone of another migration.
    pub(crate) fn check(&self, tombstone: &Tombstone, name: &LockName) -> Result<()> {
        if tombstone.is_of(&self.identity, &self.config.namespace, name) {
            return Ok(());
        }
        let Tombstone { to, namespace, lock, .. } = tombstone;
        Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
            .with_message(format!(
                "the lock moved to {to}, as {:?} in the migration {namespace:?}; this one is {:?} to {}",
                lock.as_str(),
                self.config.namespace,
                self.identity
            ))
            .with_hint("use the URL of that migration; two migrations must not share names"))
    }

    /// What was read of the tombstone of a name, if a mover may rely on it without asking; called once the lock of the new
    /// store is granted, with the record as of then.
    pub(crate) fn earlier_reading(&self, name: &LockName, record: &Record) -> Option<Reading> {
        let (reading, generation) = lock(&self.readings).get(name).cloned()?;
        let counts = record.phase == Phase::Open && generation == record.generation;
        let is_current = self.source().is_ok_and(|source| source.is_current(&reading, name));
        (counts && is_current && reading.is_fresh(self.clock.now())).then_some(reading)
    }

    /// Whether it is time to read a tombstone again, if its store answers.
    pub(crate) fn is_outdated(&self, reading: &Reading) -> bool {
        self.clock.now().saturating_duration_since(reading.sent) >= READ_AGAIN
    }

    /// Keeps what a mover has read, for later acquisitions.
    pub(crate) fn keep(&self, name: &LockName, reading: Reading, record: &Record) {
        if record.phase == Phase::Open {
            lock(&self.readings).insert(name.clone(), (reading, record.generation));
        }
    }

    pub(crate) fn forget(&self, name: &LockName) {
        lock(&self.readings).remove(name);
    }
}

impl Process {
    /// Parses a record, and keeps it if it is the newest.
    fn learn(&self, stored: &StoredRecord) -> Result<Arc<Record>> {
        let mut newest = lock(&self.record);
        if let Some((known, record)) = &*newest
            && known == stored
        {
            return Ok(Arc::clone(record));
        }
        let parsed = Arc::new(Record::parse(stored, &self.namespace)?);
        if newest.as_ref().is_none_or(|(known, _)| known.version < stored.version) {
            *newest = Some((stored.clone(), Arc::clone(&parsed)));
        }
        Ok(parsed)
    }
}

impl Member for Process {
    fn registration(&self, seen: Option<&StoredRecord>) -> Vec<u8> {
        let generation = match seen.map(|stored| self.learn(stored)) {
            None => 0,
            Some(Ok(record)) => record.generation,
            Some(Err(error)) => {
                tracing::warn!(%error, "the record of the migration is not followed");
                0
            }
        };
        serde_json::json!({ "pid": std::process::id(), "generation": generation }).to_string().into_bytes()
    }
}

/// The time since 1970, by the clock of this host.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_record() -> Error {
    Error::new(ErrorKind::Unexpected, BACKEND)
        .with_message("the record of the migration was deleted: it is unknown which tombstones count")
        .with_hint("write it again, with a larger generation")
}

fn no_store() -> Error {
    Error::new(ErrorKind::Unsupported, BACKEND).with_message("locks cannot move between these stores")
}

/// For how long a tombstone is relied on, while its store answers, until it is read again.
const READ_AGAIN: Duration = Duration::from_secs(60);
