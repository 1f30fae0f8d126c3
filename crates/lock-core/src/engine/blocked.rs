//! The pauses of a request that finds the record of its lock taken by something else.

use std::time::Duration;

use rand::Rng;
use tokio::time::{Instant, sleep};

use super::{Changed, Core, LeaseStore};
use crate::{Result, random};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// As long as it may be another request.
const LAST_PAUSE: Duration = Duration::from_millis(50);
/// From then on it is no request, also on a busy server.
pub(super) const IS_LONG: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// How long a request has found the record taken. None waits for it in the store, where it would keep a connection.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    since: Option<Instant>,
    tries: u32,
    is_reported: bool,
}

impl Pauses {
    /// The time until the next try.
    pub(super) fn next(&mut self) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        let longest = match since.elapsed() >= IS_LONG {
            true => LONG_PAUSE,
            false => (FIRST_PAUSE * (1 << self.tries.min(6))).min(LAST_PAUSE),
        };
        self.tries += 1;
        longest.mul_f64(random::rng().random_range(0.5..=1.0))
    }

    /// Waits until the next try, and logs once what has the record, if that lasts.
    pub(super) async fn wait<S: LeaseStore>(&mut self, store: &S, place: &S::Place) {
        sleep(self.next()).await;
        let is_long = self.since.is_some_and(|since| since.elapsed() >= IS_LONG);
        if is_long
            && !self.is_reported
            && let Ok(Some(blocker)) = store.blocker(place).await
        {
            self.is_reported = true;
            tracing::warn!(lock = ?place, "the lock waits for the end of {blocker}");
        }
    }

    /// The record is free again.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

/// Repeats a request until the record is free, for one command timeout at most. `None` if the owner does not have the lock.
///
/// # Errors
///
/// Those of the request; [`LeaseStore::blocked`] if something has the record for too long. Nothing was changed then.
pub(super) async fn until_free<S, T, F>(
    core: &Core<S>,
    place: &S::Place,
    request: impl Fn() -> F + Send,
) -> Result<Option<T>>
where
    S: LeaseStore,
    F: Future<Output = Result<Changed<T>>> + Send,
{
    let (mut pauses, began) = (Pauses::default(), Instant::now());
    loop {
        match request().await? {
            Changed::Done(done) => return Ok(Some(done)),
            Changed::NotHeld | Changed::NotHeldAnyMore => return Ok(None),
            Changed::Blocked if began.elapsed() >= core.options.command_timeout => {
                return Err(core.store.blocked(&blocker(&*core.store, place).await));
            }
            Changed::Blocked => pauses.wait(&*core.store, place).await,
        }
    }
}

async fn blocker<S: LeaseStore>(store: &S, place: &S::Place) -> String {
    match store.blocker(place).await {
        Ok(Some(blocker)) => blocker.to_string(),
        Ok(None) => "it is ending".to_owned(),
        Err(error) => error.to_string(),
    }
}
