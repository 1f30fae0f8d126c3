//! What a process knows of the migration, and what it registers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lock_core::backend::Backend;
use lock_core::migration::{Member, StoredRecord};
use lock_core::poison::lock;
use lock_core::{LockName, OwnerId, OwnerInfo, Result, Token};
use tokio::sync::watch;

use crate::rungs::member::MemberInfo;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;
use crate::rungs::rungs_by_name::RungsByName;
use crate::rungs::source_watch::SourceWatch;

/// What a process knows of the migration, and which guards it has.
#[derive(Debug)]
pub(crate) struct Process {
    namespace: String,
    pinned: Option<Rung>,
    id: OwnerId,
    owner: OwnerInfo,
    /// The newest record that any session has seen.
    known: watch::Sender<Option<Known>>,
    /// The number of guards on each rung.
    guards: [AtomicUsize; Rung::ALL.len()],
    /// In ms.
    longest_ttl: AtomicU64,
    /// Of the old store, rounded up.
    largest_token: AtomicU64,
    source: Arc<SourceWatch>,
    double_grants: AtomicU64,
    /// The rung that was registered last, and since when it is in force.
    since: Mutex<Option<(Rung, SystemTime)>>,
}

#[derive(Clone, Debug)]
struct Known {
    stored: StoredRecord,
    record: Arc<Record>,
    rungs: Arc<RungsByName>,
}

