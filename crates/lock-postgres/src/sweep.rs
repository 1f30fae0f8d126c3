//! Removes the rows of names that are not in use, a few now and then, as a part of other work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::random;
use rand::Rng;
use tokio::time::Instant;

use crate::server::Server;

/// Between two sweeps of one process.
const EVERY: Duration = Duration::from_secs(60);
const AT_MOST: i32 = 100;
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
                Ok(next) => sweeper.next().1 = next.unwrap_or_default(),
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

    fn next(&self) -> MutexGuard<'_, (Instant, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
