//! `inspect`, `list`, `verify` and `break_lock`.

use std::process;
use std::time::{Duration, SystemTime};

use lock_core::backend::Support;
use lock_core::{
    ErrorKind, GuardState, LeaseKind, LockMode, LockOptions, LockState, LossReason, OwnerInfo, Released,
    Token,
};

use super::helpers::{
    LEASE_SLACK, LONG, NOISE, SOON, client, delete_behind_the_back, eventually, fresh, give_back,
    must_be_busy, nothing_left, short_client, take, within,
};
use super::{Handle, Harness};

pub(super) async fn inspect_shows_a_free_lock(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let state = locks.inspect(&name).await.unwrap();
    assert!(
        !state.is_held() && state.holders.is_empty() && state.waiters == 0 && state.token.is_none(),
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
        let [holder] = &state.holders[..] else { panic!("one holds the lock: {state:?}") };
        let owner = holder.owner().unwrap_or_else(|| panic!("one of ours holds the lock: {state:?}"));
        assert_eq!(*owner, OwnerInfo::this_process().with_label(label));
        assert_eq!(owner.pid, process::id());
        assert_eq!((holder.token, state.token), (Some(guard.token()), Some(guard.token())));
        assert_eq!((state.waiters, state.queue.len()), (0, 0));
        let alone = match harness.handle() {
            Handle::Permit => {
                matches!(holder.mode, LockMode::Permit { max, .. } if max.is_none_or(|max| max.get() == 1))
            }
            _ => holder.mode == LockMode::Exclusive,
        };
        assert!(alone, "{state:?}");
        match (harness.capabilities().lease, holder.remaining) {
            (LeaseKind::Session { .. }, None) => {}
            (kind, Some(remaining)) if !kind.is_session() || !harness.parts().is_empty() => {
                // A recipe may add time for the clocks of other clients.
                assert!(remaining > LONG / 4 && remaining <= LONG + NOISE, "{state:?}");
            }
            (_, remaining) => panic!("the lease ends in {remaining:?}: {state:?}"),
        }
        let since = holder.since.or(holder.asked).expect("the store keeps one of them");
        let now = SystemTime::now();
        let ago = now.duration_since(since).unwrap_or_else(|ahead| ahead.duration());
        assert!(ago < Duration::from_secs(60), "held since {since:?}, and it is {now:?}");
    }
    assert!(guard.is_valid(), "inspect must not change the lock");
    must_be_busy(&two, &name).await;
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn inspect_takes_no_wait_for_a_hold(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    let mutex = two.mutex(&name);
    let mut next = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    let waits = tokio::time::timeout(4 * NOISE, &mut next).await;
    assert!(waits.is_err(), "two hold the lock: {waits:?}");
    let released = SystemTime::now();
    give_back(guard).await;
    let next = within(LONG, "the lock", next).await.unwrap();
    let state = one.inspect(&name).await.unwrap();
    assert_eq!(state.holders.len(), 1, "{state:?}");
    // Stores have a resolution of milliseconds.
    let since = state.holders[0].since.unwrap_or(released);
    assert!(since + NOISE > released, "it waited until {released:?}: {state:?}");
    give_back(next).await;
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
    // Two tasks of its own, and one of each other client. A sharing client lets the next of its tasks ask the server.
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

pub(super) async fn inspect_lists_the_waiters_in_order(harness: &dyn Harness) {
    let (one, name) = (client(harness).await, fresh());
    let guard = take(&one, &name).await;
    let (labels, mut waiting) = (["first", "second", "third"], Vec::new());
    for (before, label) in labels.into_iter().enumerate() {
        let locks = client(harness).await;
        let mutex = locks.mutex_with(&name, LockOptions::new().label(label)).unwrap();
        waiting.push(tokio::spawn(async move { give_back(mutex.acquire().await.unwrap()).await }));
        let sees = || async {
            let state = one.inspect(&name).await.unwrap();
            assert_eq!(state.holders.len(), 1, "a waiter is no holder: {state:?}");
            (state.queue.len() > before).then_some(state)
        };
        let state = eventually(SOON, "the waiter in sight", sees).await;
        let listed: Vec<_> = state.queue.iter().filter_map(|waiter| waiter.owner()).cloned().collect();
        let wanted = labels[..=before].iter().map(|label| OwnerInfo::this_process().with_label(*label));
        assert_eq!(listed, wanted.collect::<Vec<_>>(), "{state:?}");
        assert_eq!(state.waiters, before + 1, "{state:?}");
        assert!(state.queue.iter().all(|waiter| waiter.mode == harness.handle().mode().into()), "{state:?}");
        assert!(state.to_string().contains(&format!("{}. pid ", before + 1)), "{state}");
    }
    give_back(guard).await;
    for waiter in waiting {
        within(SOON, "the waiter to get the lock", waiter).await.unwrap();
    }
    let gone = || async { one.inspect(&name).await.unwrap().queue.is_empty().then_some(()) };
    eventually(SOON, "no waiters in sight", gone).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn held_locks_are_listed(harness: &dyn Harness) {
    let (one, two, prefix) = (client(harness).await, client(harness).await, fresh());
    if let Support::No(why) = harness.capabilities().listing {
        let error = one.list(&prefix).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!why.is_empty() && error.to_string().contains(why), "{error}");
        return;
    }
    assert!(within(SOON, "the list", one.list(&prefix)).await.unwrap().is_empty());
    // Special characters of patterns, paths and escapes.
    let mut names =
        ["", "/a*b?c", "/[a-z]\\", "/%2F/..", " ö🔒", "{x}:y"].map(|end| format!("{prefix}{end}"));
    names.sort_unstable();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&one, name).await);
    }
    let other = take(&two, &fresh()).await;
    for locks in [&one, &two] {
        let listed = within(SOON, "the list", locks.list(&prefix)).await.unwrap();
        assert_eq!(listed.iter().map(|name| name.as_str()).collect::<Vec<_>>(), names);
        let all = within(SOON, "the list", locks.list("")).await.unwrap();
        assert!(all.contains(other.name()) && listed.iter().all(|name| all.contains(name)), "{all:?}");
        assert!(all.is_sorted());
        for begins in ["/a*", "/[a-z]", "/%", " ö", "{x"] {
            let listed = within(SOON, "the list", locks.list(format!("{prefix}{begins}"))).await.unwrap();
            assert_eq!(listed.len(), 1, "{begins}: {listed:?}");
        }
        assert!(within(SOON, "the list", locks.list(format!("{prefix}/?"))).await.unwrap().is_empty());
        assert!(within(SOON, "the list", locks.list("x".repeat(5_000))).await.unwrap().is_empty());
    }
    for guard in guards.into_iter().chain([other]) {
        give_back(guard).await;
    }
    nothing_left(harness, &prefix).await;
}

