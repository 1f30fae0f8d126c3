//! The pauses of a call that finds the row of its lock taken by another transaction.

use std::time::Duration;

use lock_core::{ErrorKind, Outcome, Result, random};
use rand::Rng;
use tokio::time::{Instant, sleep};

use crate::server::{Changed, Server};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// As long as it may be another request.
const LAST_PAUSE: Duration = Duration::from_millis(50);
/// From then on it is a transaction of a user, with a fence, also on a busy server.
pub(crate) const IS_LONG: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// How long a call has found the row taken. No call waits for it on the server, where it would keep a connection.
#[derive(Debug, Default)]
pub(crate) struct LockedRow {
    since: Option<Instant>,
    tries: u32,
    is_reported: bool,
}

impl LockedRow {
    /// The time until the next try.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        let longest = match since.elapsed() >= IS_LONG {
            true => LONG_PAUSE,
            false => (FIRST_PAUSE * (1 << self.tries.min(6))).min(LAST_PAUSE),
        };
        self.tries += 1;
        longest.mul_f64(random::rng().random_range(0.5..=1.0))
    }

    /// Waits until the next try, and logs once whose transaction it is, if that lasts.
    pub(crate) async fn wait(&mut self, server: &Server, name: &str) {
        let pause = self.next_pause();
        sleep(pause).await;
        let is_long = self.since.is_some_and(|since| since.elapsed() >= IS_LONG);
        if is_long && !std::mem::replace(&mut self.is_reported, true) {
            let blocker = whose(server, name).await;
            tracing::warn!(
                lock = name,
                "the lock waits for the end of a transaction that has its row: {blocker}"
            );
        }
    }

    /// The row is free again.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

/// Repeats a call until the row is free, for this time at most. `None` if the owner does not hold the lock.
///
/// # Errors
///
/// Those of the call; [`ErrorKind::Unavailable`] if a transaction has the row for too long. Nothing was changed then.
pub(crate) async fn until_free<T, F>(
    server: &Server,
    name: &str,
    limit: Duration,
    call: impl Fn() -> F + Send,
) -> Result<Option<T>>
where
    F: Future<Output = Result<Changed<T>>> + Send,
{
    let (mut locked, began) = (LockedRow::default(), Instant::now());
    loop {
        match call().await? {
            Changed::Done(done) => return Ok(Some(done)),
            Changed::NotHeld => return Ok(None),
            Changed::Locked if began.elapsed() >= limit => {
                let what = format!("a transaction has the row of the lock: {}", whose(server, name).await);
                return Err(server
                    .endpoint
                    .error(ErrorKind::Unavailable, what)
                    .with_code("locked")
                    .with_hint(
                        "end that transaction: it has called fence() and is still open; then try again",
                    )
                    .with_outcome(Outcome::NotApplied));
            }
            Changed::Locked => locked.wait(server, name).await,
        }
    }
}

async fn whose(server: &Server, name: &str) -> String {
    match server.blocker(name).await {
        Ok(Some(blocker)) => blocker.to_string(),
        Ok(None) => "it is ending".to_owned(),
        Err(error) => error.to_string(),
    }
}
