//! Grants that nobody wants: which acquisitions this process pursues, and the return of what others are granted.
//!
//! An entry of a wait queue may outlive its acquisition: a server that hung carries out a request long after the caller
//! gave up, and a promoted replica has entries that the old master had removed. The server takes such an entry for a
//! waiter, as its process listens, and grants it the lock. This process is notified then, and gives the grant back.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{GuardState, OwnerId, Validity};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::server::{Request, Sent, TakeBack, Waiter};
use crate::{Keys, Server};

/// How long a grant is tried to be given back: by then it has ended by itself.
const GRACE: Duration = Duration::from_secs(1);
/// So many are given back at a time. The others end by themselves.
const MOST_AT_A_TIME: usize = 1024;
/// The grants of this time are reported in one warning.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// The acquisitions of this process that wait in a queue, or came from one.
///
/// An acquisition is registered before the server can know of it, and until its lock is released or what it may have left
/// is removed: a notification is never about an acquisition that is yet to be registered.
#[derive(Debug, Default)]
pub struct Acquisitions(Mutex<HashMap<OwnerId, Stage>>);

/// One of the [`Acquisitions`], as long as it exists.
pub struct Registration {
    all: Arc<Acquisitions>,
    owner: OwnerId,
}

#[derive(Debug)]
enum Stage {
    Waits,
    Held(Validity),
    /// What it may have left is being removed.
    Ends {
        /// Whether its last request was not answered.
        in_doubt: bool,
    },
}

/// Whether a grant is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Wanted,
    /// Given up a moment ago: a grant that crosses the removal of its entry is nothing unusual.
    GivenUp,
    /// Nobody has pursued it for some time.
    Unwanted,
}

impl Acquisitions {
    /// Registers an acquisition, before anything is sent that may put it into a queue.
    #[must_use]
    pub fn register(self: &Arc<Self>, owner: OwnerId) -> Registration {
        self.by_owner().insert(owner, Stage::Waits);
        Registration { all: Arc::clone(self), owner }
    }

    pub(crate) fn interest(&self, owner: OwnerId) -> Interest {
        match self.by_owner().get(&owner) {
            None | Some(Stage::Ends { in_doubt: true }) => Interest::Unwanted,
            Some(Stage::Ends { in_doubt: false }) => Interest::GivenUp,
            // A lease that was lost stays lost, also if the server grants it again.
            Some(Stage::Held(validity)) if matches!(validity.state(), GuardState::Lost(_)) => {
                Interest::GivenUp
            }
            Some(Stage::Waits | Stage::Held(_)) => Interest::Wanted,
        }
    }

    fn by_owner(&self) -> MutexGuard<'_, HashMap<OwnerId, Stage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Notes that it holds the lock for as long as this is valid.
    pub(crate) fn holds(&self, validity: Validity) {
        self.all.by_owner().insert(self.owner, Stage::Held(validity));
    }

    /// Notes that it was given up, and what is known of its last request.
    pub fn ends(&self, last: Sent) {
        let in_doubt = last != Sent::Answered;
        self.all.by_owner().insert(self.owner, Stage::Ends { in_doubt });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let stage = self.all.by_owner().remove(&self.owner);
        drop(stage);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.owner).finish()
    }
}

/// A grant that a process was notified of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant<'a> {
    pub(crate) owner: OwnerId,
    key: &'a str,
    /// Not the lock itself, but to go first on one of several masters, for so long.
    turn: Option<Duration>,
}

impl<'a> Grant<'a> {
    /// Reads what a notification says to this owner: see tell in lua/waiter.lua, lua/pass_on.lua and lua/vacate.lua.
    pub(crate) fn read(what: &str, owner: &str, rest: &'a str, turn: Duration) -> Option<Self> {
        let (key, turn) = match what {
            "granted" => (rest, None),
            "passed" => (rest.split_once(' ')?.1, None),
            "turn" => (rest, Some(turn)),
            _ => return None,
        };
        Some(Self { owner: OwnerId::decode(owner)?, key, turn })
    }
}

/// Gives grants back to one server.
#[derive(Debug)]
pub(crate) struct Returns {
    server: Arc<Server>,
    running: AtomicUsize,
    /// How many were given back and are not reported yet.
    unreported: AtomicUsize,
}