impl Process {
    pub(crate) fn new(namespace: &str, pinned: Option<Rung>, from: &Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            namespace: namespace.to_owned(),
            pinned,
            id: OwnerId::random(),
            owner: OwnerInfo::this_process(),
            known: watch::Sender::new(None),
            guards: Default::default(),
            longest_ttl: AtomicU64::new(0),
            largest_token: AtomicU64::new(0),
            source: SourceWatch::new(from),
            double_grants: AtomicU64::new(0),
            since: Mutex::default(),
        })
    }

    /// The newest record that is known; none before the first one was read.
    pub(crate) fn record(&self) -> Option<Arc<Record>> {
        self.known.borrow().as_ref().map(|known| Arc::clone(&known.record))
    }

    /// The rung of a name for the next acquisition.
    pub(crate) fn rung(&self, name: &LockName) -> Rung {
        self.in_force(|known| known.rungs.rung(name))
    }

    /// The rung of a name by this record, which is open.
    pub(crate) fn rung_in(&self, record: &Arc<Record>, name: &LockName) -> Rung {
        self.pinned.unwrap_or_else(|| match &*self.known.borrow() {
            Some(known) if Arc::ptr_eq(&known.record, record) => known.rungs.rung(name),
            _ => record.rung(name),
        })
    }

    /// The rung in force by the record, if that counts.
    fn in_force(&self, by_rules: impl FnOnce(&Known) -> Rung) -> Rung {
        match &*self.known.borrow() {
            Some(Known { record, .. }) if record.phase == Phase::Sealed => Rung::New,
            Some(known) => self.pinned.unwrap_or_else(|| by_rules(known)),
            // Every mixture with it excludes, and it needs no record.
            None => self.pinned.unwrap_or(Rung::Old),
        }
    }

    /// Parses a record, and keeps it if it is the newest.
    pub(crate) fn learn(&self, stored: &StoredRecord) -> Result<Arc<Record>> {
        if let Some(Known { stored: known, record, .. }) = &*self.known.borrow()
            && known == stored
        {
            return Ok(Arc::clone(record));
        }
        let record = Arc::new(Record::parse(stored, &self.namespace)?);
        let rungs = Arc::new(RungsByName::of(&record));
        self.known.send_if_modified(|known| {
            // A record that was deleted and written again counts its versions anew, and has a later generation or another id.
            let is_newer = known.as_ref().is_none_or(|known| {
                let order = |stored: &StoredRecord, record: &Record| (record.generation, stored.version);
                known.record.id != record.id || order(&known.stored, &known.record) < order(stored, &record)
            });
            if is_newer {
                *known = Some(Known { stored: stored.clone(), record: Arc::clone(&record), rungs });
            }
            is_newer
        });
        Ok(record)
    }

    /// Waits until the seal has been seen.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn sealed(&self) {
        let is_sealed =
            |known: &Option<Known>| known.as_ref().is_some_and(|known| known.record.phase == Phase::Sealed);
        // The sender lives as long as this process.
        let _ = self.known.subscribe().wait_for(is_sealed).await;
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.record().is_some_and(|record| record.phase == Phase::Sealed)
    }

    /// Notes the time to live of a lease on the old store.
    pub(crate) fn note_ttl(&self, ttl: Duration) {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if self.longest_ttl.load(Ordering::Relaxed) < millis {
            self.longest_ttl.fetch_max(millis, Ordering::Relaxed);
        }
    }

    /// The longest time to live of a lease that this process had on the old store.
    pub(crate) fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.longest_ttl.load(Ordering::Relaxed))
    }

    /// Notes a token of the old store. Rounded up, it is registered some times an hour, and not for each lock.
    pub(crate) fn note_token(&self, token: Token) {
        let token = token.get().checked_next_multiple_of(ROUNDED_TO).unwrap_or(u64::MAX);
        if self.largest_token.load(Ordering::Relaxed) < token {
            self.largest_token.fetch_max(token, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_double_grant(&self) {
        self.double_grants.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn double_grants(&self) -> u64 {
        self.double_grants.load(Ordering::Relaxed)
    }

    /// Counts a guard on this rung, until the returned value is dropped.
    pub(crate) fn count(self: &Arc<Self>, rung: Rung) -> CountedGuard {
        self.guards[rung as usize].fetch_add(1, Ordering::Relaxed);
        CountedGuard { process: Arc::clone(self), rung }
    }

    fn lowest_held(&self) -> Option<Rung> {
        Rung::ALL.into_iter().find(|&rung| self.guards[rung as usize].load(Ordering::Relaxed) > 0)
    }

    fn since(&self, rung: Rung) -> SystemTime {
        let mut since = lock(&self.since);
        match *since {
            Some((before, since)) if before == rung => since,
            _ => since.insert((rung, SystemTime::now())).1,
        }
    }
}

impl Member for Process {
    fn registration(&self, seen: Option<&StoredRecord>) -> Vec<u8> {
        let seen = seen.and_then(|stored| match self.learn(stored) {
            Ok(record) => Some((stored.version, record)),
            Err(error) => {
                tracing::warn!(%error, "the record of the migration is not followed");
                None
            }
        });
        let rung = self.in_force(|known| known.record.lowest());
        // After the seal nobody asks.
        let (old_servers, reaches_old) =
            if self.is_sealed() { Default::default() } else { self.source.seen() };
        let info = MemberInfo {
            process: self.id.to_string(),
            host: self.owner.host.clone(),
            pid: self.owner.pid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            record: seen.as_ref().map(|(version, _)| *version),
            generation: seen.as_ref().map_or(0, |(_, record)| record.generation),
            phase: seen.as_ref().map(|(_, record)| record.phase),
            pinned: self.pinned,
            rung,
            since: self.since(rung),
            behind: self.lowest_held().filter(|&held| held < rung),
            longest_ttl_ms: self.longest_ttl.load(Ordering::Relaxed),
            largest_token: self.largest_token.load(Ordering::Relaxed),
            old_servers,
            reaches_old,
            double_grants: self.double_grants(),
        };
        info.to_bytes()
    }
}

/// A guard that is counted.
#[derive(Debug)]
pub(crate) struct CountedGuard {
    process: Arc<Process>,
    pub(crate) rung: Rung,
}

impl CountedGuard {
    /// Whether the next acquisition of this name is on the same rung.
    pub(crate) fn is_in_force(&self, name: &LockName) -> bool {
        self.process.rung(name) == self.rung
    }
}

impl Drop for CountedGuard {
    fn drop(&mut self) {
        self.process.guards[self.rung as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Some ten minutes, in microseconds.
const ROUNDED_TO: u64 = 600_000_000;
