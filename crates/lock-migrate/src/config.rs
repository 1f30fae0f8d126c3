//! The options of a migration.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Backend, LeaseKind, Support};
use lock_core::url::LockUrl;
use lock_core::{Capabilities, Error, ErrorKind, Lazy, Locks, Result, runtime};

use crate::backend::Migration;
use crate::operator::Operator;
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
    pub(crate) falls_back: bool,
    pub(crate) tombstone_life: Duration,
}

impl MigrationConfig {
    /// The migration of this namespace, on the rungs that its record says.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), rung: None, falls_back: false, tombstone_life: 30 * DAY }
    }

    /// Parses the options of a URL, and returns them with the URLs of the old store and of the new one.
    ///
    /// The form is `migrate://NAMESPACE?from=URL&to=URL[&rung=RUNG][&fallback=old][&tombstone_life=30d]`, where both URLs are
    /// percent-encoded: of each, at least `& ? = %` and `@`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a malformed URL, an unknown or a missing option.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_migrate::MigrationConfig;
    /// let url = "migrate://shop?from=redis%3A%2F%2Fa%3Fttl%3D10s&to=zk%3A%2F%2Fb%2Capp&rung=dual";
    /// let (config, from, to) = MigrationConfig::from_url(url)?;
    /// assert_eq!((&*from, &*to), ("redis://a?ttl=10s", "zk://b,app"));
    /// # drop(config);
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<(Self, String, String)> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["migrate"])?;
        let mut config = Self::new(url.hosts.clone());
        let (mut from, mut to) = (None, None);
        if !url.path.is_empty() || !url.user.is_empty() || url.password.is_some() {
            return invalid(
                "the URL of a migration has a namespace, and neither a path nor a user".into(),
                "use migrate://shop?from=...&to=..., with the users in the URLs of the stores",
            );
        }
        let known = ["from", "to", "rung", "fallback", "tombstone_life"];
        url.options(BACKEND, &known, |key, value| {
            match key {
                "from" => from = Some(value.text().to_owned()),
                "to" => to = Some(value.text().to_owned()),
                "rung" => config.rung = Some(value.parse("use old, shadow, dual, move or new")?),
                "fallback" if value.text() == "old" => config.falls_back = true,
                "fallback" => return Err(value.invalid("use fallback=old, or leave it out")),
                _ => config.tombstone_life = value.duration()?,
            }
            Ok(())
        })
        .map_err(|error| {
            // Likely one of a URL that is not encoded.
            if !error.message().ends_with("is unknown") {
                return error;
            }
            let known = known.join(", ");
            error.with_hint(format!("the options are: {known}; percent-encode the URLs in from and to"))
        })?;
        match (from, to) {
            (Some(from), Some(to)) => Ok((config, from, to)),
            _ => invalid(
                "the URL of a migration names both stores".into(),
                "add from=URL and to=URL, percent-encoded: from=redis%3A%2F%2Fhost",
            ),
        }
    }

    /// Starts on [`Rung::Old`] while the new store is unavailable, and follows the record once it answers. Without it, such a
    /// start fails, unless the configuration says [`Rung::Old`] or [`Rung::Shadow`] anyway.
    pub const fn fall_back_to_old(mut self) -> Self {
        self.falls_back = true;
        self
    }

    /// Whether the first four rungs, of which every mixture excludes, allow it to start without the record.
    pub(crate) fn starts_without_record(&self) -> bool {
        self.falls_back || self.rung.is_some_and(|rung| rung < Rung::Dual)
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
    /// * [`ErrorKind::InvalidConfig`] for an empty namespace, a tombstone that lives for less than a day, stores between which
    ///   locks cannot move, a store that takes part in another migration, and [`Rung::New`] before the seal is written.
    /// * [`ErrorKind::Unavailable`] when a store does not answer. After the seal, only the new one has to.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn open(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Migration> {
        self.check(&*from, &*to)?;
        Migration::open(self, from, to, runtime::current(BACKEND)?).await
    }

    /// Connects as the operator of the migration between these stores. The rung and what else is for processes does not count.
    ///
    /// # Errors
    ///
    /// As for [`Operator::connect`]; [`ErrorKind::InvalidConfig`] for a bad option.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn operate(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Operator> {
        self.check(&*from, &*to)?;
        Operator::connect(self.namespace, from, to).await
    }

    /// The same locks without a connection: the first use takes part in the migration, and returns the errors of that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad option.
    pub fn open_lazy(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Locks> {
        self.check(&*from, &*to)?;
        let expected = capabilities(&*from, &*to);
        let open = move || self.clone().open(Arc::clone(&from), Arc::clone(&to));
        Ok(Locks::new(Lazy::new(expected, open)))
    }

    fn check(&self, from: &dyn Backend, to: &dyn Backend) -> Result<()> {
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
        if old == new {
            return invalid(
                format!("both stores are {new}: locks do not move between stores of one kind"),
                "move from redis:// or redlock:// to zk://",
            );
        }
        if matches!(old, "memory" | "zk" | BACKEND) {
            return invalid(
                format!("locks cannot move from {old}"),
                "move from redis:// or redlock:// to zk://",
            );
        }
        if matches!(new, "memory" | "redis" | "redlock" | BACKEND) {
            return invalid(
                format!("locks cannot move to {new}"),
                "move from redis:// or redlock:// to zk://",
            );
        }
        if old == "redlock" && self.rung == Some(Rung::Move) {
            return invalid("redlock:// has no rung move".into(), "use dual, and then the gate to new");
        }
        Ok(())
    }
}

fn invalid<T>(message: String, hint: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(message).with_hint(hint))
}

/// What both stores can do.
pub(crate) fn capabilities(from: &dyn Backend, to: &dyn Backend) -> Capabilities {
    let (old, new) = (from.capabilities(), to.capabilities());
    let timeout = new.lease.min_ttl().max(old.lease.min_ttl());
    let mut both = Capabilities::new(BACKEND, LeaseKind::session(timeout));
    // One that moves asks each of them several times.
    both.answer_timeout = old.answer_timeout.saturating_add(new.answer_timeout).saturating_mul(2);
    both.cross_process = old.cross_process && new.cross_process;
    both.fifo = old.fifo && new.fifo;
    both.counts_waiters = old.counts_waiters && new.counts_waiters;
    both.names_sharers = old.names_sharers && new.names_sharers;
    both.shared = and(old.shared, new.shared);
    both.permits = and(old.permits, new.permits);
    both.revocation = and(old.revocation, new.revocation);
    both.breaks_one = and(old.breaks_one, new.breaks_one);
    both.listing = and(old.listing, new.listing);
    both
}

const fn and(one: Support, other: Support) -> Support {
    match one {
        Support::Yes => other,
        no => no,
    }
}
