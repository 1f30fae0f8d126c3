//! Faults happen as they are asked for, and exclusion and the order of tokens stay.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::Stage;
use lock_core::backend::Layer;
use lock_core::{
    Acquired, Backend, ErrorKind, Guard, GuardState, HandOver, Locks, LossReason, MemoryConfig, Outcome,
    Released, Token, Validity,
};
use lock_layers::ChaosLayer;
use lock_testkit::history::{Mode, ReleaseOutcome};
use lock_testkit::{EventKind, History, Recorder, check, give_back, now_ns};
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
    let holder = store.mutex("a").acquire().await.unwrap();
    assert!(locks.break_lock("a").await.is_err());
    assert!(holder.is_valid());
}

#[tokio::test(start_paused = true)]
async fn half_of_the_unknown_acquisitions_were_granted_and_all_are_rolled_back() {
    let store = store();
    let locks = store.clone().layer(ChaosLayer::new(2).unknown(1.0));
    let before = store.mutex("a").acquire().await.unwrap().token().get();
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
        let layered = ChaosLayer::new(seed).unknown(0.5).layer(Arc::clone(store().backend()));
        let Ok(acquired) = layered.acquire(crate::common::request("a")).await else { continue };
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
        let layered = chaos.layer(Arc::new(Stage::new()));
        let Ok(Acquired::Held(mut lease)) = layered.acquire(crate::common::request("a")).await else {
            continue;
        };
        let before = lease.validity().clone();
        match lease.hand_over(&crate::common::request("a")).await {
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
        next.release().await.unwrap();
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
    let next = store.mutex("a").acquire().await.unwrap();
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

/// Every fault that loses no lock: the whole history is checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_under_faults_is_that_of_a_lock() {
    for seed in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let recorder = Recorder::create(&path, 1).unwrap();
        let of_all = recorder.clone();
        contend(faults(seed), move |locks, client| {
            let recorder = of_all.clone();
            async move { recorded(&locks, &recorder, client).await }
        })
        .await;
        drop(recorder);
        let report = check(&History::load([path]).unwrap());
        report.assert_holds();
        assert!(report.holds > 100, "{} holds", report.holds);
    }
}

/// Locks are lost, too: no two guards are valid at once, and tokens grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_locks_are_never_valid_beside_another() {
    for seed in 0..2 {
        let granted = Arc::new(Mutex::new(Granted::default()));
        let of_all = Arc::clone(&granted);
        contend(faults(seed).lose(0.5, Duration::from_millis(10)), move |locks, _| {
            let granted = Arc::clone(&of_all);
            async move {
                let Ok(Some(guard)) = locks.mutex("a").try_acquire_for(SECOND).await else { return };
                granted.lock().unwrap().note(&guard);
                tokio::select! {
                    _ = guard.lost() => {}
                    () = sleep(Duration::from_millis(20)) => {}
                }
                // The guard repeats it in the background.
                let _ = guard.release().await;
            }
        })
        .await;
        let granted = granted.lock().unwrap();
        let lost = granted.all.iter().filter(|validity| {
            matches!(validity.state(), GuardState::Lost(LossReason::Removed | LossReason::DeadlinePassed))
        });
        let (all, lost) = (granted.all.len(), lost.count());
        assert!(all > 50 && lost > 10, "{lost} of {all} were lost");
    }
}

/// All guards so far, by validities that do not end with the guard.
#[derive(Default)]
struct Granted {
    all: Vec<Validity>,
    last: Option<Token>,
}

impl Granted {
    fn note(&mut self, guard: &Guard) {
        let validity = guard.validity();
        let others: Vec<_> = self.all.iter().filter(|other| other.is_valid()).collect();
        if !validity.is_valid() {
            return;
        }
        // Still valid: so was it when the others were read.
        assert!(others.is_empty(), "two valid guards: {others:?} and {validity:?}");
        assert!(self.last < Some(guard.token()), "{:?}, then {}", self.last, guard.token());
        self.last = Some(guard.token());
        self.all.push(validity);
    }
}

fn faults(seed: u64) -> ChaosLayer {
    let time = Duration::from_millis(5);
    ChaosLayer::new(seed).delay(0.2, time).not_applied(0.1).unknown(0.2).suspect(0.2, time)
}

/// Tasks of several clients of one store, each of which uses the lock thirty times.
async fn contend<F>(chaos: ChaosLayer, once: impl Fn(Locks, u64) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let store = store();
    let clients: Vec<_> = (0..3).map(|_| store.clone().layer(chaos.clone())).collect();
    let tasks: Vec<_> = (0..12_u64)
        .map(|client| {
            let (locks, once) = (clients[client as usize % 3].clone(), once.clone());
            tokio::spawn(async move {
                for _ in 0..30 {
                    once(locks.clone(), client).await;
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(120 * SECOND, task).await.expect("no task hangs").unwrap();
    }
}

async fn recorded(locks: &Locks, recorder: &Recorder, client: u64) {
    recorder.record(client, "a", EventKind::AcquireCalled);
    let guard = match locks.mutex("a").try_acquire_for(SECOND).await {
        Ok(Some(guard)) => guard,
        Err(error) if error.outcome() == Outcome::Unknown => {
            return recorder.record(client, "a", EventKind::AcquireUnknown);
        }
        _ => return recorder.record(client, "a", EventKind::AcquireFailed),
    };
    let valid_until_ns = Some(now_ns() + u64::try_from(guard.remaining().as_nanos()).unwrap());
    let (token, mode) = (Some(guard.token().get()), Mode::Exclusive);
    recorder.record(client, "a", EventKind::Acquired { token, valid_until_ns, mode });
    sleep(Duration::from_millis(2)).await;
    recorder.record(client, "a", EventKind::ReleaseCalled);
    let outcome = match guard.release().await {
        Ok(Released::Released) => ReleaseOutcome::Released,
        Ok(_) => ReleaseOutcome::AlreadyLost,
        Err(_) => ReleaseOutcome::Unknown,
    };
    recorder.record(client, "a", EventKind::Released { outcome });
}
