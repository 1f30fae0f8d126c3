//! Mutual exclusion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::helpers::{
    NOISE, PATIENCE, SOON, answered, client, fresh, give_back, must_be_busy, nothing_left, take, take_within,
    try_take, within,
};

pub(crate) async fn one_holder_at_a_time(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    assert!(guard.is_valid() && guard.name().as_str() == name);
    must_be_busy(&two, &name).await;
    let waited = answered(&two, || async { two.mutex(&name).try_acquire_for(NOISE).await }).await.unwrap();
    assert!(waited.is_none(), "two hold the lock: {waited:?}");
    assert!(guard.is_valid(), "the holder lost the lock to one that did not get it");
    give_back(guard).await;
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn names_are_independent(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let names = ["a", "b", "c"].map(|end| format!("{name}{end}"));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&one, name).await);
    }
    give_back(guards.remove(1)).await;
    give_back(take(&two, &names[1]).await).await;
    for name in [&names[0], &names[2]] {
        must_be_busy(&two, name).await;
    }
    for guard in guards {
        give_back(guard).await;
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_released_lock_can_be_taken_again(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mutex = one.mutex(&name);
    for _ in 0..5 {
        // At once, by the same client and by another: the release has come back.
        let guard = mutex.try_acquire().await.unwrap();
        give_back(guard.expect("a released lock is free for the one that released it")).await;
        let guard = try_take(&two, &name).await;
        give_back(guard.expect("a released lock is free for others")).await;
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn try_on_a_held_lock(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    for _ in 0..5 {
        must_be_busy(&one, &name).await;
        must_be_busy(&two, &name).await;
    }
    assert!(guard.is_valid());
    assert_eq!(two.inspect(&name).await.unwrap().waiters, 0, "a try is no waiter");
    give_back(guard).await;
    // A try that left something behind would be in the way now.
    give_back(try_take(&two, &name).await.expect("the lock is free")).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_hundred_tasks_lose_no_update(harness: &dyn Harness) {
    let locks = client(harness).await;
    count_up(&[locks], 100, 1).await;
}

pub(crate) async fn two_clients_lose_no_update(harness: &dyn Harness) {
    let clients = [client(harness).await, client(harness).await];
    count_up(&clients, 10, 4).await;
}

/// Many tasks read a counter, pause, and write it back.
async fn count_up(clients: &[Client], tasks: u64, times: u64) {
    let (name, counter) = (fresh(), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    for locks in clients {
        for task in 0..tasks {
            let (mutex, counter) = (locks.mutex(&name), Arc::clone(&counter));
            running.spawn(async move {
                for _ in 0..times {
                    let guard = within(PATIENCE * 2, "a turn", mutex.acquire()).await.unwrap();
                    let seen = counter.load(Ordering::SeqCst);
                    if task % 2 == 0 {
                        tokio::task::yield_now().await;
                    } else {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    counter.store(seen + 1, Ordering::SeqCst);
                    give_back(guard).await;
                }
            });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no task fails");
    }
    let expected = clients.len() as u64 * tasks * times;
    assert_eq!(counter.load(Ordering::SeqCst), expected, "updates were lost: two held the lock");
    give_back(take_within(SOON, &clients[0], &name).await).await;
}
