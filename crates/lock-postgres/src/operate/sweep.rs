//! Removes the rows of names that are not in use, a few now and then, as a part of other work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::random;
use rand::Rng;
use tokio::time::Instant;

use crate::server::Server;

/// Between two sweeps of one process.
const EVERY: Duration = Duration::from_secs(60);
/// The same while most of the names that it looks at are not in use.
const SOON: Duration = Duration::from_secs(1);
const AT_MOST: i32 = 500;
/// How long a name is unused before its row is removed.
const IDLE: Duration = Duration::from_secs(600);

/// When to sweep next, and after which name.
#[derive(Clone, Debug)]
pub(crate) struct Sweeper(Arc<Mutex<(Instant, String)>>);

impl Sweeper {
    /// The first sweep is at a random time, as many processes may start at once.
    pub(crate) fn new() -> Self {
        let first = Instant::now() + EVERY.mul_f64(random::rng().random_range(0.1..=1.0));
        Self(Arc::new(Mutex::new((first, String::new()))))
    }

    /// Sweeps in the background, if it is time.
    pub(crate) fn sweep(&self, server: &Arc<Server>) {
        let Some(after) = self.begin() else { return };
        let (sweeper, server) = (self.clone(), Arc::clone(server));
        drop(tokio::spawn(async move {
            match server.sweep(&after, AT_MOST, IDLE).await {
                Ok((removed, next)) => sweeper.end(removed, next.unwrap_or_default()),
                Err(error) => tracing::debug!(%error, "rows of unused names were not removed"),
            }
        }));
    }

    /// Where to begin, if it is time.
    fn begin(&self) -> Option<String> {
        let mut next = self.next();
        let now = Instant::now();
        if now < next.0 {
            return None;
        }
        next.0 = now + EVERY;
        Some(next.1.clone())
    }

    /// Notes where the next sweep begins, and when.
    fn end(&self, removed: i32, after: String) {
        let mut next = self.next();
        next.1 = after;
        if removed > AT_MOST / 2 {
            next.0 = Instant::now() + SOON;
        }
    }

    fn next(&self) -> MutexGuard<'_, (Instant, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_unused_names_are_removed_faster() {
        let sweeper = Sweeper::new();
        advance(EVERY).await;
        assert_eq!(sweeper.begin().as_deref(), Some(""));
        sweeper.end(AT_MOST, "m".into());
        assert_eq!(sweeper.begin(), None);
        advance(SOON).await;
        assert_eq!(sweeper.begin().as_deref(), Some("m"));
        sweeper.end(AT_MOST / 2, String::new());
        advance(SOON).await;
        assert_eq!(sweeper.begin(), None);
        advance(EVERY).await;
        assert_eq!(sweeper.begin().as_deref(), Some(""));
    }
}
