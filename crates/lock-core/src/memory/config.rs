//! The options of the memory backend.

use std::time::Duration;

use crate::connect::url::LockUrl;
use crate::{Clock, Error, ErrorKind, Result};

pub(super) const BACKEND: &str = "memory";

/// The options of the memory backend.
///
/// The URL is `memory://` for a private store, or `memory://NAME` for a store that all of the process share by that name.
/// The only option is `ttl`. When a named store is opened again, its tokens continue where they were.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::MemoryConfig;
/// # fn main() -> lock_core::Result<()> {
/// let locks = MemoryConfig::new().name("orders").ttl(Duration::from_secs(10)).connect()?;
/// let same = MemoryConfig::from_url("memory://orders?ttl=10s")?.connect()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    pub(super) name: Option<String>,
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { name: None, ttl: Duration::from_secs(30), clock: Clock::boot() }
    }
}

impl MemoryConfig {
    /// The shortest time to live.
    pub const MIN_TTL: Duration = Duration::from_millis(10);

    /// The defaults: a private store, a time to live of 30 s.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["memory"])?;
        if !url.path.is_empty() || !url.user.is_empty() || url.password.is_some() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message("a store in memory has no path and no user")
                .with_hint("write memory://name, or memory:// for a private store"));
        }
        let mut config = Self::default();
        if !url.hosts.is_empty() {
            config = config.name(url.hosts.clone());
        }
        url.options(BACKEND, &["ttl"], |_, value| {
            config.ttl = value.duration()?;
            Ok(())
        })?;
        Ok(config)
    }

    /// The name of the store: within this process, stores of one name are the same store.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The time to live of a lock without a ttl of its own.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The clock of the leases. A store that is open by its name keeps the first one.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}
