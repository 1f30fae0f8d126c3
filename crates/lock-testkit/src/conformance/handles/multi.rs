//! Several locks that are acquired together.

use lock_core::{ErrorKind, Locks, Multi, Released};

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::helpers::{
    NOISE, PATIENCE, SOON, answered, at_most_left, client, fresh, give_back, must_be_busy, nothing_left,
    take, within,
};

pub(crate) async fn all_locks_are_acquired_or_none(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let names = ["c", "a", "b"].map(|part| format!("{name}{part}"));
    let all = multi(&one, &names);
    let busy = take(&two, &names[0]).await;
    assert!(within(SOON, "the answer", all.try_acquire()).await.unwrap().is_none());
    assert!(answered(&one, || all.try_acquire_for(NOISE)).await.unwrap().is_none());
    at_most_left(harness, &name, 1).await;
    // A dropped wait leaves nothing either.
    assert!(tokio::time::timeout(NOISE, all.acquire()).await.is_err());
    at_most_left(harness, &name, 1).await;
    give_back(busy).await;
    let guard = within(PATIENCE, "all locks", all.acquire()).await.unwrap();
    for name in &names {
        must_be_busy(&two, name).await;
    }
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    nothing_left(harness, &name).await;
}

pub(crate) async fn locks_in_opposite_orders_block_nobody(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let [a, b] = ["a", "b"].map(|part| format!("{name}{part}"));
    let works = async |client: &Client, names: [&String; 2]| {
        let both = multi(client, &names);
        for _ in 0..10 {
            let guard = both.acquire().await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
    };
    let all = async { tokio::join!(works(&one, [&a, &b]), works(&two, [&b, &a])) };
    within(PATIENCE, "ten rounds of each", all).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn one_lost_lock_loses_all(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let names = ["a", "b"].map(|part| format!("{name}{part}"));
    let guard = within(SOON, "both locks", multi(&one, &names).acquire()).await.unwrap();
    let validity = guard.validity();
    assert!(two.break_lock(&names[1]).await.unwrap(), "it is held");
    within(PATIENCE, "the loss", guard.lost()).await;
    assert!(!guard.is_valid() && !validity.is_valid() && guard.guards()[0].is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    nothing_left(harness, &name).await;
}

/// It would wait for itself for ever.
pub(crate) async fn the_same_lock_by_two_connections_is_refused(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let locks: [&Locks; 2] = [&one, &two];
    let both = Multi::new(locks.map(|locks| locks.mutex(&name))).unwrap();
    let waited = within(PATIENCE, "the refusal", both.acquire()).await;
    // The wait that was given up is in nobody's way any more.
    nothing_left(harness, &name).await;
    let tried = within(PATIENCE, "the answer", both.try_acquire()).await;
    for error in [waited.unwrap_err(), tried.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    nothing_left(harness, &name).await;
}

fn multi(locks: &Locks, names: &[impl AsRef<str>]) -> Multi {
    Multi::new(names.iter().map(|name| locks.mutex(name))).expect("the names are valid")
}
