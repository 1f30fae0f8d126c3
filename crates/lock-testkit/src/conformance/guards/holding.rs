//! Locks that are held at least for some time.

use std::time::Duration;

use lock_core::{ErrorKind, LockOptions, Released};
use tokio::time::{Instant, sleep};

use crate::conformance::Harness;
use crate::conformance::held::Held;
use crate::conformance::helpers::{
    LONG, PATIENCE, SOON, client, fresh, give_back, must_be_busy, nothing_left, short_client, take_within,
    within,
};

/// Longer than a round trip on a noisy machine.
const HOLD: Duration = Duration::from_secs(4);
/// What clocks of several clients, and roundings, may take away.
const MARGIN: Duration = Duration::from_millis(50);

pub(crate) async fn a_lock_is_held_at_least_or_the_option_is_refused(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let options = LockOptions::new().hold_at_least(HOLD);
    let mutex = match (one.mutex_with(&name, options), one.capabilities().lease.is_session()) {
        (Ok(mutex), false) => mutex,
        (Err(error), true) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.hint().is_some(), "{error}");
            return;
        }
        (other, session) => panic!("on a session: {session}, and yet {other:?}"),
    };
    for drops in [false, true] {
        let start = Instant::now();
        let guard = within(SOON, "the lock", mutex.acquire()).await.unwrap();
        let token = guard.token();
        if drops {
            drop(guard);
        } else {
            give_back(guard).await;
        }
        if start.elapsed() < HOLD / 2 {
            must_be_busy(&two, &name).await;
        }
        let next =
            if drops { found_free(harness, &name).await } else { take_within(PATIENCE, &two, &name).await };
        assert!(next.token() > token, "token {} came after {token}", next.token());
        assert!(start.elapsed() + MARGIN >= HOLD, "it was held for {:?}", start.elapsed());
        give_back(next).await;
    }
    nothing_left(harness, &name).await;
}

/// The lock, as processes of cron find it: each is new, has not seen the lock before, and looks once.
async fn found_free(harness: &dyn Harness, name: &str) -> Held {
    let finding = async {
        loop {
            if let Some(guard) = client(harness).await.mutex(name).try_acquire().await.unwrap() {
                return guard;
            }
            sleep(HOLD / 16).await;
        }
    };
    within(PATIENCE, "the lock, for who looks once", finding).await
}

pub(crate) async fn a_crashed_holder_holds_at_least_as_long(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let held = take_within(SOON, &two, &name).await;
    // By a hand-over, whose lease may begin short.
    let mutex = one.mutex_with(&name, LockOptions::new().hold_at_least(2 * LONG)).unwrap();
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    give_back(held).await;
    let guard = within(SOON, "the lock", waiter).await.unwrap();
    // Nothing more reaches the server before it is looked at: this is what a crash leaves.
    let left = two.inspect(&name).await.unwrap().holders[0].remaining.expect("a lease has an end");
    assert!(left > LONG, "the server keeps it for {left:?} only");
    assert!(two.break_lock(&name).await.unwrap(), "it is held");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    nothing_left(harness, &name).await;
}
