//! What readers and holders of permits have in common: each case runs for both.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{
    Clock, ErrorKind, Guard, GuardState, LockMode, LockOptions, LossReason, OwnerInfo, Released, Result,
    Token,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::guards::lifetime::must_be_extended;
use crate::conformance::guards::tokens::must_grow;
use crate::conformance::helpers::{
    LEASE_SLACK, LOOK, NOISE, PATIENCE, SOON, client, eventually, fresh, give_back, must_be_busy,
    nothing_left, short_client, take, within,
};
use crate::helpers::cancel::cancel_after;

/// A way to share a lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Share {
    Reader,
    /// With this maximum.
    Permit(u32),
}

impl Share {
    pub(crate) async fn take(self, locks: &Client, name: &str) -> Guard {
        self.take_with(locks, name, LockOptions::new()).await
    }

    pub(crate) async fn take_fixed(self, locks: &Client, name: &str, ttl: Duration) -> Guard {
        self.take_with(locks, name, LockOptions::new().fixed_ttl(ttl)).await
    }

    pub(crate) async fn take_with(self, locks: &Client, name: &str, options: LockOptions) -> Guard {
        let acquire = async {
            match self {
                Self::Reader => locks.rw_with(name, options)?.read().await,
                Self::Permit(max) => locks.semaphore_with(name, max, options)?.acquire().await,
            }
        };
        let acquired = within(SOON, "a share of the lock", acquire).await;
        acquired.unwrap_or_else(|error| panic!("cannot acquire: {error:?}"))
    }

    pub(crate) async fn try_take(self, locks: &Client, name: &str) -> Option<Guard> {
        let acquire = async {
            match self {
                Self::Reader => locks.rw(name).try_read().await,
                Self::Permit(max) => locks.semaphore(name, max).try_acquire().await,
            }
        };
        let acquired = within(SOON, "the answer of a try", acquire).await;
        acquired.unwrap_or_else(|error| panic!("contention is not an error: {error:?}"))
    }

    pub(crate) async fn must_be_busy(self, locks: &Client, name: &str) {
        let guard = self.try_take(locks, name).await;
        assert!(guard.is_none(), "{self:?} shares the lock with an incompatible holder: {guard:?}");
    }

    pub(crate) async fn take_for(
        self,
        locks: &Client,
        name: &str,
        patience: Duration,
    ) -> Result<Option<Guard>> {
        match self {
            Self::Reader => locks.rw(name).try_read_for(patience).await,
            Self::Permit(max) => locks.semaphore(name, max).try_acquire_for(patience).await,
        }
    }

    /// Waits without a limit.
    pub(crate) async fn acquire(self, locks: &Client, name: &str) -> Result<Guard> {
        match self {
            Self::Reader => locks.rw(name).read().await,
            Self::Permit(max) => locks.semaphore(name, max).acquire().await,
        }
    }

    /// Waits in the background.
    pub(crate) fn wait(self, locks: &Client, name: &str) -> JoinHandle<Guard> {
        let (locks, name) = (locks.clone(), name.to_owned());
        tokio::spawn(async move { self.acquire(&locks, &name).await.unwrap() })
    }
}

/// As many as a few holders need.
pub(crate) const PERMIT: Share = Share::Permit(4);

