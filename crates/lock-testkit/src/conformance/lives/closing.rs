//! Closing a client.

use std::sync::Arc;
use std::thread;

use lock_core::backend::{AcquireRequest, LeasePolicy, Wait};
use lock_core::{ErrorKind, LockName, OwnerInfo, Token};
use tokio::runtime;

use crate::conformance::helpers::{
    LEASE_SLACK, LONG, NOISE, SOON, client, fresh, give_back, nothing_left, poll_for, short_client, take,
    take_within, try_take, within,
};
use crate::conformance::{Fault, Harness};
use crate::helpers::cancel::cancel_after;

pub(crate) async fn closed_locks_refuse(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
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
        // The library refuses by itself; so does the backend, for those that use it in another way.
        let name = LockName::new(&name).unwrap();
        let tried = within(SOON, "an answer", locks.backend().acquire(request(&name, Wait::Never))).await;
        errors.push(tried.map(drop).unwrap_err());
        errors.push(within(SOON, "an answer", locks.backend().inspect(&name)).await.map(drop).unwrap_err());
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(!error.is_retryable(), "{error}");
        }
    }
    // A second close is harmless.
    let _ = within(SOON, "the second close", locks.close()).await;
}

pub(crate) async fn closing_ends_a_wait(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let (guard, led) = (take(&two, &name).await, fresh());
    let leadership = within(SOON, "the leadership", two.election(&led).campaign("two")).await.unwrap();
    let (mutex, second, election) = (one.mutex(&name), one.mutex(&name), one.election(&led));
    let (backend, direct) = (Arc::clone(one.backend()), request(leadership.name(), Wait::Forever));
    let waiters = [
        tokio::spawn(async move { mutex.acquire().await.map(drop) }),
        // Behind the first one, in this process.
        tokio::spawn(async move { second.acquire().await.map(drop) }),
        tokio::spawn(async move {
            election.run("one", async |_| ()).await.map_err(|error| error.error().clone())
        }),
        tokio::spawn(async move { backend.acquire(direct).await.map(drop) }),
    ];
    // By then they are in the wait queue, where there is one.
    tokio::time::sleep(NOISE).await;
    within(SOON, "close", one.close()).await.unwrap();
    for waiter in waiters {
        let waited = within(SOON, "the end of the wait", waiter).await.unwrap();
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::Closed);
    }
    give_back(guard).await;
    within(SOON, "the resignation", leadership.resign()).await.unwrap();
    give_back(take_within(LONG + LEASE_SLACK, &two, &name).await).await;
    nothing_left(harness, &name).await;
}

/// As in a `select!` loop whose other branch closes the locks.
pub(crate) async fn closing_ends_what_nobody_polls(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let (guard, led) = (take(&two, &name).await, fresh());
    let leadership = within(SOON, "the leadership", two.election(&led).campaign("two")).await.unwrap();
    let (mutex, election) = (one.mutex(&name), one.election(&led));
    let (mut waits, mut campaigns) = (Box::pin(mutex.acquire()), Box::pin(election.campaign("one")));
    let mut leaders = election.observe();
    assert!(poll_for(NOISE, &mut waits).await.is_none(), "two hold the lock");
    assert!(poll_for(NOISE, &mut campaigns).await.is_none(), "two lead");
    while poll_for(NOISE, &mut Box::pin(leaders.next())).await.is_some() {}
    within(SOON, "close", one.close()).await.unwrap();
    give_back(guard).await;
    within(SOON, "the resignation", leadership.resign()).await.unwrap();
    give_back(take_within(LONG + LEASE_SLACK, &two, &name).await).await;
    let next =
        within(LONG + LEASE_SLACK, "the leadership", two.election(&led).campaign("two")).await.unwrap();
    within(SOON, "the resignation", next.resign()).await.unwrap();
    let waited = within(SOON, "the end of the wait", waits).await;
    assert_eq!(waited.map(drop).unwrap_err().kind(), ErrorKind::Closed);
    let campaigned = within(SOON, "the end of the campaign", campaigns).await;
    assert_eq!(campaigned.map(drop).unwrap_err().kind(), ErrorKind::Closed);
    let observed = within(SOON, "the end of the observer", leaders.next()).await;
    assert_eq!(observed.expect("why it ends").unwrap_err().kind(), ErrorKind::Closed);
    assert!(within(SOON, "the end of the observer", leaders.next()).await.is_none());
    nothing_left(harness, &name).await;
}

pub(crate) async fn closing_ends_what_is_held(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    within(SOON, "close", one.close()).await.unwrap();
    let next = take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await;
    assert!(!guard.is_valid(), "the next client has the lock, and the old guard is valid");
    assert!(next.token() > guard.token());
    drop(guard);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn closed_locks_extend_nothing(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
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

pub(crate) async fn closing_leaves_other_clients_alone(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&two, &name).await;
    within(SOON, "close", one.close()).await.unwrap();
    assert!(guard.is_valid());
    give_back(guard).await;
    give_back(take(&two, &name).await).await;
    give_back(take(&client(harness).await, &name).await).await;
}

pub(crate) async fn closing_waits_for_dropped_guards(harness: &dyn Harness) {
    let (two, name) = (client(harness).await, &fresh());
    in_a_main_that_ends(async || {
        let one = client(harness).await;
        drop(take(&one, name).await);
        within(SOON, "close", one.close()).await.unwrap();
    });
    let next = try_take(&two, name).await.expect("`close` returned before the lock was released");
    give_back(next).await;
    nothing_left(harness, name).await;
}

pub(crate) async fn closing_waits_for_dropped_acquisitions(harness: &dyn Harness) {
    let two = client(harness).await;
    for polls in 0.. {
        let (name, mut done) = (&fresh(), false);
        in_a_main_that_ends(async || {
            let one = client(harness).await;
            let acquired = within(SOON, "the lock", cancel_after(polls, one.mutex(name).acquire())).await;
            done = acquired.transpose().unwrap().is_some();
            within(SOON, "close", one.close()).await.unwrap();
        });
        let next =
            try_take(&two, name).await.expect("`close` returned before the acquisition was rolled back");
        give_back(next).await;
        nothing_left(harness, name).await;
        if done {
            break;
        }
    }
}

pub(crate) async fn closing_does_not_wait_for_a_silent_server_for_ever(harness: &dyn Harness) {
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

/// A request that goes to the backend itself.
fn request(name: &LockName, wait: Wait) -> AcquireRequest {
    AcquireRequest::exclusive(name.clone(), wait, LeasePolicy::default(), Arc::new(OwnerInfo::this_process()))
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
