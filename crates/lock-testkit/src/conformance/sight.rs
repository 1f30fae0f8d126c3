//! Looking at a lock, and taking it away.

use std::process;
use std::time::{Duration, SystemTime};

use lock_core::{Holder, LockOptions, LossReason, OwnerInfo, Released, Standing};

use super::steps::{
    LEASE_SLACK, SOON, client, eventually, fresh, give_back, must_be_busy, nothing_left, short_client, take,
    within,
};
use super::{Handle, Harness};

pub(super) async fn inspect_shows_a_free_lock(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let state = locks.inspect(&name).await.unwrap();
    assert!(
        !state.is_held() && state.holder.is_none() && state.waiters == 0 && state.token.is_none(),
        "{state:?}"
    );
    let guard = take(&locks, &name).await;
    let token = guard.token();
    give_back(guard).await;
    let state = locks.inspect(&name).await.unwrap();
    assert!(!state.is_held() && state.waiters == 0, "{state:?}");
    assert!(
        state.token.is_none_or(|last| last == token),
        "a free lock shows its last token, or none: {state:?}"
    );
    assert!(!locks.break_lock(&name).await.unwrap(), "a free lock cannot be broken");
    nothing_left(harness, &name).await;
}

pub(super) async fn inspect_shows_the_holder(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let label = "nightly \"report\" /\n ö🔒";
    let mutex = one.mutex_with(&name, LockOptions::new().label(label)).unwrap();
    let guard = within(SOON, "the lock", mutex.acquire()).await.unwrap();
    for locks in [&one, &two] {
        let state = locks.inspect(&name).await.unwrap();
        let Some(Holder::Known(owner)) = &state.holder else {
            panic!("one of ours holds the lock: {state:?}")
        };
        assert_eq!(*owner, OwnerInfo::this_process().with_label(label));
        assert_eq!(owner.pid, process::id());
        assert_eq!(state.token, Some(guard.token()));
        assert_eq!(state.waiters, 0);
        let since = state.since.expect("the store keeps since when the lock is held");
        let now = SystemTime::now();
        let ago = now.duration_since(since).unwrap_or_else(|ahead| ahead.duration());
        assert!(ago < Duration::from_secs(60), "held since {since:?}, and it is {now:?}");
    }
    assert!(guard.is_valid(), "a look disturbs nobody");
    must_be_busy(&two, &name).await;
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn inspect_counts_the_waiters(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    let waiting = [&one, &one, &two, &three].map(|locks| {
        let mutex = locks.mutex(&name);
        tokio::spawn(async move { give_back(mutex.acquire().await.unwrap()).await })
    });
    // Two tasks of its own, and one of each of the others. Who shares a lock lets the next of its own tasks ask.
    let asking = if harness.handle() == Handle::Permit { 3 } else { 2 };
    for (locks, count) in [(&one, 4), (&two, asking), (&three, asking)] {
        let sees = || async { (locks.inspect(&name).await.unwrap().waiters == count).then_some(()) };
        eventually(SOON, &format!("{count} waiters in sight"), sees).await;
    }
    give_back(guard).await;
    for waiter in waiting {
        within(SOON, "the waiter to get the lock", waiter).await.unwrap();
    }
    let gone = || async { (one.inspect(&name).await.unwrap().waiters == 0).then_some(()) };
    eventually(SOON, "no waiters in sight", gone).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn verify_asks_the_server(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    assert_eq!(within(SOON, "the answer", guard.verify()).await.unwrap(), Standing::Valid);
    harness.delete_behind_the_back(&name).await;
    let standing = within(SOON, "the answer", guard.verify()).await.unwrap();
    assert!(matches!(standing, Standing::Lost(_)), "the lock was deleted, and verify says {standing:?}");
    assert!(!guard.is_valid(), "what verify has found counts");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    nothing_left(harness, &name).await;
}

pub(super) async fn a_broken_lock_is_free_and_its_holder_knows(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    assert!(two.break_lock(&name).await.unwrap(), "the lock was held");
    let next = take(&two, &name).await;
    assert!(next.token() > guard.token());
    let limit = harness.short_lease() + LEASE_SLACK;
    let reason = within(limit, "the holder to notice", guard.lost()).await;
    assert_eq!(reason, LossReason::Removed);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), Standing::Valid);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn a_lock_deleted_by_an_operator_is_noticed(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    harness.delete_behind_the_back(&name).await;
    let limit = harness.short_lease() + LEASE_SLACK;
    let reason = within(limit, "the holder to notice", guard.lost()).await;
    assert_eq!(reason, LossReason::Removed);
    assert!(!guard.is_valid());
    let next = take(&two, &name).await;
    assert!(next.token() > guard.token(), "token {} came after {}", next.token(), guard.token());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), Standing::Valid);
    give_back(next).await;
    nothing_left(harness, &name).await;
}
