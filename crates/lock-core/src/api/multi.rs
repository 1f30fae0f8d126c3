//! Several mutexes that are acquired together.

mod guard;

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::time::{Instant, sleep};

pub use self::guard::MultiGuard;
use crate::api::handle::LockKey;
use crate::process::patience::{no_answer, within};
use crate::process::tasks::unpolled::unless_unpolled;
use crate::values::error::NO_BACKEND;
use crate::{Error, ErrorKind, Mutex, Result, Wait};

/// How long a wait is before the holder is looked at.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Several mutexes of one or several [`Locks`](crate::Locks), acquired together: all or none.
///
/// They are acquired one after the other, in one order for all callers: by name, then by the kind of their store, then in the
/// order of the call. So callers who want some of the same locks never wait for each other in a circle, whatever order
/// they name them in. (Two stores of the same kind, and names that get different prefixes in different processes, are the exception:
/// name them in the same order everywhere, or all of them with one prefix.) They are released at once.
///
/// A lock that is lost while the acquisition waits for a later one is noticed: all are released, and the acquisition begins
/// again, until its one deadline. So does one that is kept and not polled for a second, in a `select!` loop for instance.
///
/// The same lock by two connections, as by two names of a host or with a prefix layer beside a plain name, is refused once
/// the second has waited for a second, or for half of its time: it would wait for the first for ever.
///
/// **Several stores are no quorum.** Each lock protects what it is named after, by its own token. To keep one lock on several
/// servers, use `redlock://` or ZooKeeper.
///
/// Source of the idea: `TryAcquireAll` of C# `DistributedLock`, `RedissonMultiLock`.
///
/// # Examples
///
/// ```
/// # use lock_core::Multi;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let accounts = Multi::new([locks.mutex("account/7"), locks.mutex("account/3")])?;
/// let both = accounts.acquire().await?;
/// for guard in both.guards() {
///     println!("{} with token {}", guard.name(), guard.token()); // account/3, then account/7
/// }
/// both.run(async { /* the transfer; dropped when one of them is lost */ }).await?;
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Multi {
    /// In the order of their acquisition.
    mutexes: Vec<Mutex>,
}

impl Multi {
    /// These mutexes, in the common order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when there is none, or the same one twice; those of a mutex that can never be acquired,
    /// such as [`ErrorKind::InvalidName`].
    pub fn new(mutexes: impl IntoIterator<Item = Mutex>) -> Result<Self> {
        let mut keyed = Vec::new();
        for mutex in mutexes {
            keyed.push((mutex.key()?, mutex));
        }
        if keyed.is_empty() {
            return Err(Error::new(ErrorKind::InvalidConfig, NO_BACKEND)
                .with_message("there is no lock to acquire")
                .with_hint("name at least one"));
        }
        // Stable: what compares equal stays in the order of the call.
        keyed.sort_by(|(one, first), (other, second)| {
            one.1.cmp(&other.1).then_with(|| first.backend_name().cmp(second.backend_name()))
        });
        check_distinct(&keyed)?;
        Ok(Self { mutexes: keyed.into_iter().map(|(_, mutex)| mutex).collect() })
    }

    /// Acquires all of the locks, and waits as long as necessary.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::acquire`], for the first lock that cannot be acquired; [`ErrorKind::InvalidConfig`] when two
    /// connections lead to the same lock. The locks that were acquired before it have been released by then; in the background, once locks
    /// [were closed](crate::Locks::close).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: the locks that were acquired are released in the background.
    pub async fn acquire(&self) -> Result<MultiGuard> {
        match self.acquire_within(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("a wait without a deadline ends with a guard or an error"),
        }
    }

