//! How a migration stands.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lock_core::migration::{MigrationSource, Reading};
use lock_core::{ErrorKind, Holder, LockName, LockState, Result};
use serde::Serialize;
use tokio::time::sleep;

use super::{FinishTerms, Obstacle, Operator};
use crate::leases::lead::check_lead;
use crate::rungs::member::SessionInfo;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;

/// How a migration stands.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The namespace.
    pub namespace: String,
    /// The record; none before the first process has written it.
    pub record: Option<Record>,
    /// The version of the record.
    pub version: Option<i32>,
    /// What the sessions of all processes have registered.
    pub sessions: Vec<SessionInfo>,
    /// The number of locks that have moved.
    pub moved: usize,
    /// Their tombstones; none if the old store cannot be asked.
    pub tombstones: Option<TombstoneCount>,
    /// Locks that have moved, and have no tombstone any more: clients that only know the old store may hold them beside others.
    pub lost_tombstones: Vec<String>,
    /// Locks that are held on the old store alone, though their rung is `dual` or `move`.
    pub stragglers: Vec<Straggler>,
    /// Why stragglers were not looked for, if they were not.
    pub stragglers_unknown: Option<String>,
    /// How often shadow locks found that the old store had granted a lock twice.
    pub double_grants: u64,
    /// Why the old store could not be asked.
    pub old_store: Option<String>,
    /// The next rung for the names on the lowest one; none at the end.
    pub next: Option<Rung>,
    /// What blocks that step, or should be looked at before it.
    pub obstacles: Vec<Obstacle>,
}

/// The tombstones on the old store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TombstoneCount {
    /// Their number.
    pub count: usize,
    /// The shortest remaining life, in seconds.
    pub shortest_life_s: Option<u64>,
    /// The number of those with less than a quarter of their life left: nobody has used the lock for long, or the old store
    /// does not answer.
    pub nearly_expired: usize,
}

/// A lock that is held on the old store alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Straggler {
    /// The lock.
    pub lock: String,
    /// Its holder, as far as it is known.
    pub holder: String,
}

impl Operator {
    /// How the migration stands, and what blocks the next step.
    ///
    /// It looks at every tombstone, and twice at up to some hundred locks that are held.
    ///
    /// # Errors
    ///
    /// When the new store is unavailable, or the record is of another migration or version. What the old store refuses is a
    /// part of the status.
    pub async fn status(&self) -> Result<Status> {
        let (mut status, noted) = self.look_at_new_store().await?;
        if let Some(record) = status.record.clone().filter(|record| record.phase != Phase::Sealed)
            && let Err(error) = self.look_at_old_store(&mut status, &record, noted).await
        {
            status.old_store = Some(error.to_string());
        }
        status.obstacles = self.obstacles(&status).await?;
        Ok(status)
    }

    /// The part of the [status](Self::status) that the new store knows: the record and the sessions. Of the old store it is only
    /// asked what it can do, and no obstacles are looked for.
    ///
    /// # Errors
    ///
    /// When the new store is unavailable, or the record is of another migration or version.
    pub async fn brief_status(&self) -> Result<Status> {
        Ok(self.look_at_new_store().await?.0)
    }

    async fn look_at_new_store(&self) -> Result<(Status, Vec<LockName>)> {
        let stored = self.stored().await?;
        let sessions = self.sessions().await?;
        let noted = self.target()?.moved().await?;
        let (record, version) =
            stored.map_or((None, None), |(record, version)| (Some(record), Some(version)));
        let double_grants = double_grants(&sessions);
        let mut status = Status {
            namespace: self.namespace.clone(),
            next: None,
            version,
            sessions,
            moved: noted.len(),
            tombstones: None,
            lost_tombstones: Vec::new(),
            stragglers: Vec::new(),
            stragglers_unknown: None,
            double_grants,
            old_store: None,
            obstacles: Vec::new(),
            record,
        };
        // What it can do is known once it is connected.
        let _ = self.from.connect().await;
        status.next =
            status.record.as_ref().and_then(|record| next_rung(record, self.from.migration_source()));
        Ok((status, noted))
    }

