//! The options of a migration.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Backend, LeaseKind, Support};
use lock_core::{Capabilities, Error, ErrorKind, Result, runtime};

use crate::backend::Migration;
use crate::record::BACKEND;
use crate::rung::Rung;

const DAY: Duration = Duration::from_secs(86_400);

/// The options of a migration from one store to another.
///
/// # Examples
///
/// ```no_run
/// # use std::sync::Arc;
/// # use lock_core::{Locks, backend::Backend};
/// # use lock_migrate::{MigrationConfig, Rung};
/// # async fn example(redis: Arc<dyn Backend>, zk: Arc<dyn Backend>) -> lock_core::Result<()> {
/// let locks = Locks::new(MigrationConfig::new("shop").rung(Rung::Dual).open(redis, zk).await?);
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a configuration connects to nothing by itself"]
pub struct MigrationConfig {
    pub(crate) namespace: String,
    pub(crate) rung: Option<Rung>,
    pub(crate) tombstone_life: Duration,
}

impl MigrationConfig {
    /// The migration of this namespace, on the rungs that its record says.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), rung: None, tombstone_life: 30 * DAY }
    }

    /// Stays on this rung for all names, whatever the record says.
    pub const fn rung(mut self, rung: Rung) -> Self {
        self.rung = Some(rung);
        self
    }

    /// How long a tombstone lives unless it is refreshed: 30 days by default, at least one.
    pub const fn tombstone_life(mut self, life: Duration) -> Self {
        self.tombstone_life = life;
        self
    }

    /// Takes part in the migration between these stores.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an empty namespace, a tombstone that lives for less than a day, and stores between which
    /// locks cannot move this way.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn open(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Migration> {
        self.check(&*from, &*to)?;
        Migration::open(self, capabilities(&*from, &*to), from, to, runtime::current(BACKEND)?).await
    }

    fn check(&self, from: &dyn Backend, to: &dyn Backend) -> Result<()> {
        let invalid = |message: String, hint: &'static str| {
            Err(Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(message).with_hint(hint))
        };
        if self.namespace.is_empty() {
            return invalid(
                "the namespace is empty".into(),
                "name the migration, as in migrate://shop?from=...&to=...",
            );
        }
        if self.tombstone_life < DAY {
            let message = format!("tombstones that live for {:?} are too short-lived", self.tombstone_life);
            return invalid(message, "use at least a day; 30 days are the default");
        }
        let (old, new) = (from.capabilities().backend, to.capabilities().backend);
        if to.migration_target().is_none() {
            return invalid(format!("locks cannot move to {new}"), "move to zk://, with the recipe queue");
        }
        if from.migration_source().is_none() {
            return invalid(format!("locks cannot move from {old} name by name"), "move from redis://");
        }
        Ok(())
    }
}

/// What both stores can do.
fn capabilities(from: &dyn Backend, to: &dyn Backend) -> Capabilities {
    let (old, new) = (from.capabilities(), to.capabilities());
    let timeout = new.lease.min_ttl().max(old.lease.min_ttl());
    let mut both = Capabilities::new(BACKEND, LeaseKind::session(timeout));
    both.cross_process = old.cross_process && new.cross_process;
    both.fifo = old.fifo && new.fifo;
    both.counts_waiters = old.counts_waiters && new.counts_waiters;
    both.names_sharers = old.names_sharers && new.names_sharers;
    both.shared = and(old.shared, new.shared);
    both.permits = and(old.permits, new.permits);
    both.revocation = and(old.revocation, new.revocation);
    both.breaks_one = Support::No("a holder has a token of its own on each of both stores");
    both.listing = and(old.listing, new.listing);
    both
}

const fn and(one: Support, other: Support) -> Support {
    match one {
        Support::Yes => other,
        no => no,
    }
}
