//! The end of the way back: the tombstones are removed, and the old store is enough again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lock_core::migration::{MigrationSource, Reading, Removal, Removed};
use lock_core::{BootInstant, ErrorKind, Result};
use tokio::time::{Instant, sleep};

use super::back::LOOK;
use super::rules::refused;
use super::{Gate, Obstacle, Operator, Progress};
use crate::leases::half::Half;
use crate::rungs::member::SessionInfo;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;
use crate::rungs::time::micros;

impl Operator {
    /// Removes all tombstones, and ends the way back. It may be called again after an error: what is removed stays removed.
    ///
    /// Each tombstone is removed while this process holds the lock of the new store, together with a raise of the last token
    /// of the old one. The pass that finds none begins one longest ttl after all sessions have seen the way back: the longest of
    /// all processes that are registered, or this one, for a process that has left with a longer one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the way back has not [begun](Self::back), and if another operator ends it meanwhile;
    /// when a store is unavailable.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, some tombstones are removed. Call it again.
    pub async fn clean(
        &self,
        longest_ttl: Option<Duration>,
        on_progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<Gate> {
        let (record, version) = match self.stored().await? {
            Some((record, version)) if record.phase == Phase::Returning => (record, version),
            Some((record, _)) if record.phase == Phase::Sealed => {
                return refused(
                    "the migration is sealed: its tombstones keep forgotten clients out, and expire by themselves",
                    "leave them",
                );
            }
            _ => return refused("the way back has not begun", "use `polylock migrate back` first"),
        };
        let unaware = self.unaware_of(&record, version).await?;
        if !unaware.is_empty() {
            return Ok(Gate::Blocked(unaware));
        }
        self.join().await?;
        // A request for a tombstone that was sent by then ends with the lease that it replaces.
        let longest = self.longest_ttl(&self.sessions().await?).max(longest_ttl.unwrap_or_default());
        let quiet = Instant::now() + longest + IN_FLIGHT;
        self.remove_all(&record, quiet, &on_progress).await?;
        let movers: Vec<_> = self.sessions().await?.iter().filter_map(still_moves).collect();
        if !movers.is_empty() {
            return Ok(Gate::Blocked(movers));
        }
        let noted = self.target()?.moved().await?;
        for names in noted.chunks(BATCH) {
            self.target()?.forget_moved(names).await?;
        }
        let mut open = record;
        open.phase = Phase::Open;
        if self.write(&open, version).await? {
            return Ok(Gate::Passed(Box::new(open)));
        }
        let changed = Obstacle::new("the record changed meanwhile", "look at the status, and clean again");
        Ok(Gate::Blocked(vec![changed]))
    }

    /// Removes tombstones until a pass that begins after `quiet` finds none.
    async fn remove_all(
        &self,
        record: &Record,
        quiet: Instant,
        on_progress: &(impl Fn(Progress) + Sync),
    ) -> Result<()> {
        let source = self.source().await?;
        let removed = AtomicUsize::new(0);
        loop {
            let began = Instant::now();
            let found = source.tombstones("").await?;
            if found.is_empty() && began >= quiet {
                return Ok(());
            }
            if found.is_empty() {
                self.wait_until(quiet, on_progress).await;
                continue;
            }
            let mut busy = 0;
            for (at, batch) in found.chunks(BATCH).enumerate() {
                // Collected first: a closure in the stream would keep this future from being spawned.
                let removals: Vec<_> =
                    batch.iter().map(|reading| self.remove(source, reading, record)).collect();
                let outcomes: Vec<_> = stream::iter(removals).buffered(AT_ONCE).collect().await;
                let mut gone = Vec::new();
                for (reading, outcome) in batch.iter().zip(outcomes) {
                    match outcome? {
                        true => gone.push(reading.tombstone.lock.clone()),
                        false => busy += 1,
                    }
                }
                self.target()?.forget_moved(&gone).await?;
                let removed = removed.fetch_add(gone.len(), Ordering::Relaxed) + gone.len();
                let left = found.len().saturating_sub((at + 1) * BATCH) + busy;
                on_progress(Progress::Tombstones { removed, left });
            }
            if busy > 0 {
                sleep(LOOK).await;
            }
        }
    }

    /// Removes one tombstone under the lock of the new store. Returns whether it is gone.
    async fn remove(&self, source: &dyn MigrationSource, reading: &Reading, record: &Record) -> Result<bool> {
        let (name, tombstone) = (&reading.tombstone.lock, &reading.tombstone);
        if !tombstone.is_of(&record.to, &record.namespace, name) {
            return refused(
                &format!(
                    "the lock {name} has the tombstone of another migration ({:?} to {})",
                    tombstone.namespace, tombstone.to
                ),
                "clean that migration, or remove the tombstone by hand once nobody relies on it",
            );
        }
        let Some(lease) = self.lock(name).await? else { return Ok(false) };
        let mut new = Half::new(lease, &self.cleanup);
        self.check_still_returning(&new, record).await?;
        let (held_until, floor) = (new.validity().until(), new.token());
        let (clock, read) = (source.time(name).await?, self.clock.now());
        let left = held_until.saturating_duration_since(read).saturating_sub(MARGIN);
        let ttl = self.from.capabilities().lease.default_ttl();
        let until = clock.saturating_add(micros(left));
        let removal = Removal { name, tombstone: &reading.tombstone, floor, until, ttl };
        // Until it is answered, the request may still arrive: also after this future was dropped, or another attempt failed.
        new.keep_until(held_until, &self.clock);
        let removed = self.until_answered(source, &removal, held_until).await?;
        let _ = new.release().await;
        Ok(removed)
    }

    /// Sends a removal until it is answered, or refused by the clock of the store if it arrives now.
    async fn until_answered(
        &self,
        source: &dyn MigrationSource,
        removal: &Removal<'_>,
        until: BootInstant,
    ) -> Result<bool> {
        loop {
            match source.remove_tombstone(removal).await {
                Ok(Removed::Done | Removed::NotThere) => return Ok(true),
                Ok(_) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Unavailable && self.clock.now() < until => {
                    tracing::debug!(%error, lock = removal.name.as_str(), "a removal was not answered; trying again");
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Refuses to remove a tombstone once another operator has ended this way back: movers may rely on it again.
    async fn check_still_returning(&self, new: &Half, record: &Record) -> Result<()> {
        let stored = self.target()?.record_at(&***new).await?;
        let now = stored.map(|stored| Record::parse(&stored, &self.namespace)).transpose()?;
        match now {
            Some(now) if now.phase == Phase::Returning && now.generation == record.generation => Ok(()),
            _ => refused("the way back has ended meanwhile, by another operator", "look at the status"),
        }
    }
}

/// A process that would write tombstones again once the way back has ended.
fn still_moves(session: &SessionInfo) -> Option<Obstacle> {
    let member = session.member.as_ref()?;
    (member.rung >= Rung::Move).then(|| {
        Obstacle::new(
            format!("{} is pinned to {}", session.who(), member.rung),
            "restart it without rung= in its URL, or with rung=dual",
        )
    })
}

const PAUSE: Duration = Duration::from_millis(50);
/// For the time between a request and its effect, beside the lease.
const IN_FLIGHT: Duration = Duration::from_secs(10);
/// Less than what the clocks of two hosts drift apart during a session timeout.
const MARGIN: Duration = Duration::from_millis(200);
pub(super) const BATCH: usize = 500;
const AT_ONCE: usize = 64;
