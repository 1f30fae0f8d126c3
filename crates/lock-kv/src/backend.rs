//! The backend over a store of registers, and its options.

use std::time::Duration;

use lock_core::backend::Support;
use lock_core::engine::{Engine, EngineOptions, OnEngine};
use lock_core::timeouts::check_timeout;
use lock_core::{Capabilities, Clock, LeaseKind, Locks, Result, TokenBlock, runtime};

use crate::boot::{BootId, this_boot};
use crate::probe::refuses_old_versions;
use crate::registers::{About, Registers};
use crate::store::KvStore;
use crate::waiters::{grace, lasts_at_least};

/// Shorter leases are a mistake: a lease is renewed three times in its ttl.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// A granted waiter has the lock for no longer than its ttl: it has to look within that.
const MIN_TTL_IN_POLLS: u32 = 10;

/// The backend for a store that can compare and swap.
///
/// A lock is as durable as its store. A crashed holder's lock is free one ttl after somebody has begun to wait for it, as nobody but the
/// clients knows the time; and one ttl after the crash for processes of the same boot, in a store of [one host](About::one_host).
#[derive(Debug)]
pub struct Kv<R: Registers>(Engine<KvStore<R>>);

/// The options of locks in a store that can compare and swap.
///
/// # Examples
///
/// See [`Registers`].
#[derive(Clone, Debug)]
pub struct KvConfig {
    ttl: Duration,
    command_timeout: Duration,
    clock: Clock,
    observer_clock: Option<Clock>,
    boot: Boot,
}

/// Whose clock it is.
#[derive(Clone, Debug)]
enum Boot {
    /// The one of this host.
    This,
    /// One that others with this text share, in tests.
    Named(BootId),
    /// It is of this client alone.
    Unknown,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl KvConfig {
    /// Leases of ten seconds, and requests that are answered within five.
    #[must_use]
    pub fn new() -> Self {
        let (ttl, command_timeout) = (Duration::from_secs(10), Duration::from_secs(5));
        Self { ttl, command_timeout, clock: Clock::boot(), observer_clock: None, boot: Boot::This }
    }

    /// How long a lock lasts without its holder. It is renewed three times in this span.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// After this time a request ends without an answer.
    #[must_use]
    pub const fn command_timeout(mut self, command_timeout: Duration) -> Self {
        self.command_timeout = command_timeout;
        self
    }

    /// The clock of the leases, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        (self.clock, self.boot) = (clock, Boot::Unknown);
        self
    }

    /// Another clock, by which this client observes others: its rate is to differ in tests.
    #[doc(hidden)]
    #[must_use]
    pub fn observer_clock(mut self, clock: Clock) -> Self {
        (self.observer_clock, self.boot) = (Some(clock), Boot::Unknown);
        self
    }

    /// The boot whose clock this is, which all clients with this text share: in tests.
    #[doc(hidden)]
    #[must_use]
    pub fn boot_id(mut self, boot: &str) -> Self {
        self.boot = Boot::Named(boot.into());
        self
    }

    /// Locks in these registers.
    ///
    /// If they are of [one host](About::one_host), each lease counts from when it was written, for processes of the same boot of Linux. Their
    /// clock is the same, also in containers: one that is in a time namespace of its own does not count so.
    ///
    /// # Errors
    ///
    /// As [`Kv::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Kv::connect`].
    pub async fn connect<R: Registers>(self, registers: R) -> Result<Locks> {
        Ok(Locks::new(Kv::connect(registers, self).await?))
    }

    #[cfg(any(feature = "etcd", feature = "mysql", feature = "s3", feature = "sqlite"))]
    pub(crate) const fn timeout(&self) -> Duration {
        self.command_timeout
    }

    pub(crate) fn capabilities(&self, about: &About) -> Result<Capabilities> {
        let min_ttl = MIN_TTL.max(about.poll.saturating_mul(MIN_TTL_IN_POLLS));
        let mut capabilities = Capabilities::new(about.name, LeaseKind::ttl(self.ttl, min_ttl));
        capabilities.check_lease_ttl(self.ttl)?;
        check_timeout(about.name, "command_timeout", self.command_timeout)?;
        capabilities.answer_timeout = self.command_timeout;
        capabilities.cross_process = about.cross_process;
        (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        Ok(capabilities)
    }
}

impl<R: Registers> Kv<R> {
    /// Tries whether the store refuses a swap on an old version, on a key that no lock has and which stays: `polylock-probe`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](lock_core::ErrorKind::Unsupported) if it lets one through, with the code `unconditional`;
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a ttl or a timeout that is too short or too long; those of the store.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the key may have been written.
    pub async fn connect(registers: R, config: KvConfig) -> Result<Self> {
        let about = registers.about();
        let capabilities = config.capabilities(&about)?;
        runtime::current(about.name)?;
        refuses_old_versions(&registers, config.command_timeout).await?;
        let mut options = EngineOptions::new(config.command_timeout);
        options.grace = grace(&about);
        options.local_handovers = TokenBlock::USUAL_SERIES;
        options.clock = config.clock.clone();
        let boot = match config.boot {
            Boot::This => this_boot(),
            Boot::Named(boot) => Some(boot),
            Boot::Unknown => None,
        };
        let boot = boot.filter(|_| about.one_host);
        let clock = config.observer_clock.unwrap_or(config.clock);
        let lasts = lasts_at_least(&about);
        let store = KvStore::new(registers, config.command_timeout, (clock, boot), lasts);
        Engine::new(store, capabilities, options).map(Self)
    }
}

impl<R: Registers> OnEngine for Kv<R> {
    type Store = KvStore<R>;

    fn engine(&self) -> &Engine<KvStore<R>> {
        &self.0
    }
}
