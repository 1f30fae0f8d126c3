//! Closing a client.

use std::thread;

use lock_core::{ErrorKind, Token};
use tokio::runtime;

use super::helpers::{
    LEASE_SLACK, LONG, NOISE, SOON, client, fresh, give_back, nothing_left, short_client, take, take_within,
    try_take, within,
};
use super::{Fault, Harness};
use crate::cancel::cancel_after;

pub(super) async fn closed_locks_refuse(harness: &dyn Harness) {
    let store = harness.private().await;
    let (locks, name) = (client(&*store).await, fresh());
    let twin = locks.clone();
    give_back(take(&locks, &name).await).await;
    within(SOON, "close", locks.close()).await.unwrap();
    let can = locks.capabilities().clone();
    for locks in [&locks, &twin] {
        let mut errors = vec![
            within(SOON, "an answer", locks.mutex(&name).acquire()).await.map(drop).unwrap_err(),
            within(SOON, "an answer", locks.mutex(&name).try_acquire()).await.map(drop).unwrap_err(),
            within(SOON, "an answer", locks.mutex(&name).try_acquire_for(SOON)).await.map(drop).unwrap_err(),
            within(SOON, "an answer", locks.inspect(&name)).await.map(drop).unwrap_err(),
            within(SOON, "an answer", locks.break_lock(&name)).await.map(drop).unwrap_err(),
        ];
        if can.breaks_one.is_supported() {
            let broken = within(SOON, "an answer", locks.break_lock_if(&name, Token::new(1))).await;
            errors.push(broken.map(drop).unwrap_err());
        }
        if can.listing.is_supported() {
            errors.push(within(SOON, "an answer", locks.list(&name)).await.map(drop).unwrap_err());
        }
        if can.revocation.is_supported() {
            let asked = within(SOON, "an answer", locks.request_revocation(&name)).await;
            errors.push(asked.map(drop).unwrap_err());
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(!error.is_retryable(), "{error}");
        }
    }
    // A second close is harmless.
    let _ = within(SOON, "the second close", locks.close()).await;
}

pub(super) async fn closing_ends_a_wait(harness: &dyn Harness) {
    let store = harness.private().await;
    let (one, two, name) = (client(&*store).await, client(&*store).await, fresh());
    let guard = take(&two, &name).await;
    let mutex = one.mutex(&name);
    let mut waiter = tokio::spawn(async move { mutex.acquire().await });
    // By then it is in the wait queue, where there is one.
    let waits = tokio::time::timeout(NOISE, &mut waiter).await;
    assert!(waits.is_err(), "two hold the lock: {waits:?}");
    within(SOON, "close", one.close()).await.unwrap();
    let waited = within(SOON, "the end of the wait", waiter).await.unwrap();
    assert_eq!(waited.map(drop).unwrap_err().kind(), ErrorKind::Closed);
    give_back(guard).await;
    give_back(take_within(LONG + LEASE_SLACK, &two, &name).await).await;
    nothing_left(&*store, &name).await;
}

pub(super) async fn closing_ends_what_is_held(harness: &dyn Harness) {
    let store = harness.private().await;
    let (one, two, name) = (short_client(&*store).await, client(&*store).await, fresh());
    let guard = take(&one, &name).await;
    within(SOON, "close", one.close()).await.unwrap();
    let next = take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await;
    assert!(!guard.is_valid(), "the next client has the lock, and the old guard is valid");
    assert!(next.token() > guard.token());
    drop(guard);
    give_back(next).await;
    nothing_left(&*store, &name).await;
}

pub(super) async fn closed_locks_extend_nothing(harness: &dyn Harness) {
    let store = harness.private().await;
    let (locks, name) = (client(&*store).await, fresh());
    let guard = take(&locks, &name).await;
    within(SOON, "close", locks.close()).await.unwrap();
    let error = within(SOON, "the extension", guard.extend(LONG)).await.unwrap_err();
    if guard.is_valid() {
        assert_eq!(error.kind(), ErrorKind::Closed, "the guard is still valid: {error}");
    } else {
        assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::Lost), "{error}");
    }
    assert!(!error.is_retryable(), "{error}");
}

pub(super) async fn closing_leaves_other_clients_alone(harness: &dyn Harness) {
    let store = harness.private().await;
    let (one, two, name) = (client(&*store).await, client(&*store).await, fresh());
    let guard = take(&two, &name).await;
    within(SOON, "close", one.close()).await.unwrap();
    assert!(guard.is_valid());
    give_back(guard).await;
    give_back(take(&two, &name).await).await;
    give_back(take(&client(&*store).await, &name).await).await;
}

pub(super) async fn closing_waits_for_dropped_guards(harness: &dyn Harness) {
    let store = harness.private().await;
    let (store, two, name) = (&*store, client(&*store).await, &fresh());
    in_a_main_that_ends(async || {
        let one = client(store).await;
        drop(take(&one, name).await);
        within(SOON, "close", one.close()).await.unwrap();
    });
    let next = try_take(&two, name).await.expect("`close` returned before the lock was released");
    give_back(next).await;
    nothing_left(store, name).await;
}

pub(super) async fn closing_waits_for_dropped_acquisitions(harness: &dyn Harness) {
    let store = harness.private().await;
    let (store, two) = (&*store, client(&*store).await);
    for polls in 0.. {
        let (name, mut done) = (&fresh(), false);
        in_a_main_that_ends(async || {
            let one = client(store).await;
            let acquired = within(SOON, "the lock", cancel_after(polls, one.mutex(name).acquire())).await;
            done = acquired.transpose().unwrap().is_some();
            within(SOON, "close", one.close()).await.unwrap();
        });
        let next =
            try_take(&two, name).await.expect("`close` returned before the acquisition was rolled back");
        give_back(next).await;
        nothing_left(store, name).await;
        if done {
            break;
        }
    }
}

pub(super) async fn closing_does_not_wait_for_a_silent_server_for_ever(harness: &dyn Harness) {
    let link = harness.link().await;
    let (locks, direct, name) = (client(&*link).await, client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    link.fault(Fault::Hold).await;
    drop(guard);
    let closed = within(LONG + SOON, "close", locks.close()).await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Unavailable);
    link.fault(Fault::None).await;
    give_back(take_within(LONG + LEASE_SLACK, &direct, &name).await).await;
}

/// Runs this on a single-threaded runtime that ends with it: nothing runs between its awaits, or after its end.
fn in_a_main_that_ends(main: impl AsyncFnOnce() + Send) {
    thread::scope(|scope| {
        let main = scope.spawn(|| {
            let one_thread = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            one_thread.block_on(main());
        });
        main.join().expect("it does not panic");
    });
}