pub(crate) async fn renewed_each(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (short_client(harness).await, short_client(harness).await, fresh());
    let (other, lease) = (client(harness).await, harness.short_lease());
    let mut guards = vec![share.take(&one, &name).await, share.take(&two, &name).await];
    guards.push(share.take(&one, &name).await);
    while let Some(left) = guards.pop() {
        let start = Instant::now();
        while start.elapsed() < 3 * lease {
            must_be_busy(&other, &name).await;
            for guard in guards.iter().chain([&left]) {
                let state = guard.state();
                assert!(guard.is_valid(), "lost after {:?}: {state:?}", start.elapsed());
                assert!(guard.remaining() <= lease, "valid for another {:?}", guard.remaining());
            }
            sleep(lease / 3).await;
        }
        give_back(left).await;
    }
    give_back(take(&other, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn extends_its_own(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (short_client(harness).await, short_client(harness).await, fresh());
    let ttl = harness.short_lease();
    let guard = share.take_fixed(&one, &name, ttl).await;
    let other = share.take_fixed(&two, &name, ttl).await;
    let before = Clock::boot().now();
    let until = within(SOON, "the extension", guard.extend(4 * ttl)).await.unwrap();
    must_be_extended(harness, &guard.validity(), until, before + 3 * ttl);
    assert!(until <= Clock::boot().now() + 4 * ttl, "{until:?}");
    within(ttl + NOISE, "the other to lose its share", other.lost()).await;
    sleep(ttl).await;
    assert!(guard.is_valid());
    must_be_busy(&two, &name).await;
    assert_eq!(other.release().await.unwrap(), Released::AlreadyLost);
    must_be_busy(&two, &name).await;
    give_back(guard).await;
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn late_release(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let alive = share.take(&two, &name).await;
    for by_drop in [false, true] {
        let late = share.take_fixed(&one, &name, harness.short_lease()).await;
        within(harness.short_lease() + NOISE, "the guard to say that it lost", late.lost()).await;
        if by_drop {
            drop(late);
            sleep(NOISE).await;
        } else {
            assert_eq!(within(SOON, "the release", late.release()).await.unwrap(), Released::AlreadyLost);
        }
        must_be_busy(&one, &name).await;
        assert_eq!(alive.verify().await.unwrap(), GuardState::Valid, "a late release ended another's share");
    }
    give_back(alive).await;
    give_back(take(&one, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn tokens_grow_and_differ(harness: &dyn Harness, share: Share) {
    let (clients, name) = ([client(harness).await, client(harness).await], fresh());
    let mut tokens = Vec::new();
    for round in 0..5 {
        let mut guards = Vec::new();
        for holder in 0..3 {
            guards.push(share.take(&clients[(round + holder) % 2], &name).await);
        }
        tokens.extend(guards.iter().map(Guard::token));
        for guard in guards {
            give_back(guard).await;
        }
        let alone = take(&clients[round % 2], &name).await;
        tokens.push(alone.token());
        give_back(alone).await;
    }
    must_grow(&tokens);

    let (last, tokens) = (tokens[tokens.len() - 1], Arc::new(Mutex::new(BTreeSet::<Token>::new())));
    let mut running = JoinSet::new();
    for task in 0..12 {
        let (locks, name, tokens) = (clients[task % 2].clone(), name.clone(), Arc::clone(&tokens));
        running.spawn(async move {
            let guard = within(PATIENCE, "a turn", share.acquire(&locks, &name)).await.unwrap();
            assert!(guard.token() > last, "token {} came after {last}", guard.token());
            assert!(
                tokens.lock().unwrap().insert(guard.token()),
                "token {} was granted twice",
                guard.token()
            );
            sleep(LOOK).await;
            give_back(guard).await;
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no task fails");
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn inspect_shows_one(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let labelled = |label: &str| LockOptions::new().label(label);
    let mut holders = vec![
        ("first", share.take_with(&one, &name, labelled("first")).await),
        ("second", share.take_with(&two, &name, labelled("second")).await),
    ];
    let mutex = two.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    if harness.capabilities().counts_waiters {
        let sees = || async { (one.inspect(&name).await.unwrap().waiters == 1).then_some(()) };
        eventually(SOON, "one waiter in sight", sees).await;
    }
    for known in [true, false] {
        let state = one.inspect(&name).await.unwrap();
        assert!(state.is_held(), "some hold the lock: {state:?}");
        let Some((owner, holder)) = state.holders.iter().find_map(|holder| Some((holder.owner()?, holder)))
        else {
            // Not every store keeps the owners of all holders.
            assert!(
                !known && !harness.capabilities().names_sharers,
                "the last who came is one of ours: {state:?}"
            );
            break;
        };
        let shown =
            holders.iter().position(|(label, _)| *owner == OwnerInfo::this_process().with_label(*label));
        let (_, guard) =
            holders.remove(shown.unwrap_or_else(|| panic!("none of the holders is shown: {state:?}")));
        assert_eq!(holder.token, Some(guard.token()), "the token is not that of the holder");
        assert!(guard.is_valid(), "inspect must not change the lock");
        give_back(guard).await;
    }
    for (_, guard) in holders {
        give_back(guard).await;
    }
    give_back(within(SOON, "the waiter to get the lock", waiter).await.unwrap()).await;
    let state = one.inspect(&name).await.unwrap();
    assert!(!state.is_held() && state.waiters == 0, "{state:?}");
    nothing_left(harness, &name).await;
}

pub(crate) async fn inspect_shows_all(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut guards = Vec::new();
    for (locks, label) in [(&one, "first"), (&two, "second"), (&one, "third")] {
        guards.push((label, share.take_with(locks, &name, LockOptions::new().label(label)).await));
    }
    let last = guards.last().expect("there are three").1.token();
    while !guards.is_empty() {
        let state = two.inspect(&name).await.unwrap();
        assert_eq!(state.holders.len(), guards.len(), "{state:?}");
        assert_eq!((state.waiters, state.queue.len()), (0, 0), "{state:?}");
        for holder in &state.holders {
            let is_so = match (share, holder.mode) {
                (Share::Reader, mode) => mode == LockMode::Shared,
                (Share::Permit(own), LockMode::Permit { max, .. }) => max.is_none_or(|max| max.get() == own),
                (Share::Permit(_), _) => false,
            };
            assert!(is_so, "{state:?}");
            let Some(owner) = holder.owner() else {
                assert!(!harness.capabilities().names_sharers, "{state:?}");
                assert_eq!((holder.token, holder.since), (None, None), "{state:?}");
                continue;
            };
            let guard = guards.iter().find(|(label, _)| owner.label.as_deref() == Some(*label));
            let (_, guard) = guard.unwrap_or_else(|| panic!("{owner} does not hold it: {state:?}"));
            assert!(
                holder.token == Some(guard.token()) && holder.since.or(holder.asked).is_some(),
                "{state:?}"
            );
        }
        let mut tokens: Vec<_> = state.holders.iter().filter_map(|holder| holder.token).collect();
        tokens.sort_unstable();
        if harness.capabilities().names_sharers {
            let all: Vec<_> = guards.iter().map(|(_, guard)| guard.token()).collect();
            assert_eq!(tokens, all, "{state:?}");
        } else if harness.parts().is_empty() {
            assert_eq!(tokens, [last], "the last who came is known: {state:?}");
        } else {
            // One of its stores may know all.
            assert!(tokens.contains(&last), "the last who came is known: {state:?}");
        }
        give_back(guards.remove(0).1).await;
    }
    assert!(!two.inspect(&name).await.unwrap().is_held());
    nothing_left(harness, &name).await;
}

pub(crate) async fn one_is_broken(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let mut guards = Vec::new();
    for locks in [&one, &two, &one] {
        guards.push(share.take(locks, &name).await);
    }
    let last = guards.pop().expect("there are three");
    assert!(within(SOON, "the answer", two.break_lock_if(&name, last.token())).await.unwrap());
    let limit = harness.short_lease() + LEASE_SLACK;
    assert_eq!(within(limit, "the holder to notice", last.lost()).await, LossReason::Removed);
    assert_eq!(last.release().await.unwrap(), Released::AlreadyLost);
    must_be_busy(&two, &name).await;
    for guard in &guards {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "others keep their shares");
    }
    assert!(!within(SOON, "the answer", two.break_lock_if(&name, Token::new(0))).await.unwrap_or(false));

    let first = guards.remove(0);
    match within(SOON, "the answer", two.break_lock_if(&name, first.token())).await {
        // Its token may be one that the store does not show.
        Ok(false) if !harness.shows_own_tokens() => {
            assert_eq!(first.verify().await.unwrap(), GuardState::Valid, "nothing has happened");
            give_back(first).await;
        }
        Ok(broken) => {
            assert!(broken, "it holds the lock");
            assert_eq!(within(limit, "the holder to notice", first.lost()).await, LossReason::Removed);
            assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
        }
        Err(error) => {
            assert!(
                error.kind() == ErrorKind::Unsupported && !harness.capabilities().names_sharers,
                "{error}"
            );
            assert_eq!(first.verify().await.unwrap(), GuardState::Valid, "nothing has happened");
            give_back(first).await;
        }
    }
    for guard in guards {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "others keep their shares");
        give_back(guard).await;
    }
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn all_end(harness: &dyn Harness, share: Share, broken: bool) {
    let (one, two, name) = (short_client(harness).await, short_client(harness).await, fresh());
    let guards =
        [share.take(&one, &name).await, share.take(&two, &name).await, share.take(&one, &name).await];
    if broken {
        assert!(two.break_lock(&name).await.unwrap(), "the lock was held");
        assert!(!two.break_lock(&name).await.unwrap(), "it is broken whole");
    } else {
        harness.delete_behind_the_back(&name).await;
    }
    let next = take(&client(harness).await, &name).await;
    for guard in guards {
        assert!(next.token() > guard.token(), "token {} came after {}", next.token(), guard.token());
        let limit = harness.short_lease() + LEASE_SLACK;
        assert_eq!(within(limit, "the holder to notice", guard.lost()).await, LossReason::Removed);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

/// No operation is polled nearly as often.
const MOST_POLLS: usize = 1_000;

pub(crate) async fn cancelled_leave_nothing(harness: &dyn Harness, share: Share) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    // When the lock is available: beside a holder, and alone.
    for beside in [false, true] {
        let mut done = false;
        for k in 0..MOST_POLLS {
            let holder = if beside { Some(share.take(&one, &name).await) } else { None };
            let acquired = within(SOON, "the lock", cancel_after(k, share.acquire(&two, &name))).await;
            done = acquired.is_some();
            drop(acquired.transpose().unwrap());
            if let Some(holder) = holder {
                // One more may hold it, as soon as the cancelled acquisition is rolled back.
                give_back(share.take(&two, &name).await).await;
                assert!(holder.is_valid());
                give_back(holder).await;
            }
            give_back(take(&one, &name).await).await;
            nothing_left(harness, &name).await;
            if done {
                break;
            }
        }
        assert!(done, "the lock was not acquired after {MOST_POLLS} polls");
    }
    // When it has to wait.
    let guard = take(&one, &name).await;
    let mut done = false;
    for k in 0..MOST_POLLS {
        let waiting = share.take_for(&two, &name, NOISE);
        let waited = within(SOON, "the deadline", cancel_after(k, waiting)).await;
        done = waited.is_some();
        assert!(waited.transpose().unwrap().flatten().is_none(), "it is held by one alone");
        assert!(guard.is_valid());
        if done {
            break;
        }
    }
    assert!(done, "the deadline was not kept after {MOST_POLLS} polls");
    give_back(guard).await;
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
    // When it is granted to several waiters at this moment.
    for round in 0..20 {
        let guard = take(&one, &name).await;
        let (leaves, stays) = (share.wait(&two, &name), share.wait(&one, &name));
        sleep(Duration::from_millis(10)).await;
        let release = tokio::spawn(guard.release());
        sleep(Duration::from_micros(150 * round)).await;
        leaves.abort();
        drop(leaves.await);
        within(SOON, "the release", release).await.unwrap().unwrap();
        give_back(within(SOON, "the one that stays to get the lock", stays).await.unwrap()).await;
        give_back(take(&two, &name).await).await;
        nothing_left(harness, &name).await;
    }
}
