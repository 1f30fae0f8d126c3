//! Deadlines, and the order of waiters.

use std::time::Duration;

use lock_core::LockOptions;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::conformance::client::Client;
use crate::conformance::helpers::{
    LATE, LOOK, NOISE, SOON, answered, at_most_left, client, eventually, fresh, give_back, nothing_left,
    round_trip, take, wait_for_waiters, within,
};
use crate::conformance::{Handle, Harness};

pub(crate) async fn a_deadline_is_kept(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    for (patience, again) in [(Duration::from_millis(50), false), (Duration::from_millis(250), true)] {
        let round_trip = round_trip(&two, &name).await;
        let ask = async || {
            let start = Instant::now();
            let acquired = if again {
                two.mutex(&name).try_acquire_until(start + patience).await
            } else {
                two.mutex(&name).try_acquire_for(patience).await
            };
            acquired.map(|acquired| (acquired, start.elapsed()))
        };
        let (acquired, took) = answered(&two, ask).await.unwrap();
        assert!(acquired.is_none(), "two hold the lock");
        assert!(took >= patience, "gave up after {took:?} instead of {patience:?}");
        let limit = patience + Duration::from_millis(20) + round_trip + LATE;
        assert!(took <= limit, "waited {took:?} instead of {patience:?} (a round trip takes {round_trip:?})");
    }
    // The same when this client holds the lock, so that it never asks the server.
    let start = Instant::now();
    assert!(one.mutex(&name).try_acquire_for(Duration::from_millis(50)).await.unwrap().is_none());
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(50) && took < Duration::from_millis(70) + LATE, "waited {took:?}");
    at_most_left(harness, &name, 1).await;
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_passed_deadline_asks_once(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let passed = Instant::now();
    sleep(LOOK).await;
    let ask = async |locks: &Client| {
        let start = Instant::now();
        let acquired = locks.mutex(&name).try_acquire_until(passed).await;
        acquired.map(|acquired| (acquired, start.elapsed()))
    };
    let (guard, _) = answered(&one, || ask(&one)).await.unwrap();
    let guard = guard.expect("a passed deadline asks once, and the lock is free");
    let round_trip = round_trip(&two, &name).await;
    let (second, took) = answered(&two, || ask(&two)).await.unwrap();
    assert!(second.is_none(), "two hold the lock");
    // A few round trips at most, without a wait.
    assert!(took < 3 * round_trip + LATE, "a passed deadline was waited for {took:?}");
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_short_deadline_gets_the_first_answer(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    for patience in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(50)] {
        let mutex = locks.mutex(&name);
        let guard = answered(&locks, || mutex.try_acquire_for(patience)).await.unwrap();
        give_back(guard.unwrap_or_else(|| panic!("the lock is free, and {patience:?} is enough to ask")))
            .await;
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_waiter_gets_the_released_lock(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    for _ in 0..3 {
        let guard = take(&one, &name).await;
        let mutex = two.mutex(&name);
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        sleep(Duration::from_millis(100)).await;
        assert!(!waiter.is_finished(), "two hold the lock");
        give_back(guard).await;
        give_back(within(SOON, "the waiter to get the lock", waiter).await.unwrap().unwrap()).await;
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn tasks_of_one_client_take_turns(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    // A sharing client lets the next of its tasks ask the server, and not every backend counts that one.
    let asking = harness.handle() == Handle::Permit && !harness.capabilities().counts_waiters;
    let (sender, mut order) = mpsc::unbounded_channel();
    for number in 0..8 {
        let (mutex, sender) = (locks.mutex(&name), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            sender.send(number).unwrap();
            give_back(guard).await;
        });
        eventually(SOON, "the task to queue up", || async {
            (locks.inspect(&name).await.unwrap().waiters + usize::from(asking) > number).then_some(())
        })
        .await;
        if asking && number == 0 {
            sleep(NOISE).await;
        }
    }
    drop(sender);
    give_back(guard).await;
    let mut turns = Vec::new();
    while let Some(number) = within(SOON, "the next turn", order.recv()).await {
        turns.push(number);
    }
    assert_eq!(turns, [0, 1, 2, 3, 4, 5, 6, 7], "not in the order in which they asked");
}

pub(crate) async fn clients_take_turns(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    let (sender, mut order) = mpsc::unbounded_channel();
    for number in 0..4 {
        let (mutex, sender) = (client(harness).await.mutex(&name), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            sender.send(number).unwrap();
            give_back(guard).await;
        });
        wait_for_waiters(&locks, &name, number + 1).await;
    }
    drop(sender);
    give_back(guard).await;
    let mut turns = Vec::new();
    while let Some(number) = within(SOON, "the next turn", order.recv()).await {
        turns.push(number);
    }
    assert_eq!(turns, [0, 1, 2, 3], "not in the order in which they asked");
}

pub(crate) async fn waiters_learn_their_position(harness: &dyn Harness) {
    let (one, name) = (client(harness).await, fresh());
    let guard = take(&one, &name).await;
    let (sender, mut positions) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for place in 1..=3 {
        let (locks, sender) = (client(harness).await, sender.clone());
        let tell = move |before| sender.send((place, before)).unwrap_or_default();
        let mutex = locks.mutex_with(&name, LockOptions::new().on_queued(tell)).unwrap();
        waiters.push(tokio::spawn(async move { mutex.acquire().await.unwrap() }));
        let mine = async {
            while let Some((waiter, before)) = positions.recv().await {
                if waiter == place {
                    return before;
                }
                assert_eq!(before, waiter, "a waiter's position changed, though no waiter left");
            }
            unreachable!("there is a sender left")
        };
        assert_eq!(within(SOON, "the position in the queue", mine).await, place);
    }
    give_back(guard).await;
    for waiter in waiters {
        give_back(within(SOON, "its turn", waiter).await.unwrap()).await;
    }
    nothing_left(harness, &name).await;
}
