//! The options of a migration.

use std::time::Duration;

use lock_core::Result;
use lock_core::backend::Backend;
use lock_core::url::LockUrl;

use crate::error::{BACKEND, invalid};
use crate::leases::lead::LARGEST_LEAD;
use crate::rungs::rung::Rung;
use crate::rungs::time::DAY;

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
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a malformed URL, an unknown or a missing option.
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
            return Err(invalid(
                "the URL of a migration has a namespace, and neither a path nor a user",
                "use migrate://shop?from=...&to=..., with the users in the URLs of the stores",
            ));
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
            _ => Err(invalid(
                "the URL of a migration names both stores",
                "add from=URL and to=URL, percent-encoded: from=redis%3A%2F%2Fhost",
            )),
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

    /// How long a tombstone lives unless it is refreshed: 30 days by default, at least three. One that is relied on has half of it left, and
    /// the tokens of the new store may be a day ahead.
    pub const fn tombstone_life(mut self, life: Duration) -> Self {
        self.tombstone_life = life;
        self
    }

    pub(crate) fn check(&self, from: &dyn Backend, to: &dyn Backend) -> Result<()> {
        if self.namespace.is_empty() {
            return Err(invalid(
                "the namespace is empty",
                "name the migration, as in migrate://shop?from=...&to=...",
            ));
        }
        if self.tombstone_life < 3 * LARGEST_LEAD {
            let message = format!("tombstones that live for {:?} are too short-lived", self.tombstone_life);
            return Err(invalid(message, "use at least three days; 30 are the default"));
        }
        let (old, new) = (from.capabilities().backend, to.capabilities().backend);
        if old == new {
            return Err(invalid(
                format!("both stores are {new}: locks do not move between stores of one kind"),
                "move from redis:// or redlock:// to zk://",
            ));
        }
        if matches!(
            old,
            "memory" | "zk" | "postgres" | "flock" | "etcd" | "mysql" | "s3" | "sqlite" | BACKEND
        ) {
            return Err(invalid(
                format!("locks cannot move from {old}"),
                "move from redis:// or redlock:// to zk://",
            ));
        }
        if matches!(
            new,
            "memory"
                | "redis"
                | "redlock"
                | "postgres"
                | "flock"
                | "etcd"
                | "mysql"
                | "s3"
                | "sqlite"
                | BACKEND
        ) {
            return Err(invalid(
                format!("locks cannot move to {new}"),
                "move from redis:// or redlock:// to zk://",
            ));
        }
        if old == "redlock" && self.rung == Some(Rung::Move) {
            return Err(invalid("redlock:// has no rung move", "use dual, and then the gate to new"));
        }
        Ok(())
    }
}
