//! Tasks of several clients contend through faults: exclusion and the order of tokens stay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{Guard, GuardState, Locks, LossReason, MemoryConfig, Outcome, Released, Token, Validity};
use lock_layers::ChaosLayer;
use lock_testkit::history::{Mode, ReleaseOutcome};
use lock_testkit::{EventKind, History, PATIENCE, Recorder, check, now_ns};
use tokio::time::{sleep, timeout};

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
        // Time: less than a holder holds.
        contend(faults(seed).lose(0.5, Duration::from_millis(10)), move |locks, _| {
            let granted = Arc::clone(&of_all);
            async move {
                let Ok(Some(guard)) = locks.mutex("a").try_acquire_for(PATIENCE).await else { return };
                granted.lock().unwrap().note(&guard);
                tokio::select! {
                    _ = guard.lost() => {}
                    // Time: longer than a lock that is lost.
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
    // Time: of faults.
    let time = Duration::from_millis(5);
    ChaosLayer::new(seed).delay(0.2, time).not_applied(0.1).unknown(0.2).suspect(0.2, time)
}

/// Tasks of several clients of one store, each of which uses the lock thirty times.
async fn contend<F>(chaos: ChaosLayer, once: impl Fn(Locks, u64) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let store = MemoryConfig::new().connect().unwrap();
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
        timeout(4 * PATIENCE, task).await.expect("no task hangs").unwrap();
    }
}

async fn recorded(locks: &Locks, recorder: &Recorder, client: u64) {
    recorder.record(client, "a", EventKind::AcquireCalled);
    let guard = match locks.mutex("a").try_acquire_for(PATIENCE).await {
        Ok(Some(guard)) => guard,
        Err(error) if error.outcome() == Outcome::Unknown => {
            return recorder.record(client, "a", EventKind::AcquireUnknown);
        }
        _ => return recorder.record(client, "a", EventKind::AcquireFailed),
    };
    let valid_until_ns = Some(now_ns() + u64::try_from(guard.remaining().as_nanos()).unwrap());
    let (token, mode) = (Some(guard.token().get()), Mode::Exclusive);
    recorder.record(client, "a", EventKind::Acquired { token, valid_until_ns, mode });
    // Time: the others contend meanwhile.
    sleep(Duration::from_millis(2)).await;
    recorder.record(client, "a", EventKind::ReleaseCalled);
    let outcome = match guard.release().await {
        Ok(Released::Released) => ReleaseOutcome::Released,
        Ok(_) => ReleaseOutcome::AlreadyLost,
        Err(_) => ReleaseOutcome::Unknown,
    };
    recorder.record(client, "a", EventKind::Released { outcome });
}
