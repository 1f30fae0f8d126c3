//! Where they and we meet: a lock that both know, on servers that both use.

use std::time::Duration;

use lock_testkit::PATIENCE;
use polylock::{Guard, GuardState, Holder, LockState, Locks, Released};
use tokio::task::JoinHandle;

use crate::peers::Peer;

/// A lock that a client of another library and ours contend for.
pub(crate) trait Meeting: Clone + Send + Sync + 'static {
    /// A process of ours, whose leases or session last so long unless they are renewed.
    async fn ours_for(&self, lease: Duration) -> Ours;

    /// A client of theirs.
    async fn theirs(&self) -> Box<dyn Peer>;

    /// A process of ours.
    async fn ours(&self) -> Ours {
        self.ours_for(LEASE).await
    }

    /// One of each.
    async fn both(&self) -> (Ours, Box<dyn Peer>) {
        (self.ours().await, self.theirs().await)
    }

    /// Waits until so many hold the lock or wait for it, where the store can tell.
    async fn until_there_are(&self, _count: usize) {}

    /// Nobody has touched the lock that this guard holds.
    async fn is_untouched(&self, guard: &Guard) {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert!(guard.is_valid());
    }

    /// Takes their lock from them, and they do not know.
    async fn takes_from_them(&self, ours: &Ours) {
        assert!(ours.locks.break_lock(&*ours.name).await.unwrap());
    }

    /// Whether the lock is gone for them.
    async fn has_moved(&self) -> bool {
        false
    }

    /// Whoever comes next can have the lock.
    async fn is_free(&self, ours: &Ours, theirs: &mut dyn Peer) {
        assert!(theirs.acquire(PATIENCE).await);
        assert_ne!(theirs.release().await, Some(false));
        release(ours.hold().await).await;
        self.until_there_are(0).await;
    }
}

/// How a lock is acquired.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Recipe {
    #[default]
    Mutex,
    Read,
    Write,
}

/// A process of ours, with one lock.
#[derive(Clone)]
pub(crate) struct Ours {
    pub(crate) locks: Locks,
    pub(crate) name: String,
    pub(crate) recipe: Recipe,
}

impl Ours {
    pub(crate) async fn connect(url: &str, name: &str) -> Self {
        let locks = Locks::connect(url).await.unwrap_or_else(|error| panic!("{error}"));
        Self { locks, name: name.to_owned(), recipe: Recipe::Mutex }
    }

    pub(crate) fn by(&self, recipe: Recipe) -> Self {
        Self { recipe, ..self.clone() }
    }

    pub(crate) async fn acquire(&self, wait: Duration) -> Option<Guard> {
        let (mutex, rw) = (self.locks.mutex(&*self.name), self.locks.rw(&*self.name));
        // A busy machine may keep the server from answering for longer than no time.
        let acquired = match self.recipe {
            Recipe::Mutex if wait == NOW => mutex.try_acquire().await,
            Recipe::Mutex => mutex.try_acquire_for(wait).await,
            Recipe::Read if wait == NOW => rw.try_read().await,
            Recipe::Read => rw.try_read_for(wait).await,
            Recipe::Write if wait == NOW => rw.try_write().await,
            Recipe::Write => rw.try_write_for(wait).await,
        };
        acquired.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The lock, which is free or will be.
    pub(crate) async fn hold(&self) -> Guard {
        self.acquire(PATIENCE).await.unwrap_or_else(|| panic!("{} is busy", self.name))
    }

    /// Waits for the lock, which is busy.
    pub(crate) async fn waits(&self) -> JoinHandle<Guard> {
        let ours = self.clone();
        let waiter = tokio::spawn(async move { ours.hold().await });
        a_moment().await;
        assert!(!waiter.is_finished(), "we got the lock");
        waiter
    }

    pub(crate) async fn is_kept_out(&self) {
        for wait in [NOW, MOMENT] {
            assert!(self.acquire(wait).await.is_none(), "we got {} within {wait:?}", self.name);
        }
    }

    pub(crate) async fn inspect(&self) -> LockState {
        self.locks.inspect(&*self.name).await.unwrap()
    }

    pub(crate) async fn sees_a_foreign_holder(&self) -> String {
        match self.inspect().await.holder() {
            Some(Holder::Foreign(text)) => text.clone(),
            holder => panic!("{holder:?}"),
        }
    }
}

pub(crate) async fn release(guard: Guard) {
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

pub(crate) async fn are_kept_out(theirs: &mut dyn Peer) {
    for wait in [NOW, MOMENT] {
        assert!(!theirs.acquire(wait).await, "they got the lock within {wait:?}");
    }
}

/// They wait for the lock, which is busy.
pub(crate) async fn wait(mut theirs: Box<dyn Peer>) -> JoinHandle<Box<dyn Peer>> {
    let waiter = tokio::spawn(async move {
        assert!(theirs.acquire(PATIENCE).await, "they did not get what we released");
        theirs
    });
    a_moment().await;
    assert!(!waiter.is_finished(), "they got the lock");
    waiter
}

/// In which who was let in would notice.
pub(crate) async fn a_moment() {
    // Time: nothing happens.
    tokio::time::sleep(MOMENT).await;
}

pub(crate) const NOW: Duration = Duration::ZERO;
/// Longer than most of them rest between two tries.
// Time: nothing shows that they have asked.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);
/// Of leases and sessions that must not end.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// Of those that do: longer than it takes the other client to ask, on a busy machine. Whole seconds, in which python-redis-lock
/// counts.
pub(crate) const SHORT: Duration = Duration::from_secs(5);
