//! Mutex, read/write lock and semaphore of one name are one lock.

use std::time::Duration;

use lock_core::{Error, ErrorKind, LockOptions};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::held::Held;
use crate::conformance::helpers::{
    NOISE, SOON, answered, client, fresh, give_back, must_be_busy, nothing_left, take, try_take,
    wait_for_waiters, within,
};
use crate::conformance::shared::sharers::Share;

pub(crate) async fn modes_are_supported_or_refused(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let capabilities = locks.capabilities().clone();
    match capabilities.shared.why_not() {
        None => {
            assert!(locks.rw_with(&name, LockOptions::new()).is_ok());
            give_back(Share::Reader.take(&locks, &name).await).await;
        }
        Some(why) => {
            must_refuse(locks.rw_with(&name, LockOptions::new()), why);
            must_refuse(locks.rw(&name).read().await, why);
            must_refuse(locks.rw(&name).try_read().await, why);
            must_refuse(locks.rw(&name).write().await, why);
        }
    }
    match capabilities.permits.why_not() {
        None => {
            assert!(locks.semaphore_with(&name, 2, LockOptions::new()).is_ok());
            give_back(Share::Permit(2).take(&locks, &name).await).await;
        }
        Some(why) => {
            must_refuse(locks.semaphore_with(&name, 2, LockOptions::new()), why);
            must_refuse(locks.semaphore(&name, 2).acquire().await, why);
            must_refuse(locks.semaphore(&name, 2).try_acquire_for(SOON).await, why);
        }
    }
    give_back(take(&locks, &name).await).await;
    nothing_left(harness, &name).await;
}

fn must_refuse<T>(answer: Result<T, Error>, why: &str) {
    let error = answer.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(!why.is_empty() && text.contains(why), "the message has no reason: {text}");
    assert!(
        text.starts_with(&format!("{}: ", error.backend())),
        "the text does not name the backend: {text}"
    );
}

pub(crate) async fn a_mutex_and_a_write_lock_are_one(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mutex = take(&one, &name).await;
    for locks in [&one, &two] {
        assert!(locks.rw(&name).try_write().await.unwrap().is_none(), "the mutex is held");
        Share::Reader.must_be_busy(locks, &name).await;
    }
    give_back(mutex).await;
    let writer = within(SOON, "the lock", two.rw(&name).write()).await.unwrap();
    must_be_busy(&one, &name).await;
    must_be_busy(&two, &name).await;
    give_back(writer).await;
    let reader = Share::Reader.take(&two, &name).await;
    must_be_busy(&one, &name).await;
    must_be_busy(&two, &name).await;
    give_back(reader).await;
    give_back(take(&one, &name).await).await;
    nothing_left(harness, &name).await;
}

/// A mode of acquiring a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Alone,
    Sharing(Share),
}

const WAYS: [Way; 3] = [Way::Alone, Way::Sharing(Share::Reader), Way::Sharing(Share::Permit(5))];

impl Way {
    async fn try_take(self, locks: &Client, name: &str) -> Option<Held> {
        match self {
            Self::Alone => try_take(locks, name).await,
            Self::Sharing(share) => share.try_take(locks, name).await.map(Held::from),
        }
    }

    async fn take_for(self, locks: &Client, name: &str, patience: Duration) -> Option<Held> {
        let ask = async || match self {
            Self::Alone => locks.mutex(name).try_acquire_for(patience).await,
            Self::Sharing(share) => {
                share.take_for(locks, name, patience).await.map(|waited| waited.map(Held::from))
            }
        };
        let taken = answered(locks, ask).await;
        if let Ok(None) = taken {
            // Who gives up leaves the queue in the background where the store is slow.
            locks.backend().settle().await;
        }
        taken.unwrap_or_else(|error| panic!("contention is not an error: {error:?}"))
    }
}

pub(crate) async fn modes_of_one_name_exclude_each_other(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    for holding in WAYS {
        let guard = holding.try_take(&one, &name).await.expect("the lock is free");
        for asking in WAYS.into_iter().filter(|way| *way != holding) {
            for locks in [&one, &two] {
                let both = asking.try_take(locks, &name).await;
                assert!(both.is_none(), "{holding:?} and {asking:?} hold the lock");
                let both = asking.take_for(locks, &name, NOISE / 3).await;
                assert!(both.is_none(), "{holding:?} and {asking:?} hold the lock");
            }
        }
        assert!(guard.is_valid());
        give_back(guard).await;
        for next in WAYS {
            give_back(next.try_take(&two, &name).await.expect("the lock is free")).await;
        }
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn waiters_of_all_modes_take_turns(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    let (sender, mut order) = mpsc::unbounded_channel();
    for (waiting, turn) in [0, 1, 1, 2, 2, 0, 1].into_iter().enumerate() {
        let (waiter, lock, sender) = (client(harness).await, name.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = WAYS[turn].take_for(&waiter, &lock, 10 * SOON).await.expect("its turn comes");
            sender.send(turn).unwrap();
            sleep(NOISE / 6).await;
            give_back(guard).await;
        });
        wait_for_waiters(&locks, &name, waiting + 1).await;
    }
    drop(sender);
    give_back(guard).await;
    let mut turns = Vec::new();
    while let Some(turn) = within(SOON, "the next turn", order.recv()).await {
        turns.push(turn);
    }
    assert_eq!(turns, [0, 1, 1, 2, 2, 0, 1], "not in the order in which they asked");
    nothing_left(harness, &name).await;
}