    async fn look_at_old_store(
        &self,
        status: &mut Status,
        record: &Record,
        noted: Vec<LockName>,
    ) -> Result<()> {
        let tombstones = self.source().await?.tombstones("").await?;
        status.tombstones = Some(self.count(&tombstones));
        let present: HashSet<_> = tombstones.iter().map(|reading| &reading.tombstone.lock).collect();
        status.moved = noted.iter().chain(present.iter().copied()).collect::<HashSet<_>>().len();
        status.lost_tombstones = self.lost(noted, &present).await?;
        match self.stragglers(record, &present).await {
            // There are too many locks to list them.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                status.stragglers_unknown = Some(error.message().to_owned());
            }
            stragglers => status.stragglers = stragglers?,
        }
        Ok(())
    }

    fn count(&self, tombstones: &[Reading]) -> TombstoneCount {
        let now = self.clock.now();
        let left = |reading: &Reading| reading.until.saturating_duration_since(now);
        TombstoneCount {
            count: tombstones.len(),
            shortest_life_s: tombstones.iter().map(left).min().map(|left| left.as_secs()),
            nearly_expired: tombstones.iter().filter(|tomb| left(tomb) < tomb.tombstone.life / 4).count(),
        }
    }

    /// Names that are noted as moved, and have no tombstone: not even at a second look, as a note may be of a moment ago.
    async fn lost(&self, noted: Vec<LockName>, present: &HashSet<&LockName>) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for name in noted.into_iter().filter(|name| !present.contains(name)) {
            if self.source().await?.read_tombstone(&name).await?.is_none() {
                lost.push(name.to_string());
            }
        }
        Ok(lost)
    }

    /// Locks that are held on the old store alone, at two looks.
    async fn stragglers(&self, record: &Record, moved: &HashSet<&LockName>) -> Result<Vec<Straggler>> {
        let names = self.from.list("").await?;
        let mut names: Vec<_> = names
            .into_iter()
            .filter(|name| !moved.contains(name) && record.rung(name) >= Rung::Dual)
            .take(MOST_LOOKED_AT)
            .collect();
        let mut stragglers = Vec::new();
        for look in 0..2 {
            if look > 0 && !names.is_empty() {
                sleep(BETWEEN_LOOKS).await;
            }
            let looks = stream::iter(names).map(async |name| self.straggler(name).await);
            let found: Vec<_> = looks.buffer_unordered(AT_ONCE).collect().await;
            let found: Vec<_> =
                found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            names = found.iter().map(|(name, _)| name.clone()).collect();
            stragglers = found;
        }
        let straggler = |(name, holder): (LockName, String)| Straggler { lock: name.to_string(), holder };
        let mut stragglers: Vec<_> = stragglers.into_iter().map(straggler).collect();
        stragglers.sort_by(|one, other| one.lock.cmp(&other.lock));
        Ok(stragglers)
    }

    async fn straggler(&self, name: LockName) -> Result<Option<(LockName, String)>> {
        let (old, new) = tokio::try_join!(self.from.inspect(&name), self.to.inspect(&name))?;
        let is_one = old.is_held() && old.moved.is_none() && !new.is_held();
        Ok(is_one.then(|| (name, holder_of(&old))))
    }

    async fn obstacles(&self, status: &Status) -> Result<Vec<Obstacle>> {
        let (Some(record), Some(version)) = (&status.record, status.version) else {
            return Ok(vec![Obstacle::new(
                "nobody has begun this migration",
                "start a process with its migrate:// URL",
            )]);
        };
        let mut obstacles = Vec::new();
        match record.phase {
            Phase::Sealed => return Ok(obstacles),
            Phase::Returning => obstacles.push(Obstacle::new(
                "the way back has begun, and tombstones are left or may come",
                "use `polylock migrate clean`",
            )),
            Phase::Open => {}
        }
        if !status.lost_tombstones.is_empty() {
            obstacles.push(Obstacle::new(
                format!("{} locks have moved, and lost their tombstones", status.lost_tombstones.len()),
                "acquire each of them once on move; find out why: failover, eviction, or a DEL by hand",
            ));
        }
        if !status.stragglers.is_empty() {
            obstacles.push(Obstacle::new(
                format!("{} locks are held on the old store alone", status.stragglers.len()),
                "find the clients that only know the old store, and update or stop them",
            ));
        }
        if let Some(why) = &status.stragglers_unknown {
            obstacles.push(Obstacle::new(
                format!("locks that are held on the old store alone are not looked for: {why}"),
                "list them by longer prefixes (`polylock list`), and inspect those that are held",
            ));
        }
        if status.double_grants > 0 {
            obstacles.push(Obstacle::new(
                format!("the old store granted a lock twice, {} times", status.double_grants),
                "look at its failovers and at pauses of its clients",
            ));
        }
        if status.old_store.is_none()
            && record.highest() >= Rung::Dual
            && let Some(Err(error)) =
                self.newest_tokens().await?.map(|(token, clock)| check_lead(token, clock))
        {
            obstacles.push(Obstacle::new(error.message(), error.hint().unwrap_or_default()));
        }
        // The gate says so itself.
        if let Some(error) = &status.old_store
            && status.next != Some(Rung::New)
        {
            obstacles.push(Obstacle::new(
                format!("the old store cannot be asked: {error}"),
                "see whether it runs",
            ));
        }
        if status.tombstones.is_some_and(|tombstones| tombstones.nearly_expired > 0) {
            obstacles.push(Obstacle::new(
                "some tombstones have less than a quarter of their life left",
                "acquire these locks, or finish the migration, before clients of the old store can acquire them",
            ));
        }
        if status.next == Some(Rung::New) {
            obstacles.extend(self.before_the_seal(record, version, &FinishTerms::new()).await?);
        } else {
            obstacles.extend(status.unfollowed());
        }
        Ok(obstacles)
    }
}

