//! What the acquisitions of one migration share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use lock_core::backend::Backend;
use lock_core::background::Background;
use lock_core::migration::{Member, MigrationSource, MigrationTarget, Reading, StoredRecord, Tombstone};
use lock_core::{Clock, Error, ErrorKind, Lease, LockName, Result, Token};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::capabilities::capabilities;
use crate::config::MigrationConfig;
use crate::error::{invalid, no_record, no_seal, no_source, no_target, not_followed};
use crate::leases::half::Half;
use crate::leases::halves::HeldGuards;
use crate::leases::later::Later;
use crate::leases::lead::{check_ahead, is_near};
use crate::leases::shadow_counts::ShadowCounts;
use crate::leases::tombstone_watch;
use crate::leases::tombstones::Tombstones;
use crate::rungs::lasting::Lasting;
use crate::rungs::process::Process;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;
use crate::rungs::time::wall_clock;

/// Both stores, and what is known of the migration between them.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) from: Arc<dyn Backend>,
    pub(crate) to: Arc<dyn Backend>,
    config: MigrationConfig,
    pub(crate) process: Arc<Process>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) shadow: ShadowCounts,
    pub(crate) held: HeldGuards,
    /// What begins for guards that are held for a while.
    pub(crate) later: Arc<Later>,
    joined: AtomicBool,
    watch: Lasting,
    follow: Lasting,
    pub(crate) cleanup: Arc<Background>,
    pub(crate) clock: Clock,
}

impl Context {
    /// Takes part in the migration. A process that may start without the record does so in the background, if the new store is
    /// unavailable now.
    pub(crate) async fn join(
        config: MigrationConfig,
        from: Arc<dyn Backend>,
        to: Arc<dyn Backend>,
    ) -> Result<Arc<Self>> {
        let process = Process::new(&config.namespace, config.rung, &from);
        process.note_ttl(from.capabilities().lease.default_ttl());
        let (cleanup, later, clock) = (Arc::default(), Arc::default(), Clock::boot());
        let (shadow, tombstones) = (ShadowCounts::default(), Tombstones::new(clock.clone()));
        let (held, joined) = (HeldGuards::default(), AtomicBool::new(false));
        let context = Arc::new(Self {
            from,
            to,
            config,
            process,
            tombstones,
            shadow,
            held,
            later,
            joined,
            watch: Lasting::default(),
            follow: Lasting::default(),
            cleanup,
            clock,
        });
        match context.take_part().await {
            Err(error)
                if error.kind() == ErrorKind::Unavailable && context.config.starts_without_record() =>
            {
                // Without it no lock is granted.
                context.from.connect().await?;
                let rung = context.config.rung.unwrap_or(Rung::Old);
                tracing::warn!(%error, %rung, "starting without the record of the migration");
            }
            taken => taken?,
        }
        Ok(context)
    }

    /// Starts what runs in the background, where it does not run: the runtime of the caller before may have ended.
    pub(crate) fn keep_tasks(self: &Arc<Self>) {
        self.watch.ensure(|| tombstone_watch::watch(Arc::downgrade(self)));
        if !self.joined.load(Ordering::Relaxed) {
            self.follow.ensure(|| take_part_later(Arc::downgrade(self)));
        }
    }

    async fn take_part(&self) -> Result<()> {
        self.to.connect().await?;
        let target = self.target()?;
        let stored = self.read_or_begin(target).await?;
        // It counts once it is clear that this process belongs to it.
        let record = Record::parse(&stored, &self.config.namespace)?;
        if record.phase != Phase::Sealed {
            self.check_source(&record).await?;
            if self.config.rung == Some(Rung::New) {
                return Err(no_seal());
            }
        }
        if !self.joined.load(Ordering::Relaxed) {
            let joined = target.join(Arc::clone(&self.process) as Arc<dyn Member>).await;
            unless_it_follows(joined)?;
            self.joined.store(true, Ordering::Relaxed);
        }
        self.process.learn(&stored).map(drop)
    }

