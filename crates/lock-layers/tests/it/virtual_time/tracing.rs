//! What is traced, and what never is.

use std::time::Duration;

use crate::common::{LastLease, PASSED_ON, SECRET, Stage, next_of};
use lock_core::{LockOptions, Locks, LossReason, MemoryConfig};
use lock_layers::TracingLayer;
use lock_testkit::{LogCapture, give_back, take};
use tokio::time::{sleep, timeout};

/// Everything is noticed by then.
const A_WHILE: Duration = Duration::from_millis(250);

fn traced() -> (Locks, LastLease) {
    let stage = Stage::new();
    let last = stage.last.clone();
    (Locks::new(stage).layer(TracingLayer::new()), last)
}

/// The lines that contain this text.
fn lines(log: &LogCapture, text: &str) -> Vec<String> {
    log.lines().into_iter().map(|(_, line)| line).filter(|line| line.contains(text)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_a_span_for_its_wait_and_one_for_its_hold() {
    let (log, _guard) = LogCapture::begin();
    let (locks, _) = traced();
    give_back(take(&locks, "a").await).await;
    let wait = lines(&log, "lock_wait");
    assert_eq!(wait.len(), 1, "{wait:?}");
    for field in ["lock=\"a\"", "backend=\"stage\"", "mode=\"exclusive\"", "wait=\"forever\""] {
        assert!(wait[0].contains(field), "{wait:?}");
    }
    let hold = lines(&log, "lock_hold");
    assert!(hold.len() == 1 && hold[0].contains("lock=\"a\"") && hold[0].contains("token=1"), "{hold:?}");
    for (text, count) in [
        ("message=acquired", 1),
        ("outcome=\"acquired\"", 1),
        ("message=released", 1),
        ("end=\"released\"", 1),
        ("lost", 0),
        ("left", 0),
    ] {
        assert_eq!(lines(&log, text).len(), count, "{text}: {:?}", log.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn waits_that_end_without_a_lock_have_their_outcome() {
    let (log, _guard) = LogCapture::begin();
    let (locks, _) = traced();
    assert!(locks.mutex("busy").try_acquire().await.unwrap().is_none());
    assert!(locks.mutex("down").acquire().await.is_err());
    assert!(timeout(A_WHILE, locks.mutex("never").acquire()).await.is_err());
    assert!(locks.inspect("a").await.is_err());
    assert_eq!(lines(&log, "lock_wait").len(), 3);
    for outcome in ["busy", "failed", "cancelled"] {
        assert_eq!(lines(&log, &format!("outcome=\"{outcome}\"")).len(), 1, "{:?}", log.lines());
    }
    assert_eq!(lines(&log, "code=\"timeout\"").len(), 1);
    assert_eq!(log.warnings("the acquisition failed").len(), 1);
    assert_eq!(lines(&log, "operation=\"inspect\"").len(), 1);
    assert!(lines(&log, "lock_hold").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_repeated_is_one_warning_of_the_layer_and_one_of_the_candidate() {
    let (log, _guard) = LogCapture::begin();
    let (locks, _) = traced();
    assert!(timeout(Duration::from_secs(20), locks.election("down").campaign("one")).await.is_err());
    assert_eq!(log.warnings("the acquisition failed").len(), 1);
    assert_eq!(log.warnings("the store refuses a request").len(), 1);
    assert!(lines(&log, "the acquisition failed again").len() > 5, "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_a_held_lock_is_reported_once() {
    let (log, _guard) = LogCapture::begin();
    let (locks, last) = traced();
    let guard = take(&locks, "a").await;
    let lease = last.get();
    lease.cell.extend_to(guard.valid_until() + A_WHILE);
    sleep(A_WHILE).await;
    assert_eq!(lines(&log, "message=renewed").len(), 1, "{:?}", log.lines());
    lease.cell.suspect();
    sleep(4 * A_WHILE).await;
    assert_eq!(log.warnings("the server does not answer").len(), 1);
    lease.cell.extend_to(guard.valid_until());
    sleep(A_WHILE).await;
    assert_eq!(lines(&log, "the server answers again").len(), 1);
    assert!(guard.extend(Duration::from_secs(1)).await.is_err());
    assert_eq!(lines(&log, "operation=\"extend\"").len(), 1);
    lease.cell.lose(LossReason::SessionEnded);
    sleep(A_WHILE).await;
    let lost = log.warnings("message=lost");
    assert!(lost.len() == 1 && lost[0].contains("reason=\"session_ended\""), "{lost:?}");
    guard.release().await.unwrap();
    assert_eq!(log.warnings("message=lost").len(), 1);
    assert_eq!(lines(&log, "end=\"lost\"").len(), 1);
    assert!(lines(&log, "message=released").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_loss_just_before_the_release_is_reported() {
    let (log, _guard) = LogCapture::begin();
    let (locks, last) = traced();
    let guard = take(&locks, "a").await;
    last.get().cell.lose(LossReason::Removed);
    guard.release().await.unwrap();
    assert_eq!(log.warnings("reason=\"removed\"").len(), 1, "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_ends_one_hold_and_begins_another() {
    for name in ["handed over", PASSED_ON] {
        let (log, _guard) = LogCapture::begin();
        let (locks, last) = traced();
        let first = take(&locks, name).await;
        let owner = first.owner();
        let next = next_of(&locks, name, first).await;
        assert_eq!(next.token().get(), 2);
        assert_eq!(next.owner() == owner, name == PASSED_ON, "the store knows one owner, and is not asked");
        assert_eq!(lines(&log, "end=\"handed_over\"").len(), 1, "{:?}", log.lines());
        assert_eq!(lines(&log, "lock_wait").len(), 2, "the next holder waited in the process");
        assert_eq!(lines(&log, "message=waited behind other tasks of this process").len(), 1);
        let holds = lines(&log, "lock_hold");
        assert!(holds.len() == 2 && holds[1].contains("token=2"), "{holds:?}");
        // The next holder is watched as the first one was.
        last.get().cell.suspect();
        sleep(A_WHILE).await;
        let suspect = log.warnings("the server does not answer");
        assert!(suspect.len() == 1 && suspect[0].contains("token=2"), "{suspect:?}");
        give_back(next).await;
        assert_eq!(lines(&log, "end=\"released\"").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_left_to_its_time_to_live_has_ended() {
    let (log, _guard) = LogCapture::begin();
    let locks = MemoryConfig::new().connect().unwrap().layer(TracingLayer::new());
    let options = LockOptions::new().hold_at_least(Duration::from_secs(60));
    give_back(locks.mutex_with("a", options).unwrap().acquire().await.unwrap()).await;
    assert_eq!(lines(&log, "end=\"left\"").len(), 1, "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_logged() {
    let (log, _guard) = LogCapture::begin();
    let (locks, last) = traced();
    let guard = take(&locks, "a").await;
    let owner = guard.owner().to_string();
    last.get().cell.suspect();
    sleep(A_WHILE).await;
    assert!(locks.mutex("down").acquire().await.is_err());
    guard.release().await.unwrap();
    assert!(log.lines().len() > 6);
    for (_, line) in log.lines() {
        assert!(!line.contains(SECRET) && !line.contains(&owner), "{line}");
    }
}
