//! What the operator of a migration does: looks, changes rungs, and opens the gates.

mod answering;
mod back;
mod clean;
mod finish;
mod preflight;
mod rules;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{AcquireRequest, Acquired, Backend, LeasePolicy, Wait};
use lock_core::background::Background;
use lock_core::migration::{Member, MigrationSource, MigrationTarget, StoredRecord};
use lock_core::{Clock, Lease, LockName, OwnerInfo, Result, one_line, runtime};
use serde::Serialize;
use tokio::sync::OnceCell;
use tokio::time::Instant;

pub use self::finish::FinishTerms;
pub use self::status::{Status, Straggler, TombstoneCount};
use crate::context::{begin, unless_it_follows};
use crate::error::{BACKEND, no_source, no_target};
use crate::rungs::member::SessionInfo;
use crate::rungs::record::Record;
use crate::rungs::rung::Rung;

/// The operator of a migration. The command `polylock migrate` is made of it.
///
/// It has a connection of its own to both stores. That to the old store may be lazy: after the seal, and where the old store
/// is gone, it is not used.
///
/// # Examples
///
/// ```no_run
/// # use std::sync::Arc;
/// # use lock_core::backend::Backend;
/// # use lock_migrate::{Operator, Rung};
/// # async fn example(redis: Arc<dyn Backend>, zk: Arc<dyn Backend>) -> lock_core::Result<()> {
/// let operator = Operator::connect("shop", redis, zk).await?;
/// operator.set(Rung::Dual, "reports/*").await?; // a canary first
/// let status = operator.status().await?;
/// for session in &status.sessions {
///     println!("{session:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operator {
    namespace: String,
    from: Arc<dyn Backend>,
    to: Arc<dyn Backend>,
    /// Set once the record is watched in the sessions of this connection.
    joined: OnceCell<()>,
    clock: Clock,
    cleanup: Arc<Background>,
}

/// Whether a gate was passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a gate that is blocked has changed nothing"]
#[non_exhaustive]
pub enum Gate {
    /// It was passed, and the record is this one now.
    Passed(Box<Record>),
    /// It is closed, for these reasons.
    Blocked(Vec<Obstacle>),
}

/// What blocks a step of a migration, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Obstacle {
    /// What blocks the step.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// How far a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// It waits until so many sessions have seen the record.
    Sessions(usize),
    /// It waits, for at most so long, until the leases on the old store have ended.
    Leases(Duration),
    /// So many tombstones are removed; in this pass there are so many more.
    Tombstones {
        /// Those that are removed.
        removed: usize,
        /// Those that are left.
        left: usize,
    },
}

impl Obstacle {
    fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        let [what, advice] = [what.into(), advice.into()].map(|text: String| one_line(&text).into_owned());
        Self { what, advice }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.advice)
    }
}