impl Status {
    /// The sessions that have not seen the record as it is now.
    #[must_use]
    pub fn unfollowed(&self) -> Vec<Obstacle> {
        let Some(version) = self.version else { return Vec::new() };
        self.sessions.iter().filter_map(|session| not_followed(session, version)).collect()
    }
}

fn double_grants(sessions: &[SessionInfo]) -> u64 {
    let mut seen = HashSet::new();
    // A process may have several sessions.
    let members = sessions.iter().filter_map(|session| session.member.as_ref());
    members.filter(|member| seen.insert(&member.process)).map(|member| member.double_grants).sum()
}

fn not_followed(session: &SessionInfo, version: i32) -> Option<Obstacle> {
    let follows = session.member.as_ref().is_some_and(|member| member.record == Some(version));
    (!follows).then(|| {
        Obstacle::new(
            format!("{} has not seen the present record", session.who()),
            "wait a moment; if that does not help, restart it",
        )
    })
}

fn next_rung(record: &Record, source: Option<&dyn MigrationSource>) -> Option<Rung> {
    if record.phase == Phase::Sealed {
        return None;
    }
    let (lowest, moves) =
        (record.lowest(), source.is_none_or(|source| source.keeps_tombstones().is_supported()));
    Rung::ALL.into_iter().find(|&rung| rung > lowest && (moves || rung != Rung::Move))
}

fn holder_of(state: &LockState) -> String {
    match state.holder() {
        Some(Holder::Known(owner)) => {
            let label = owner.label.as_ref().map(|label| format!(", {label}")).unwrap_or_default();
            format!("{} (pid {}{label})", owner.host, owner.pid)
        }
        _ => "a client of another library".to_owned(),
    }
}

/// At how many locks the status looks.
const MOST_LOOKED_AT: usize = 500;
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
const AT_ONCE: usize = 32;
