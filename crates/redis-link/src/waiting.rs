//! What every wait for a lock has: its deadline, its pauses, and the outages that it rides out.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Wait};
use rand::Rng;
use tokio::time::{Instant, timeout_at};

/// The server rounds the time that is left of a key.
pub const ROUNDED: Duration = Duration::from_millis(1);

/// How one wait for a lock goes.
#[derive(Debug, Default)]
pub struct WaitState {
    /// Whether the server has answered that the lock is busy.
    heard: bool,
    /// Since when requests fail, and the last error.
    outage: Option<(Instant, Error)>,
    /// Whether a key of another type was reported.
    warned: bool,
}

impl WaitState {
    /// Whether the server has answered that the lock is busy: then others most likely wait for it too.
    #[must_use]
    pub const fn is_contended(&self) -> bool {
        self.heard
    }

    /// Notes the answer that the lock is busy, and warns once when its key is no lock.
    pub fn busy(&mut self, key: &str, foreign_type: Option<String>) {
        (self.heard, self.outage) = (true, None);
        if let Some(kind) = foreign_type.filter(|_| !std::mem::replace(&mut self.warned, true)) {
            tracing::warn!(
                key,
                kind,
                "the key of a lock is used for something else: the lock is busy until it is removed"
            );
        }
    }

    /// The deadline of a request. The first answer is awaited beyond that of the wait: a call that may not wait still
    /// asks once.
    #[must_use]
    pub fn deadline(&self, wait: Wait) -> Option<Instant> {
        wait.deadline().filter(|_| self.heard)
    }

    /// Rides out an outage for as long as a lease lasts, once the server has answered; or `anyway`.
    ///
    /// # Errors
    ///
    /// The error, when the wait is over with it.
    pub fn failed(&mut self, error: Error, ttl: Duration, anyway: bool) -> Result<()> {
        let since = self.outage.take().map_or_else(Instant::now, |(since, _)| since);
        let patient = anyway || (self.heard && since.elapsed() < ttl);
        if !patient || error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        tracing::debug!(%error, "the wait goes on");
        self.outage = Some((since, error));
        Ok(())
    }

    /// The error of the present outage, if there is one.
    pub fn into_outage(self) -> Option<Error> {
        self.outage.map(|(_, error)| error)
    }
}

/// The output of a future, `None` when the deadline ended it.
pub async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// The longest pause between two requests of a waiter that is notified: a lost message, or a release by a client that
/// notifies nobody, costs no more than this.
#[must_use]
pub fn longest_pause() -> Duration {
    pause_between(1_000, 2_000)
}

/// A random pause of so many milliseconds.
#[must_use]
pub fn pause_between(shortest: u64, longest: u64) -> Duration {
    Duration::from_millis(lock_core::random::rng().random_range(shortest..=longest))
}