    /// Acquires all of the locks if all are free; else `None`, and none of them stays held.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire`], for each lock.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        self.acquire_within(Wait::Never).await
    }

    /// Acquires all of the locks within `patience`, which is one limit for all; else returns `None`, and none of them stays
    /// held.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_for`].
    pub async fn try_acquire_for(&self, patience: Duration) -> Result<Option<MultiGuard>> {
        let wait = Instant::now().checked_add(patience).map_or(Wait::Forever, Wait::Until);
        self.acquire_within(wait).await
    }

    /// Acquires all of the locks before `deadline`; else returns `None`, and none of them stays held.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_until`].
    pub async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
        self.acquire_within(Wait::Until(deadline)).await
    }

    async fn acquire_within(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        unless_unpolled(|| {
            let this = self.clone();
            async move { this.acquire_all(wait).await }
        })
        .await
    }

    async fn acquire_all(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        // Until what is held is released, or will be in the background, and counted for that.
        let _under_way: Vec<_> = self.mutexes.iter().map(Mutex::under_way).collect();
        loop {
            let mut held = MultiGuard::empty();
            let acquired = tokio::select! {
                biased;
                closed = self.closed() => Err(closed),
                acquired = self.acquire_each(&mut held, wait) => acquired,
            };
            if matches!(acquired, Ok(Progress::All)) {
                return Ok(Some(held));
            }
            if acquired.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed) {
                // In the background: closing waits for it.
                drop(held);
                return acquired.map(|_| None);
            }
            // What is not released in time is released in the background; this call fails for another reason.
            drop(within(wait, self.answer_timeout(), pin!(held.release())).await);
            match acquired? {
                Progress::Busy => return Ok(None),
                Progress::Lost if wait.is_expired() => return Ok(None),
                Progress::All | Progress::Lost => {}
            }
        }
    }

    /// The error once the locks of one of them are closed.
    async fn closed(&self) -> Error {
        let closed = self.mutexes.iter().map(|mutex| Box::pin(mutex.closed()));
        select_all(closed).await.0
    }

    fn answer_timeout(&self) -> Duration {
        self.mutexes.iter().map(Mutex::answer_timeout).max().unwrap_or_default()
    }

    async fn acquire_each(&self, held: &mut MultiGuard, wait: Wait) -> Result<Progress> {
        for mutex in &self.mutexes {
            let acquired = tokio::select! {
                biased;
                acquired = mutex.acquire_unconfirmed(wait) => acquired?,
                error = self.waits_for_itself(mutex, held, wait) => return Err(error),
                _ = held.lost(), if !held.guards().is_empty() => return Ok(Progress::Lost),
            };
            match acquired {
                Some(guard) => held.push(guard),
                // A wait has found out itself, and a deadline is kept.
                None if wait != Wait::Never => return Ok(Progress::Busy),
                None => {
                    let is_held = self.is_held_elsewhere(mutex, held).await.unwrap_or(false);
                    return if is_held { Err(same_lock(mutex)) } else { Ok(Progress::Busy) };
                }
            }
        }
        let backend = || self.mutexes.first().map_or(NO_BACKEND, Mutex::backend_name);
        let confirmed = within(wait, self.answer_timeout(), pin!(held.confirm_holds())).await;
        let holds = match confirmed.unwrap_or_else(|| Err(no_answer(backend()))) {
            Err(error) if error.kind() == ErrorKind::Lost => return Ok(Progress::Lost),
            holds => holds?,
        };
        if !held.is_valid() {
            return Ok(Progress::Lost);
        }
        // They may have been closed during that poll.
        if let Some(closed) = self.mutexes.iter().find_map(Mutex::is_closed) {
            return Err(closed);
        }
        held.keep_until(&holds);
        Ok(Progress::All)
    }

    /// Returns the reason if this mutex waits for a lock that is already held by another connection, else never.
    async fn waits_for_itself(&self, mutex: &Mutex, held: &MultiGuard, wait: Wait) -> Error {
        let pause = match wait {
            Wait::Until(deadline) => {
                let half = deadline.saturating_duration_since(Instant::now()) / 2;
                half.clamp(LONG_WAIT / 20, LONG_WAIT)
            }
            Wait::Never | Wait::Forever => LONG_WAIT,
        };
        loop {
            sleep(pause).await;
            match self.is_held_elsewhere(mutex, held).await {
                Ok(true) => return same_lock(mutex),
                Ok(false) => pending().await,
                // Perhaps the server answers the next time.
                Err(_) => {}
            }
        }
    }

    /// Whether the holder of this mutex is one of these guards, by another connection to the same store. Only the store tells:
    /// it may have several addresses, and a layer may change the names.
    async fn is_held_elsewhere(&self, mutex: &Mutex, held: &MultiGuard) -> Result<bool> {
        let connection = mutex.key()?.0;
        let pairs = self.mutexes.iter().zip(held.guards());
        let others = pairs.filter(|(other, _)| other.key().is_ok_and(|key| key.0 != connection));
        let others: Vec<_> = others.map(|(_, guard)| (guard.owner(), guard.unread_token())).collect();
        if others.is_empty() {
            return Ok(false);
        }
        let holders = mutex.inspect().await?.holders;
        Ok(holders.iter().any(|holder| others.iter().any(|(id, token)| holder.is(*id, *token))))
    }
}

