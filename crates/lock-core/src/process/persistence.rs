//! What goes on although the store refuses it: the rule of waiters, candidates and observers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

use crate::{Error, ErrorKind, random};

/// The pauses between two requests of one that goes on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Whether a caller goes on when the store refuses it, or does not answer.
///
/// There is one rule. A waiter that has queued, a candidate of an election, an observer, and `polylock run` with `--restart` or
/// `--wait` go on through every error that [can pass](Error::can_pass), and end with every other one:
///
/// * **Again and again**, after pauses that grow from 50 ms to 2 s. A waiter queues anew then, behind others.
/// * **Within the caller's patience.** `try_acquire_for` returns the last refusal when its time ends.
/// * **Not in silence.** A warning is logged once per outage and reason, and a line when it is over. A waiter calls
///   [`on_refused`](crate::LockOptions::on_refused), an [`Observer`](crate::Observer) yields the error, and every refusal
///   counts in `polylock_errors_total` of the metrics layer.
///
/// What has not waited yet fails at once: connecting, `try_acquire`, and the first request of an `acquire`.
///
/// # Examples
///
/// ```
/// # use lock_core::{LockOptions, MemoryConfig, Persistence, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// // A supervisor restarts this candidate, and wants to know at once that the store refuses it.
/// let strict = LockOptions::new().persistence(Persistence::Strict);
/// let leadership = locks.election_with("scheduler", strict)?.campaign("web-1").await?;
/// # leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Persistence {
    /// Ends at the first refusal. While a server does not answer, a waiter waits for at most a lease or a session timeout.
    Strict,
    /// Goes on once the caller has queued: the default of locks.
    #[default]
    Queued,
    /// Goes on from the first request: the default of elections.
    Always,
}

impl Persistence {
    /// Whether to go on after this error.
    pub(crate) fn goes_on(self, error: &Error, has_queued: bool) -> bool {
        error.can_pass()
            && match self {
                Self::Strict => false,
                Self::Queued => has_queued,
                Self::Always => true,
            }
    }
}

/// The refusals of one caller in a row.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    reasons: Vec<ErrorKind>,
    tries: u32,
}

impl Outage {
    /// Notes a refusal, and reports whether it is the first one for its reason. That one is logged.
    pub(crate) fn note(&mut self, error: &Error) -> bool {
        self.tries = self.tries.saturating_add(1);
        let is_new = !self.reasons.contains(&error.kind());
        if is_new {
            self.reasons.push(error.kind());
            tracing::warn!(%error, "the store refuses a request, which is repeated until that passes");
        }
        is_new
    }

    /// Notes an answer, and reports whether it ended an outage.
    pub(crate) fn end(&mut self) -> bool {
        let was_on = std::mem::take(self).tries > 0;
        if was_on {
            tracing::info!("the store answers again");
        }
        was_on
    }

    /// The pause before the next request: a random one, as others wait for the same server.
    pub(crate) fn pause(&self) -> Duration {
        let doubled = self.tries.saturating_sub(1).min(10);
        let longest = (FIRST_PAUSE * (1 << doubled)).min(LAST_PAUSE);
        longest.mul_f64(random::rng().random_range(0.5..=1.0))
    }
}

/// A callback for the refusals that a waiter goes on through.
#[derive(Clone)]
pub(crate) struct OnRefused(Arc<dyn Fn(&Error) + Send + Sync>);

impl OnRefused {
    pub(crate) fn new(callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn call(&self, error: &Error) {
        (self.0)(error);
    }
}

impl fmt::Debug for OnRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRefused")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "memory")
    }

    #[test]
    fn what_lies_with_the_servers_can_pass() {
        use ErrorKind as Kind;
        for kind in [Kind::Unavailable, Kind::Denied, Kind::Exhausted] {
            assert!(error(kind).can_pass() && !error(kind).with_can_pass(false).can_pass(), "{kind:?}");
        }
        for kind in [
            Kind::InvalidName,
            Kind::InvalidConfig,
            Kind::Unsupported,
            Kind::Moved,
            Kind::Lost,
            Kind::Closed,
            Kind::Unexpected,
        ] {
            assert!(!error(kind).can_pass() && error(kind).with_can_pass(true).can_pass(), "{kind:?}");
        }
    }

    #[test]
    fn who_goes_on_depends_on_the_error_and_the_queue() {
        let goes_on = |error: &Error| {
            [Persistence::Strict, Persistence::Queued, Persistence::Always]
                .map(|persistence| [false, true].map(|queued| persistence.goes_on(error, queued)))
        };
        let denied = error(ErrorKind::Denied);
        assert_eq!(goes_on(&denied), [[false, false], [false, true], [true, true]]);
        assert_eq!(goes_on(&error(ErrorKind::Closed)), [[false; 2]; 3]);
    }

    #[test]
    fn each_reason_is_new_once_in_an_outage_and_pauses_grow() {
        let mut outage = Outage::default();
        assert!(!outage.end(), "there was none");
        assert!(outage.note(&error(ErrorKind::Unavailable)) && outage.pause() <= FIRST_PAUSE);
        assert!(outage.note(&error(ErrorKind::Denied)));
        for _ in 0..40 {
            assert!(!outage.note(&error(ErrorKind::Unavailable)) && !outage.note(&error(ErrorKind::Denied)));
        }
        assert!(outage.pause() >= LAST_PAUSE / 2 && outage.pause() <= LAST_PAUSE);
        assert!(outage.end() && !outage.end());
        assert!(outage.note(&error(ErrorKind::Unavailable)), "the next outage");
    }
}
