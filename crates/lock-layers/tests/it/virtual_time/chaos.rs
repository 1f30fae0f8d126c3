//! Faults happen as they are asked for, and exclusion and the order of tokens stay.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Stage, request};
use lock_core::{
    Acquired, ErrorKind, GuardState, HandOver, Locks, LossReason, MemoryConfig, Outcome, Released,
};
use lock_layers::ChaosLayer;
use lock_testkit::{give_back, take};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn store() -> Locks {
    MemoryConfig::new().connect().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_applied_changes_nothing() {
    let store = store();
    let locks = store.clone().layer(ChaosLayer::new(1).not_applied(1.0));
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    assert_eq!((error.code(), error.backend(), error.operation()), ("injected", "memory", Some("acquire")));
    assert!(error.is_retryable());
    assert!(!store.inspect("a").await.unwrap().is_held());
    let holder = take(&store, "a").await;
    assert!(locks.break_lock("a").await.is_err());
    assert!(holder.is_valid());
}

#[tokio::test(start_paused = true)]
async fn half_of_the_unknown_acquisitions_were_granted_and_all_are_rolled_back() {
    let store = store();
    let locks = store.clone().layer(ChaosLayer::new(2).unknown(1.0));
    let before = take(&store, "a").await.token().get();
    for _ in 0..100 {
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown));
    }
    locks.backend().settle().await;
    let after = store.mutex("a").try_acquire().await.unwrap().expect("all are rolled back").token().get();
    assert!((25..75).contains(&(after - before)), "{} of 100 were granted", after - before - 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_a_reply_ends_the_lock_once() {
    let store = store();
    // The acquisition succeeds in one of two.
    let locks = store.clone().layer(ChaosLayer::new(3).unknown(0.5));
    for _ in 0..100 {
        let Ok(guard) = locks.mutex("a").acquire().await else { continue };
        match guard.release().await {
            Ok(released) => assert_eq!(released, Released::Released),
            // The guard repeats it in the background.
            Err(error) => assert_eq!(error.outcome(), Outcome::Unknown),
        }
        let next = timeout(60 * SECOND, store.mutex("a").acquire()).await.expect("it is released in the end");
        assert_eq!(next.unwrap().release().await.unwrap(), Released::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_has_the_answer_that_was_lost() {
    let mut unknown = 0;
    for seed in 0..50 {
        let locks = store().layer(ChaosLayer::new(seed).unknown(0.5));
        let Ok(acquired) = locks.backend().acquire(request("a")).await else { continue };
        let Acquired::Held(mut lease) = acquired else { panic!("it is free") };
        let released = loop {
            match lease.release().await {
                Ok(released) => break released,
                Err(error) => assert_eq!(error.outcome(), Outcome::Unknown),
            }
            unknown += 1;
        };
        assert_eq!(released, Released::Released, "seed {seed}");
    }
    assert!(unknown > 5, "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_gives_the_next_lease_a_fate_of_its_own() {
    let (mut handed_over, mut released, mut failed) = (0, 0, 0);
    for seed in 0..50 {
        let chaos = ChaosLayer::new(seed).unknown(0.3).lose(0.3, SECOND);
        let locks = Locks::new(Stage::new()).layer(chaos);
        let Ok(Acquired::Held(mut lease)) = locks.backend().acquire(request("a")).await else {
            continue;
        };
        let before = lease.validity().clone();
        match lease.hand_over(&request("a")).await {
            Ok(HandOver::HandedOver(next)) => {
                handed_over += 1;
                assert!(!before.is_valid() && next.validity().is_valid());
                assert!(next.token() > lease.token());
            }
            Ok(_) => released += 1,
            Err(_) => {
                failed += 1;
                // What the caller does then.
                while lease.release().await.is_err() {}
            }
        }
        assert!(!before.is_valid());
    }
    assert!(handed_over > 10 && failed > 3 && released == 0, "{handed_over} {released} {failed}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_invalid_and_then_free_though_its_guard_lives() {
    let store = store();
    let mut reasons = BTreeSet::new();
    for seed in 0..20 {
        let locks = store.clone().layer(ChaosLayer::new(seed).lose(1.0, SECOND));
        let zombie = locks.mutex("a").acquire().await.unwrap();
        let waiter =
            timeout(2 * SECOND, store.mutex("a").acquire()).await.expect("it is free within a second");
        let next = waiter.unwrap();
        assert!(next.token() > zombie.token());
        let GuardState::Lost(reason) = zombie.state() else { panic!("two holders") };
        reasons.insert(reason.to_string());
        assert_eq!(zombie.extend(SECOND).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(zombie.verify().await.unwrap(), GuardState::Lost(reason));
        assert_eq!(zombie.release().await.unwrap(), Released::AlreadyLost);
        assert!(next.is_valid());
        give_back(next).await;
    }
    assert_eq!(reasons.len(), 2, "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn a_suspect_lock_is_valid_again_later() {
    let locks = store().layer(ChaosLayer::new(5).suspect(1.0, SECOND));
    let guard = locks.mutex("a").acquire().await.unwrap();
    let mut states = Vec::new();
    for _ in 0..300 {
        states.push(guard.state());
        sleep(SECOND / 100).await;
    }
    states.dedup();
    assert_eq!(states, [GuardState::Valid, GuardState::Suspect, GuardState::Valid]);
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_is_not_lost_any_more() {
    let store = store();
    let locks = store.clone().layer(ChaosLayer::new(6).lose(1.0, 10 * SECOND));
    let guard = locks.mutex("a").acquire().await.unwrap();
    let validity = guard.validity();
    give_back(guard).await;
    let next = take(&store, "a").await;
    sleep(20 * SECOND).await;
    assert_eq!(validity.state(), GuardState::Lost(LossReason::Released));
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn requests_are_delayed() {
    let locks = store().layer(ChaosLayer::new(8).delay(1.0, 10 * SECOND));
    let begin = Instant::now();
    drop(locks.mutex("a").acquire().await.unwrap());
    let took = begin.elapsed();
    assert!(took > Duration::ZERO && took <= 10 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_makes_the_same_decisions() {
    async fn outcomes(seed: u64) -> Vec<bool> {
        let locks = store().layer(ChaosLayer::new(seed).not_applied(0.5));
        let mut all = Vec::new();
        for _ in 0..64 {
            all.push(locks.inspect("a").await.is_ok());
        }
        all
    }
    assert_eq!(outcomes(9).await, outcomes(9).await);
    assert_ne!(outcomes(9).await, outcomes(10).await);
}

#[test]
#[should_panic(expected = "1.5 is no probability")]
fn an_impossible_probability_is_refused() {
    let _ = ChaosLayer::new(0).unknown(1.5);
}
