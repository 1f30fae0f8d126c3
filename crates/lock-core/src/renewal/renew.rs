//! What a backend implements to renew its leases.

use std::time::Duration;

use async_trait::async_trait;

use crate::{BootInstant, Error, LeasePolicy, Result};

/// What a backend does to renew leases.
#[async_trait]
pub trait Renew: Send + Sync + 'static {
    /// Identifies a lease.
    type Key: Clone + Send + Sync + 'static;

    /// Renews all of `batch`, and calls `answered` for each lease with its place in the batch as soon as its answer comes: no lease waits for
    /// that of another one. It must end in bounded time, and must never acquire a lock that is no longer held.
    async fn renew(&self, batch: &[Due<Self::Key>], answered: &dyn Answered<Renewed>);

    /// Whether a request that is executed late leaves a lease alone that lasts longer by then, unless it is one that
    /// [shortens](Due::shortens).
    fn spares_longer(&self) -> bool {
        false
    }
}

/// What gets the answers to a batch, each with its place there.
pub trait Answered<T>: Fn(usize, T) + Send + Sync {}

impl<T, F: Fn(usize, T) + Send + Sync> Answered<T> for F {}

/// A lease to renew.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Due<K> {
    /// The lease.
    pub key: K,
    /// The time to live to request.
    pub ttl: Duration,
    /// Whether the lease may last longer on the server, and is to be shortened.
    pub shortens: bool,
}

/// The outcome of one renewal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Renewed {
    /// The server keeps the lock at least until then, by the lease clock.
    Until(BootInstant),
    /// The lock is lost.
    Lost,
    /// The server did not answer, or not clearly.
    Unknown(Error),
}

impl Renewed {
    /// The new deadline, as [`Lease::extend`](crate::Lease::extend) returns it.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is lost; else why that is unknown.
    pub fn deadline(self, backend: &'static str) -> Result<BootInstant> {
        match self {
            Self::Until(until) => Ok(until),
            Self::Lost => Err(Error::lost(backend)),
            Self::Unknown(error) => Err(error),
        }
    }
}

/// How long, and by whom, a lease is renewed.
///
/// ```
/// # use std::time::Duration;
/// use lock_core::renewal::Terms;
///
/// let mut only_extended = Terms::new(Duration::from_secs(30));
/// only_extended.auto = false;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// The time to live of the lease.
    pub ttl: Duration,
    /// Whether it is renewed automatically, or only when it is [extended](super::Renewal::extend).
    pub auto: bool,
    /// The end of the lease, however often it is renewed.
    pub hold_until: BootInstant,
}

impl Terms {
    /// A lease with this time to live that is renewed automatically, without an end.
    #[must_use]
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl, auto: true, hold_until: BootInstant::NEVER }
    }

    /// A lease with this time to live that was requested at `sent`, under this policy.
    #[must_use]
    pub fn of(policy: &LeasePolicy, ttl: Duration, sent: BootInstant) -> Self {
        let hold_until = policy.max_hold.map_or(BootInstant::NEVER, |hold| sent + hold);
        Self { ttl, auto: policy.renewed, hold_until }
    }
}
