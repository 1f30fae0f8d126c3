//! Returns grants that no acquisition claims.
//!
//! An entry of a wait queue may outlive its acquisition: a paused server runs a request long after the caller gave up, and
//! a promoted replica has entries that the old master had removed. The server takes such an entry for a waiter, as its
//! process is subscribed, and grants it the lock. The process is notified, and returns the grant: only one that a queue entry of its own
//! proves, and whose owner id nobody uses any more.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{OwnerId, Token};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::scripts::keys::Keys;

/// How many grants are returned concurrently. Further ones expire.
const MOST_AT_A_TIME: usize = 1024;
/// After a return that found nothing, messages about the same grant are repetitions for so long.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);
/// All grants within this time are reported in one warning.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// A grant to an owner without an acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclaimedGrant {
    /// The identity of the acquisition that ended.
    pub owner: OwnerId,
    /// The token of the grant, if the notification has it.
    pub token: Option<Token>,
    /// The keys of the lock.
    pub keys: Keys,
}

/// Returns grants to a server; implemented by each backend.
#[async_trait]
pub trait ReturnGrant: fmt::Debug + Send + Sync + 'static {
    /// Removes what this owner has of this lock, so that the next waiter gets it. Reports whether there was anything, if
    /// that is known.
    async fn return_grant(&self, grant: &UnclaimedGrant) -> Option<bool>;

    /// The address of the server.
    fn address(&self) -> &str;
}

/// The grants that are being returned to one server.
#[derive(Debug)]
pub(crate) struct Returns {
    server: Arc<dyn ReturnGrant>,
    running: AtomicUsize,
    /// The owners whose grants are being returned, and those of which nothing was found until then.
    recent: Mutex<HashMap<OwnerId, Option<Instant>>>,
    /// The number of grants that were returned and not yet reported.
    unreported: AtomicUsize,
}

impl Returns {
    pub(crate) fn new(server: Arc<dyn ReturnGrant>) -> Arc<Self> {
        let (running, unreported) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { server, running, recent: Mutex::default(), unreported })
    }

    /// Returns a grant in the background, once: whoever heard its message can repeat it as often as they like.
    pub(crate) fn give_back(self: &Arc<Self>, grant: UnclaimedGrant, reports: bool) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.is_repeated(grant.owner) {
            return;
        }
        if self.running.fetch_add(1, Ordering::AcqRel) >= MOST_AT_A_TIME {
            self.running.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        self.recent().insert(grant.owner, None);
        let running = Running(Arc::clone(self), grant.owner);
        drop(runtime.spawn(async move {
            let this = Arc::clone(&running.0);
            let given_back = this.server.return_grant(&grant).await;
            drop(running);
            if given_back != Some(true) {
                this.recent().insert(grant.owner, Some(Instant::now() + REPEATED_WITHIN));
            }
            tracing::debug!(
                lock = grant.keys.lock(),
                ?given_back,
                "returned a grant that no acquisition claims"
            );
            if reports && given_back == Some(true) {
                this.report().await;
            }
        }));
    }

    fn is_repeated(&self, owner: OwnerId) -> bool {
        let (mut recent, now) = (self.recent(), Instant::now());
        if recent.len() > 2 * MOST_AT_A_TIME {
            recent.retain(|_, until| until.is_none_or(|until| now < until));
        }
        recent.get(&owner).is_some_and(|until| until.is_none_or(|until| now < until))
    }

    fn recent(&self) -> MutexGuard<'_, HashMap<OwnerId, Option<Instant>>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs one warning for all grants that are returned within a second.
    async fn report(self: &Arc<Self>) {
        if self.unreported.fetch_add(1, Ordering::AcqRel) == 0 {
            let _report = Report(Arc::clone(self));
            sleep(REPORT_AFTER).await;
        }
    }
}

/// Logs the warning when it is dropped, even if the runtime ends first.
struct Report(Arc<Returns>);

impl Drop for Report {
    fn drop(&mut self) {
        let given_back = self.0.unreported.swap(0, Ordering::AcqRel);
        tracing::warn!(
            server = self.0.server.address(),
            given_back,
            "locks were granted to waiters that had given up, and were returned at once: the server answered late, or a \
             failover restored their queue entries"
        );
    }
}

/// A return under way, also of a runtime that ends.
struct Running(Arc<Returns>, OwnerId);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.recent().remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoServer;

    #[async_trait]
    impl ReturnGrant for NoServer {
        async fn return_grant(&self, _: &UnclaimedGrant) -> Option<bool> {
            None
        }

        fn address(&self) -> &'static str {
            "a:1"
        }
    }

    /// Finds something or not, and counts how often it was asked.
    #[derive(Debug)]
    struct Finds(bool, AtomicUsize);

    #[async_trait]
    impl ReturnGrant for Finds {
        async fn return_grant(&self, _: &UnclaimedGrant) -> Option<bool> {
            self.1.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(10)).await;
            Some(self.0)
        }

        fn address(&self) -> &'static str {
            "a:1"
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_is_repeated_is_returned_once_in_a_while() {
        for (finds, asked) in [(true, [1, 2, 3]), (false, [1, 1, 2])] {
            let server = Arc::new(Finds(finds, AtomicUsize::new(0)));
            let returns = Returns::new(Arc::clone(&server) as Arc<dyn ReturnGrant>);
            let (owner, keys) = (OwnerId::random(), Keys::of("lock:a"));
            for (pause, asked) in [0, 500, 1_000].into_iter().zip(asked) {
                sleep(Duration::from_millis(pause)).await;
                for _ in 0..1_000 {
                    returns.give_back(UnclaimedGrant { owner, token: None, keys: keys.clone() }, false);
                }
                sleep(Duration::from_millis(20)).await;
                assert_eq!(server.1.load(Ordering::SeqCst), asked, "{finds} after {pause} ms");
            }
            for _ in 0..10 {
                returns.give_back(
                    UnclaimedGrant { owner: OwnerId::random(), token: None, keys: keys.clone() },
                    false,
                );
            }
            sleep(Duration::from_millis(20)).await;
            assert_eq!(server.1.load(Ordering::SeqCst), asked[2] + 10, "each of several");
        }
    }

    #[test]
    fn a_report_whose_runtime_ends_is_logged_and_does_not_suppress_the_next() {
        let (log, _guard) = lock_testkit::LogCapture::begin();
        let returns = Returns::new(Arc::new(NoServer));
        for reports in 1..=2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                let returns = Arc::clone(&returns);
                drop(tokio::spawn(async move { returns.report().await }));
                tokio::task::yield_now().await;
            });
            drop(runtime);
            assert_eq!(log.warnings("given_back=1").len(), reports);
        }
    }
}