pub(super) async fn a_lock_is_broken_for_the_holder_that_was_seen(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    if let Support::No(why) = harness.capabilities().breaks_one {
        let error = two.break_lock_if(&name, Token::new(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!why.is_empty() && error.to_string().contains(why), "{error}");
        return;
    }
    let seen = |state: LockState| state.holders[0].token.expect("the store keeps the token");
    let breaks = async |token| within(SOON, "the answer", two.break_lock_if(&name, token)).await.unwrap();
    assert!(!breaks(Token::new(1)).await, "the lock is free");
    let before = take(&two, &name).await;
    let released = before.token();
    give_back(before).await;

    let guard = take(&one, &name).await;
    let token = seen(two.inspect(&name).await.unwrap());
    // One of several masters may be ahead by a few.
    for other in [released, Token::new(token.get() + 1_000_000), Token::new(token.get() - 1), Token::new(0)] {
        assert!(!breaks(other).await, "{other} is not the token of the holder, which is {token}");
    }
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    must_be_busy(&two, &name).await;
    assert!(breaks(token).await, "it is held with this token");
    assert!(!breaks(token).await, "it is broken already");

    let next = take(&two, &name).await;
    assert!(next.token() > guard.token());
    assert!(!breaks(token).await, "another client holds it by now");
    let limit = harness.short_lease() + LEASE_SLACK;
    let reason = within(limit, "the holder to notice", guard.lost()).await;
    assert_eq!(reason, LossReason::Removed);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);

    // The next waiter gets the broken lock.
    let mutex = one.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    let token = seen(two.inspect(&name).await.unwrap());
    assert!(breaks(token).await);
    give_back(within(SOON + LEASE_SLACK, "the waiter to get the lock", waiter).await.unwrap()).await;
    assert_eq!(next.release().await.unwrap(), Released::AlreadyLost);
    nothing_left(harness, &name).await;
}

pub(super) async fn verify_asks_the_server(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    assert_eq!(within(SOON, "the answer", guard.verify()).await.unwrap(), GuardState::Valid);
    delete_behind_the_back(harness, &name).await;
    let state = within(SOON, "the answer", guard.verify()).await.unwrap();
    assert!(matches!(state, GuardState::Lost(_)), "the lock was deleted, and verify reports {state:?}");
    assert!(!guard.is_valid(), "the result of verify applies to the guard");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    nothing_left(harness, &name).await;
}

pub(super) async fn a_broken_lock_is_free_and_its_holder_is_notified(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    assert!(two.break_lock(&name).await.unwrap(), "the lock was held");
    let next = take(&two, &name).await;
    assert!(next.token() > guard.token());
    let limit = harness.short_lease() + LEASE_SLACK;
    let reason = within(limit, "the holder to notice", guard.lost()).await;
    assert_eq!(reason, LossReason::Removed);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn a_lock_deleted_by_an_operator_is_noticed(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    delete_behind_the_back(harness, &name).await;
    let limit = harness.short_lease() + LEASE_SLACK;
    let reason = within(limit, "the holder to notice", guard.lost()).await;
    assert_eq!(reason, LossReason::Removed);
    assert!(!guard.is_valid());
    let next = take(&two, &name).await;
    assert!(next.token() > guard.token(), "token {} came after {}", next.token(), guard.token());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    give_back(next).await;
    nothing_left(harness, &name).await;
}