    /// The record of the migration; the first process writes it.
    async fn read_or_begin(&self, target: &dyn MigrationTarget) -> Result<StoredRecord> {
        let until = self.clock.now() + BEGIN_LIMIT;
        loop {
            if let Some(stored) = target.read_record().await? {
                return Ok(stored);
            }
            self.from.connect().await?;
            match begin(&self.config.namespace, self.source()?, target).await {
                Ok(record) => drop(target.write_record(&record.to_bytes(), None).await?),
                // The process that has claimed the store may be about to write it.
                Err(error) if error.kind() == ErrorKind::InvalidConfig && self.clock.now() < until => {
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Refuses another old store than that of the other processes: its locks would not exclude theirs.
    async fn check_source(&self, record: &Record) -> Result<()> {
        self.from.connect().await?;
        let source = self.source()?;
        let (identity, claim) = (source.identity(), record.claim());
        let claimed = match source.claimed().await? {
            // A store that lost its data is claimed again; another store is not.
            None if identity != record.from => return Err(other_source(&identity, record)),
            None => source.claim(&claim).await?,
            Some(claimed) => claimed,
        };
        if claimed == claim { Ok(()) } else { Err(other_migration(&claimed, record)) }
    }

    pub(crate) fn source(&self) -> Result<&dyn MigrationSource> {
        self.from.migration_source().ok_or_else(|| no_source(self.from.capabilities().backend))
    }

    pub(crate) fn target(&self) -> Result<&dyn MigrationTarget> {
        self.to.migration_target().ok_or_else(|| no_target(self.to.capabilities().backend))
    }

    pub(crate) fn rung(&self, name: &LockName) -> Rung {
        self.process.rung(name)
    }

    /// The record as this lock's session knows it now, which is not older than the grant.
    pub(crate) async fn record_at(&self, lease: &dyn Lease) -> Result<Arc<Record>> {
        if !self.joined.load(Ordering::Relaxed) {
            return Err(not_followed());
        }
        match self.target()?.record_at(lease).await? {
            Some(stored) => self.process.learn(&stored),
            None => Err(no_record()),
        }
    }

    pub(crate) fn half(&self, lease: Box<dyn Lease>) -> Half {
        Half::new(lease, &self.cleanup)
    }

    /// The tombstone of a name that moves now.
    pub(crate) fn tombstone(&self, name: &LockName, newest: u64, record: &Record) -> Tombstone {
        let millis = wall_clock().as_millis();
        Tombstone {
            to: record.to.clone(),
            namespace: record.namespace.clone(),
            lock: name.clone(),
            written: UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)),
            life: self.config.tombstone_life,
            newest,
        }
    }

    /// Refuses the tombstone of another migration.
    pub(crate) fn check(&self, tombstone: &Tombstone, name: &LockName) -> Result<()> {
        let record = self.process.record().ok_or_else(not_followed)?;
        if tombstone.is_of(&record.to, &record.namespace, name) {
            return Ok(());
        }
        let Tombstone { to, namespace, lock, .. } = tombstone;
        Err(invalid(
            format!(
                "the lock moved to {to}, as {:?} in the migration {namespace:?}; this one is {:?} to {}",
                lock.as_str(),
                record.namespace,
                record.to
            ),
            "use the URL of that migration; two migrations must not share names",
        ))
    }

    /// What was read of the tombstone of a name, if a mover may rely on it without asking; called once the lock of the new
    /// store is granted, with the record as of then.
    pub(crate) fn earlier_reading(&self, name: &LockName, record: &Record) -> Option<Arc<Reading>> {
        let reading = self.tombstones.earlier(name, record)?;
        let is_current = self.source().is_ok_and(|source| source.is_current(&reading, name));
        is_current.then_some(reading)
    }

    /// Notes in the background that a lock has moved.
    pub(crate) fn note_moved(&self, name: &LockName) {
        let (to, names) = (Arc::clone(&self.to), [name.clone()]);
        self.cleanup.spawn(&Handle::current(), async move {
            let Some(target) = to.migration_target() else { return };
            if let Err(error) = target.note_moved(&names).await {
                tracing::debug!(%error, "a lock that has moved is not noted; the loss of its tombstone would not be found");
            }
        });
    }

    /// Refuses tokens that are too far ahead of the clock of the old store.
    pub(crate) async fn check_lead(&self, name: &LockName, token: Token, largest: Duration) -> Result<()> {
        if is_near(token, largest) {
            return Ok(());
        }
        check_ahead(token, self.source()?.time(name).await?, largest)
    }

    /// Refuses a time to live that one of both stores cannot honour.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        capabilities(&*self.from, &*self.to).check_lease_ttl(ttl)
    }
}

/// Accepts that the store does not answer now: the connection takes part as soon as it does, and before any lock.
pub(crate) fn unless_it_follows(joined: Result<()>) -> Result<()> {
    match joined {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            tracing::debug!(%error, "registering in the migration later");
            Ok(())
        }
        joined => joined,
    }
}

/// The record of a migration that has none yet. The old store is claimed first: so one of several processes that start at once
/// begins the migration, and the record of one that was deleted is that of the same migration again.
pub(crate) async fn begin(
    namespace: &str,
    source: &dyn MigrationSource,
    target: &dyn MigrationTarget,
) -> Result<Record> {
    let record = Record::new(namespace, source.identity(), target.identity());
    let claimed = source.claim(&record.claim()).await?;
    if claimed == record.claim() {
        return Ok(record);
    }
    record.clone().resume(&claimed).ok_or_else(|| other_migration(&claimed, &record))
}

/// Takes part in the migration as soon as the new store answers.
async fn take_part_later(context: Weak<Context>) {
    loop {
        sleep(RETRY).await;
        let Some(context) = context.upgrade() else { return };
        match context.take_part().await {
            Ok(()) => {
                tracing::info!("following the record of the migration");
                return;
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => {
                tracing::error!(%error, "the record of the migration is not followed; trying again");
            }
        }
    }
}

fn other_source(identity: &str, record: &Record) -> Error {
    invalid(
        format!(
            "the migration {:?} moves locks from {}; {identity} does not know of it",
            record.namespace, record.from
        ),
        "use the same server and prefix as the other processes, whose locks would not exclude these",
    )
}

fn other_migration(claimed: &str, record: &Record) -> Error {
    invalid(
        format!(
            "the locks of the old store take part in another migration ({claimed}), not in {}",
            record.claim()
        ),
        "two migrations must not share names: use another prefix, or the URL of that migration",
    )
}

const RETRY: Duration = Duration::from_secs(1);
/// How long another process may take from its claim to its record.
const BEGIN_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
