//! The common parts of every wait for a lock: deadlines, pauses and tolerated outages.

use std::time::Duration;

use rand::Rng;
use tokio::time::{Instant, timeout_at};

use crate::{Error, ErrorKind, Outcome, Result, Wait, random};

/// The server rounds the remaining ttl of a key.
pub const ROUNDING: Duration = Duration::from_millis(1);

/// The state of one wait for a lock.
#[derive(Debug, Default)]
pub struct WaitState {
    /// Whether the server has answered that the lock is busy.
    answered: bool,
    /// The start of the present outage, and its last error.
    outage: Option<(Instant, Error)>,
    /// Whether a key of another type was logged.
    warned: bool,
}

impl WaitState {
    /// Whether the server has answered that the lock is busy. Then there are probably other waiters.
    #[must_use]
    pub const fn is_contended(&self) -> bool {
        self.answered
    }

    /// Notes the answer that the lock is busy, and warns once if its key is not a lock.
    pub fn busy(&mut self, key: &str, foreign_type: Option<String>) {
        (self.answered, self.outage) = (true, None);
        if let Some(kind) = foreign_type.filter(|_| !std::mem::replace(&mut self.warned, true)) {
            tracing::warn!(
                key,
                kind,
                "the key of a lock has another type: the lock is busy until the key is removed"
            );
        }
    }

    /// The deadline of a request: that of the wait, but none before the first answer. So a call that must not wait still
    /// asks once.
    #[must_use]
    pub fn deadline(&self, wait: Wait) -> Option<Instant> {
        wait.deadline().filter(|_| self.answered)
    }

    /// Notes a failed request. Once the server has answered, an outage is tolerated for the ttl of a lease; with `anyway`
    /// always. The waiter keeps its position in the queue meanwhile; after an error it queues anew.
    ///
    /// # Errors
    ///
    /// The error, if it ends the wait.
    pub fn failed(&mut self, error: Error, ttl: Duration, anyway: bool) -> Result<()> {
        let since = self.outage.take().map_or_else(Instant::now, |(since, _)| since);
        let goes_on = anyway || (self.answered && since.elapsed() < ttl);
        if !goes_on || error.kind() != ErrorKind::Unavailable {
            return Err(if self.answered { error.while_waiting() } else { error });
        }
        tracing::debug!(%error, "a request for a lock failed; the wait continues");
        self.outage = Some((since, error));
        Ok(())
    }

    /// The error of the present outage, if there is one.
    pub fn into_outage(self) -> Option<Error> {
        self.outage.map(|(_, error)| error)
    }
}

/// The outcome of one request for a lock.
#[derive(Debug)]
pub enum Tried<L> {
    /// The lock is granted.
    Granted(L),
    /// It is busy.
    Busy,
    /// The request failed and was rolled back, and another one at once may succeed.
    Again(Error),
}

impl<L> Tried<L> {
    /// The lease, or `None` for a busy lock, if there is no other request.
    ///
    /// # Errors
    ///
    /// That of the request.
    pub fn ended(self) -> Result<Option<L>> {
        match self {
            Self::Granted(lease) => Ok(Some(lease)),
            Self::Busy => Ok(None),
            Self::Again(error) => Err(error),
        }
    }
}

/// Whether a request was sent and got no answer in time.
#[must_use]
pub fn is_silence(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.outcome() == Outcome::Unknown
}

/// The output of a future, or `None` after the deadline.
pub async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// The longest pause between two requests of a waiter with notifications. It limits the delay after a lost message, or
/// after a release by a client that does not notify.
#[must_use]
pub fn longest_pause() -> Duration {
    pause_between(1_000, 2_000)
}

/// The pause between two requests of a waiter without notifications.
#[must_use]
pub fn poll_pause() -> Duration {
    pause_between(50, 250)
}

/// A random pause between these numbers of milliseconds.
#[must_use]
pub fn pause_between(shortest: u64, longest: u64) -> Duration {
    Duration::from_millis(random::rng().random_range(shortest..=longest))
}