impl Operator {
    /// Connects to the new store. The old one is connected when it is first needed.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) if locks cannot move to this store,
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) if it does not answer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn connect(
        namespace: impl Into<String>,
        from: Arc<dyn Backend>,
        to: Arc<dyn Backend>,
    ) -> Result<Self> {
        to.connect().await?;
        let (joined, clock, cleanup) = (OnceCell::new(), Clock::boot(), Arc::default());
        runtime::current(BACKEND)?;
        let operator = Self { namespace: namespace.into(), from, to, joined, clock, cleanup };
        operator.target()?;
        Ok(operator)
    }

    /// The record of the migration; none before the first process has written it.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for the record of another migration,
    /// [`Unexpected`](lock_core::ErrorKind::Unexpected) for one of a later version;
    /// when the new store is unavailable.
    pub async fn record(&self) -> Result<Option<Record>> {
        Ok(self.stored().await?.map(|(record, _)| record))
    }

    /// Closes both connections. Locks that a removal of a tombstone may still need are waited for.
    ///
    /// # Errors
    ///
    /// When a server does not confirm; the connections are closed all the same.
    pub async fn close(&self) -> Result<()> {
        // A removal that is not answered keeps its lock for as long as the lease of that.
        let longest = self.to.capabilities().lease.default_ttl();
        self.cleanup.settle(longest + SETTLE_LIMIT).await;
        let (old, new) = tokio::join!(self.from.close(), self.to.close());
        old.and(new)
    }

    /// The record, and the version that a change of it has to name.
    async fn stored(&self) -> Result<Option<(Record, i32)>> {
        let Some(stored) = self.target()?.read_record().await? else { return Ok(None) };
        Ok(Some((Record::parse(&stored, &self.namespace)?, stored.version)))
    }

    /// The same; the operator begins the migration if nobody has.
    async fn stored_or_begun(&self) -> Result<(Record, i32)> {
        loop {
            if let Some(stored) = self.stored().await? {
                return Ok(stored);
            }
            let (source, target) = (self.source().await?, self.target()?);
            let record = begin(&self.namespace, source, target).await?;
            target.write_record(&record.to_bytes(), None).await?;
        }
    }

    /// Writes the record if it still has this version.
    async fn write(&self, record: &Record, version: i32) -> Result<bool> {
        self.target()?.write_record(&record.to_bytes(), Some(version)).await
    }

    /// What the sessions of all processes have registered.
    async fn sessions(&self) -> Result<Vec<SessionInfo>> {
        let states = self.target()?.members().await?;
        let others = states.into_iter().filter(|state| state.data != OPERATOR);
        Ok(others.map(SessionInfo::parse).collect())
    }

    async fn source(&self) -> Result<&dyn MigrationSource> {
        self.from.connect().await?;
        self.from.migration_source().ok_or_else(|| no_source(self.from.capabilities().backend))
    }

    fn target(&self) -> Result<&dyn MigrationTarget> {
        self.to.migration_target().ok_or_else(|| no_target(self.to.capabilities().backend))
    }

    /// Watches the record in the sessions of this connection, so that it is known as of a grant.
    async fn join(&self) -> Result<()> {
        let target = self.target()?;
        self.joined.get_or_try_init(|| join_or_follow(target)).await.map(drop)
    }

    /// The lock of the new store; none while another process holds it for longer than [`LOCK_LIMIT`].
    async fn lock(&self, name: &LockName) -> Result<Option<Box<dyn Lease>>> {
        let owner = Arc::new(OwnerInfo::this_process().with_label("polylock migrate"));
        let wait = Wait::Until(Instant::now() + LOCK_LIMIT);
        let request = AcquireRequest::exclusive(name.clone(), wait, LeasePolicy::default(), owner);
        Ok(match self.to.acquire(request).await? {
            Acquired::Held(lease) => Some(lease),
            _ => None,
        })
    }

    /// The rung from which all names go to [`Rung::New`].
    async fn last_rung(&self) -> Result<Rung> {
        let keeps = self.source().await?.keeps_tombstones().is_supported();
        Ok(if keeps { Rung::Move } else { Rung::Dual })
    }

    /// How long a lease on the old store may last without a sign of life.
    fn longest_ttl(&self, sessions: &[SessionInfo]) -> Duration {
        let registered = sessions.iter().filter_map(|session| session.member.as_ref());
        let longest = registered.map(|member| Duration::from_millis(member.longest_ttl_ms)).max();
        longest.unwrap_or_default().max(self.from.capabilities().lease.default_ttl())
    }
}

async fn join_or_follow(target: &dyn MigrationTarget) -> Result<()> {
    unless_it_follows(target.join(Arc::new(Watching)).await)
}

/// Registers the operator, which has no locks of the fleet.
#[derive(Debug)]
struct Watching;

impl Member for Watching {
    fn registration(&self, _: Option<&StoredRecord>) -> Vec<u8> {
        OPERATOR.to_vec()
    }
}

/// How long a release may take.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// How long another process may hold the lock of a step.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
/// What an operator registers.
const OPERATOR: &[u8] = b"operator";
/// The names of the locks of operators begin with it.
pub(crate) const PREFIX: &str = ".migrate/";

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only if every step can run in a task of its own.
    #[allow(dead_code, reason = "it is enough that it compiles")]
    fn every_step_can_be_spawned(operator: &Operator, terms: &FinishTerms) {
        const fn is_send(_: &impl Send) {}
        is_send(&operator.record());
        is_send(&operator.status());
        is_send(&operator.preflight());
        is_send(&operator.set(Rung::Dual, "*"));
        is_send(&operator.finish(terms, |_| ()));
        is_send(&operator.obstacles_to_finish(terms));
        is_send(&operator.back(Duration::ZERO, |_| ()));
        is_send(&operator.clean(None, |_| ()));
        is_send(&operator.close());
    }
}