impl Returns {
    pub(crate) fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server, running: AtomicUsize::new(0), unreported: AtomicUsize::new(0) })
    }

    /// Gives a grant back in the background, which hands it over to the next waiter. It touches nothing but what this owner
    /// has. `inbox` is the channel of the notification.
    pub(crate) fn give_back(self: &Arc<Self>, grant: &Grant<'_>, inbox: &str, reports: bool) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.running.fetch_add(1, Ordering::AcqRel) >= MOST_AT_A_TIME {
            self.running.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (owner, turn, inbox) = (grant.owner, grant.turn, inbox.to_owned());
        let running = Running(Arc::clone(self));
        let keys = Keys::of(grant.key);
        drop(runtime.spawn(async move {
            let this = Arc::clone(&running.0);
            let given_back = match turn {
                None => this.return_lock(&keys, owner).await,
                Some(turn) => this.return_turn(&keys, owner, &inbox, turn).await,
            };
            drop(running);
            tracing::debug!(lock = keys.lock(), ?given_back, "a grant that nobody waits for");
            if reports && given_back == Some(true) {
                this.report().await;
            }
        }));
    }

    async fn return_lock(&self, keys: &Keys, owner: OwnerId) -> Option<bool> {
        let terms = TakeBack::new(keys, GRACE, Sent::Answered);
        self.server.take_back(terms, || self.server.release(keys, owner, None)).await
    }

    async fn return_turn(&self, keys: &Keys, owner: OwnerId, inbox: &str, turn: Duration) -> Option<bool> {
        let waiter = Waiter { id: owner, inbox, since: None };
        let vacate = Request::vacate(keys, owner, Some(&waiter), Some(turn));
        let vacate = || async { Ok(self.server.vacate(&vacate).await?.was_ours) };
        self.server.take_back(TakeBack::new(keys, turn, Sent::Answered), vacate).await
    }

    /// Warns of all that were given back within a second.
    async fn report(self: &Arc<Self>) {
        if self.unreported.fetch_add(1, Ordering::AcqRel) == 0 {
            let _report = Report(Arc::clone(self));
            sleep(REPORT_AFTER).await;
        }
    }
}

/// A warning that is given when this is dropped: also when the runtime ends first, or there would never be another.
struct Report(Arc<Returns>);

impl Drop for Report {
    fn drop(&mut self) {
        let given_back = self.0.unreported.swap(0, Ordering::AcqRel);
        tracing::warn!(
            server = self.0.server.address(),
            given_back,
            "locks were granted to waiters that had left, and were given back at once: the server answered so late that \
             they had given up, or a failover brought their entries back"
        );
    }
}

struct Running(Arc<Returns>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ServerOptions;

    #[test]
    fn a_grant_names_its_owner_and_its_lock() {
        let (owner, turn) = (OwnerId::random(), Duration::from_millis(100));
        let read = |what, rest| Grant::read(what, &owner.to_string(), rest, turn);
        let grant = |turn| Some(Grant { owner, key: "lock:a b", turn });
        assert_eq!(read("granted", "lock:a b"), grant(None));
        assert_eq!(read("passed", "17 lock:a b"), grant(None));
        assert_eq!(read("turn", "lock:a b"), grant(Some(turn)));
        // As earlier versions of the scripts say it.
        assert_eq!(read("passed", "17"), None);
        assert_eq!(read("next", "100"), None);
        assert_eq!(Grant::read("granted", "nobody", "lock:a", turn), None);
    }

    #[test]
    fn an_acquisition_is_known_until_it_has_ended() {
        let all = Arc::<Acquisitions>::default();
        let owner = OwnerId::random();
        assert_eq!(all.interest(owner), Interest::Unwanted);
        let registration = all.register(owner);
        assert_eq!(all.interest(owner), Interest::Wanted);
        registration.ends(Sent::Answered);
        assert_eq!(all.interest(owner), Interest::GivenUp);
        // Its request was carried out when nobody waited for it any more.
        registration.ends(Sent::InDoubt { connection: None });
        assert_eq!(all.interest(owner), Interest::Unwanted);
        drop(registration);
        assert_eq!(all.interest(owner), Interest::Unwanted);
    }

    #[test]
    fn a_report_whose_runtime_ends_is_given_and_does_not_silence_the_next() {
        let (log, _guard) = lock_testkit::Log::begin();
        let address = redis::IntoConnectionInfo::into_connection_info("redis://127.0.0.1:1").unwrap();
        let server = Server::new(ServerOptions::new("redis", address)).unwrap();
        let returns = Returns::new(Arc::new(server));
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