/// How far an acquisition has come.
enum Progress {
    All,
    /// One of the locks was not granted in time.
    Busy,
    /// One of the locks was lost during the wait for a later one.
    Lost,
}

/// The error for a lock that is reached by two connections.
fn same_lock(mutex: &Mutex) -> Error {
    let error = Error::new(ErrorKind::InvalidConfig, mutex.backend_name())
        .with_message("two connections lead to the same lock, which would wait for itself")
        .with_hint("name each lock once, by one connection")
        .during("acquire");
    match mutex.key() {
        Ok((_, name)) => error.on(&name),
        Err(_) => error,
    }
}

/// Refuses a lock that would wait for itself.
fn check_distinct(sorted: &[(LockKey, Mutex)]) -> Result<()> {
    let is_twice = |at: usize| sorted[at + 1..].iter().any(|(key, _)| *key == sorted[at].0);
    let Some(twice) = (0..sorted.len()).find(|at| is_twice(*at)) else { return Ok(()) };
    let ((_, name), mutex) = &sorted[twice];
    Err(Error::new(ErrorKind::InvalidConfig, mutex.backend_name())
        .with_message("the same lock is named twice, and would wait for itself")
        .with_hint("name each lock once")
        .on(name))
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;
    use crate::{Clock, LockOptions, Locks, LossReason, MemoryConfig, Released};

    /// Shorter than a lease.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn locks() -> Locks {
        MemoryConfig::new().clock(Clock::tokio()).connect().unwrap()
    }

    fn multi(locks: &Locks, names: &[&str]) -> Multi {
        Multi::new(names.iter().map(|name| locks.mutex(name))).unwrap()
    }

    async fn is_free(locks: &Locks, name: &str) -> bool {
        !locks.inspect(name).await.unwrap().is_held()
    }

    #[tokio::test(start_paused = true)]
    async fn none_stays_held_when_one_is_busy() {
        let locks = locks();
        let all = multi(&locks, &["c", "a", "b"]);
        let busy = locks.mutex("c").acquire().await.unwrap();
        assert!(all.try_acquire().await.unwrap().is_none());
        assert!(all.try_acquire_for(Duration::from_secs(1)).await.unwrap().is_none());
        assert!(is_free(&locks, "a").await && is_free(&locks, "b").await);
        // A dropped acquisition releases in the background.
        assert!(timeout(Duration::from_secs(1), all.acquire()).await.is_err());
        for name in ["a", "b"] {
            assert!(timeout(PATIENCE, locks.mutex(name).acquire()).await.unwrap().is_ok());
        }
        busy.release().await.unwrap();
        let guard = timeout(PATIENCE, all.acquire()).await.unwrap().unwrap();
        let names: Vec<_> = guard.guards().iter().map(|guard| guard.name().as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        assert!(is_free(&locks, "a").await && is_free(&locks, "b").await && is_free(&locks, "c").await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_held_for_a_time_is_released_when_another_one_is_busy() {
        let (locks, hold) = (locks(), Duration::from_secs(300));
        let held_long = || locks.mutex_with("a", LockOptions::new().hold_at_least(hold)).unwrap();
        let busy = locks.mutex("b").acquire().await.unwrap();
        let both = Multi::new([held_long(), locks.mutex("b")]).unwrap();
        assert!(both.try_acquire().await.unwrap().is_none() && is_free(&locks, "a").await);
        assert!(timeout(Duration::from_secs(1), both.acquire()).await.is_err());
        let a = locks.mutex("a");
        let next = timeout(PATIENCE, a.acquire()).await.expect("it was given back").unwrap();
        next.release().await.unwrap();
        busy.release().await.unwrap();
        drop(timeout(PATIENCE, both.acquire()).await.unwrap().unwrap());
        sleep(hold / 2).await;
        assert!(!is_free(&locks, "a").await && is_free(&locks, "b").await);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_gives_back_what_an_acquisition_that_nobody_polls_holds() {
        let client = || MemoryConfig::new().name("closing").clock(Clock::tokio()).connect().unwrap();
        let (locks, other) = (client(), client());
        let _busy = other.mutex("b").acquire().await.unwrap();
        let all = multi(&locks, &["a", "b"]);
        let mut acquiring = Box::pin(all.acquire());
        assert!(timeout(Duration::from_millis(10), &mut acquiring).await.is_err());
        assert!(!is_free(&other, "a").await, "it waits for the second one");
        locks.close().await.unwrap();
        assert!(is_free(&other, "a").await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquisition_that_is_not_polled_keeps_nothing() {
        let locks = locks();
        let all = multi(&locks, &["a", "b"]);
        let busy = locks.mutex("b").acquire().await.unwrap();
        let mut acquiring = Box::pin(all.acquire());
        assert!(timeout(Duration::from_millis(10), &mut acquiring).await.is_err());
        assert!(!is_free(&locks, "a").await, "it waits for the second one");
        busy.release().await.unwrap();
        for name in ["a", "b"] {
            let guard = timeout(PATIENCE, locks.mutex(name).acquire()).await.expect("it is given back");
            guard.unwrap().release().await.unwrap();
        }
        let guard = timeout(PATIENCE, acquiring).await.expect("it starts over").unwrap();
        assert!(guard.is_valid() && guard.guards().len() == 2);
    }

    #[tokio::test(start_paused = true)]
    async fn opposite_orders_do_not_wait_in_a_circle() {
        let locks = locks();
        let tasks = [["a", "b"], ["b", "a"]].map(|names| {
            let all = multi(&locks, &names);
            tokio::spawn(async move {
                for _ in 0..100 {
                    let guard = all.acquire().await.unwrap();
                    yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        });
        for task in tasks {
            timeout(PATIENCE, task).await.expect("nobody waits for ever").unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_lost_during_the_wait_is_acquired_again() {
        let locks = locks();
        let busy = locks.mutex("b").acquire().await.unwrap();
        let all = multi(&locks, &["a", "b"]);
        let waiting = tokio::spawn(async move { all.acquire().await.unwrap() });
        yield_now().await;
        let first = locks.inspect("a").await.unwrap().token;
        assert!(locks.break_lock("a").await.unwrap());
        while locks.inspect("a").await.unwrap().token.is_none_or(|token| Some(token) == first) {
            yield_now().await;
        }
        busy.release().await.unwrap();
        let guard = timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert!(guard.is_valid() && Some(guard.guards()[0].token()) > first);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_lost_loses_all() {
        let locks = locks();
        let guard = multi(&locks, &["a", "b"]).acquire().await.unwrap();
        let validity = guard.validity();
        let (ran, _) = tokio::join!(guard.run(pending::<()>()), locks.break_lock("b"));
        let lost = ran.unwrap_err();
        assert_eq!(lost.error().kind(), ErrorKind::Lost);
        assert_eq!(lost.error().lock().map(ToString::to_string).as_deref(), Some("b"));
        assert!(!validity.is_valid() && !guard.is_valid() && guard.remaining().is_zero());
        assert_eq!(guard.lost().await, LossReason::Removed);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert!(is_free(&locks, "a").await);
    }

    #[tokio::test]
    async fn what_can_never_be_acquired_is_refused() {
        let (locks, others) = (locks(), locks());
        let refused = |mutexes: Vec<Mutex>| Multi::new(mutexes).unwrap_err().kind();
        assert_eq!(refused(Vec::new()), ErrorKind::InvalidConfig);
        assert_eq!(refused(vec![locks.mutex("")]), ErrorKind::InvalidName);
        assert_eq!(
            refused(vec![locks.mutex("a"), others.mutex("a"), locks.mutex("a")]),
            ErrorKind::InvalidConfig
        );
        let both = Multi::new([locks.mutex("a"), others.mutex("a")]).unwrap();
        assert_eq!(both.acquire().await.unwrap().guards().len(), 2, "two stores, two locks");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_lock_by_two_connections_is_refused() {
        let named = || MemoryConfig::new().name("multi").clock(Clock::tokio()).connect().unwrap();
        let (locks, same) = (named(), named());
        let both = Multi::new([locks.mutex("a"), same.mutex("a")]).unwrap();
        let is_refused = |error: Error| {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("\"a\": two connections"), "{error}");
        };
        is_refused(both.try_acquire().await.unwrap_err());
        is_refused(both.try_acquire_for(PATIENCE).await.unwrap_err());
        is_refused(timeout(PATIENCE, both.acquire()).await.unwrap().unwrap_err());
        assert!(is_free(&locks, "a").await);
        // Another holder is waited for.
        let other = Multi::new([locks.mutex("b"), same.mutex("a")]).unwrap();
        let busy = locks.mutex("a").acquire().await.unwrap();
        assert!(other.try_acquire_for(PATIENCE).await.unwrap().is_none());
        busy.release().await.unwrap();
        assert_eq!(other.acquire().await.unwrap().guards().len(), 2);
    }
}
