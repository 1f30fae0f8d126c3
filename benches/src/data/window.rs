//! When clients contend, on the clock of the histories.

use std::time::Duration;

use lock_testkit::now_ns;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

/// The time in which grants are counted, after a warm-up in which clients contend already.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Window {
    /// The end of the warm-up.
    pub(crate) from_ns: u64,
    /// No client asks for the lock after it.
    pub(crate) until_ns: u64,
}

impl Window {
    pub(crate) fn after(span: Duration, warm_up: Duration) -> Self {
        let from_ns = now_ns() + nanos(warm_up);
        Self { from_ns, until_ns: from_ns + nanos(span) }
    }

    pub(crate) const fn span(self) -> Duration {
        Duration::from_nanos(self.until_ns - self.from_ns)
    }

    pub(crate) const fn contains(self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && at_ns < self.until_ns
    }

    pub(crate) async fn begins(self) {
        sleep(Duration::from_nanos(self.from_ns.saturating_sub(now_ns()))).await;
    }

    pub(crate) fn left(self) -> Duration {
        Duration::from_nanos(self.until_ns.saturating_sub(now_ns()))
    }

    pub(crate) async fn ends(self) {
        sleep(self.left()).await;
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
