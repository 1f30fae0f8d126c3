//! Removes what a request for a lock may have left on a server.

use std::mem;
use std::time::Duration;

use lock_core::background::{Background, Counted};
use lock_core::{ErrorKind, Outcome, Result};
use tokio::time::sleep;

use crate::route::client::RedisClient;
use crate::scripts::keys::Keys;

/// How long a removal waits for a server that does not answer.
const MAX_OUTAGE: Duration = Duration::from_secs(600);
/// How many removals may wait out an outage; more than these are tried for a shorter time.
const MAX_OVER_AN_OUTAGE: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// What is known about a request to [take back](RedisClient::take_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was answered, or never sent.
    Answered,
    /// It was sent and not answered.
    InDoubt {
        /// The [generation](RedisClient::generation) of the connection that it was sent on, if there was one.
        connection: Option<u64>,
    },
}

impl Sent {
    /// Whether the server receives a request on the present connection after this one.
    #[must_use]
    pub fn is_settled_on(self, present: Option<u64>) -> bool {
        match self {
            Self::Answered => true,
            Self::InDoubt { connection } => connection.is_some() && connection == present,
        }
    }
}

/// The options of [`RedisClient::take_back`].
#[derive(Debug)]
pub struct TakeBack<'a> {
    keys: &'a Keys,
    ttl: Duration,
    sent: Sent,
    is_over_an_outage: bool,
    counted: Option<Counted>,
}

impl<'a> TakeBack<'a> {
    /// The options for a request for a lock with this `ttl`.
    #[must_use]
    pub fn new(keys: &'a Keys, ttl: Duration, sent: Sent) -> Self {
        Self { keys, ttl, sent, is_over_an_outage: false, counted: None }
    }

    /// Starts the time limit when the server answers again, after ten minutes at the latest: a paused server runs its
    /// buffered requests when it resumes. If many removals wait for that already, the limit starts at once.
    #[must_use]
    pub fn over_an_outage(mut self, cleanup: &Background) -> Self {
        self.is_over_an_outage = cleanup.under_way() <= MAX_OVER_AN_OUTAGE;
        self
    }

    /// Counts the removal as pending until the server has answered once.
    #[must_use]
    pub fn counted(mut self, counted: Option<Counted>) -> Self {
        self.counted = counted;
        self
    }
}

impl RedisClient {
    /// Removes what a request may have left, by calls of `release`, and reports whether it found anything; `None` if an
    /// earlier call of `release` may have removed it.
    ///
    /// After an answered request, and on the connection that it was sent on, one call is enough. If that connection
    /// broke, the request may still be in flight: the removal is repeated for the ttl plus one command timeout, or until it
    /// finds something. An owner that sent several requests has to call this again. A request that the server runs even
    /// later leaves a lock that expires.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, a lock may remain until it expires.
    pub async fn take_back<F>(&self, terms: TakeBack<'_>, release: impl Fn() -> F + Send) -> Option<bool>
    where
        F: Future<Output = Result<Option<bool>>> + Send,
    {
        match release().await {
            Ok(Some(true)) => Some(true),
            // Boxed, as it is rare and large.
            first => Box::pin(self.take_back_after(first, terms, release)).await,
        }
    }

    async fn take_back_after<F>(
        &self,
        first: Result<Option<bool>>,
        mut terms: TakeBack<'_>,
        release: impl Fn() -> F + Send,
    ) -> Option<bool>
    where
        F: Future<Output = Result<Option<bool>>> + Send,
    {
        let lasting = terms.ttl + self.command_timeout();
        let outage = if terms.is_over_an_outage { MAX_OUTAGE } else { Duration::ZERO };
        let mut until = self.clock().now() + lasting + outage;
        let (mut pause, mut in_doubt, mut has_answered, mut released) = (FIRST_PAUSE, false, false, first);
        loop {
            let answers = released.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Unavailable);
            if answers {
                terms.counted = None;
                if !mem::replace(&mut has_answered, true) {
                    until = until.min(self.clock().now() + lasting);
                }
            }
            match released {
                Ok(Some(true)) => return Some(true),
                Ok(removed) => {
                    in_doubt |= removed.is_none();
                    if terms.sent.is_settled_on(self.generation(terms.keys)) {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed => break,
                Err(error) => in_doubt |= error.outcome() != Outcome::NotApplied,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            if self.clock().now() >= until {
                break;
            }
            released = release().await;
        }
        Some(false).filter(|_| !in_doubt)
    }
}
