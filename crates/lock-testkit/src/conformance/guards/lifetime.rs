//! How long a lock lasts, and how long its guard is valid.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    BootInstant, Clock, ErrorKind, GuardState, LeaseKind, LockOptions, LossReason, Released, Validity,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::conformance::client::Client;
use crate::conformance::held::Held;
use crate::conformance::helpers::{
    LATE, LEASE_SLACK, LONG, NOISE, PATIENCE, SOON, client, client_with, fresh, give_back, must_be_busy,
    nothing_left, short_client, take, take_within, try_take, within,
};
use crate::conformance::{Fault, Harness};

pub(crate) async fn renewal_keeps_a_lock(harness: &dyn Harness) {
    let (mut lease, mut leases) = (harness.short_lease(), 10);
    // A process that is paused for a lease rightly loses it: then the case tries again with a longer lease.
    while let Err(Paused) = renewed(harness, lease, leases).await {
        (lease, leases) = (2 * lease, 4);
    }
}

/// The machine was too busy for a result.
struct Paused;

/// Holds a lock for several leases.
async fn renewed(harness: &dyn Harness, lease: Duration, leases: u32) -> Result<(), Paused> {
    let (one, two, name) = (client_with(harness, lease).await, client(harness).await, fresh());
    let (guard, start) = (take(&one, &name).await, Instant::now());
    let mut longest = Duration::ZERO;
    while guard.is_valid() && start.elapsed() < leases * lease {
        let looked = Instant::now();
        let second = try_take(&two, &name).await;
        assert!(
            second.is_none() || !guard.is_valid(),
            "two hold the lock {name:?}: the second got {second:?}"
        );
        let left = guard.remaining();
        assert!(left <= lease, "valid for another {left:?}, a lease lasts {lease:?}");
        tokio::time::sleep(lease / 3).await;
        longest = longest.max(looked.elapsed());
    }
    let (lost, asked) = (!guard.is_valid(), Instant::now());
    let released = within(SOON, "the release", guard.release()).await;
    longest = longest.max(asked.elapsed());
    if lost || released.as_ref().is_ok_and(|released| *released == Released::AlreadyLost) {
        let is_busy = longest > lease * 2 / 3 && lease < LONG;
        assert!(is_busy, "lost within {:?}; a look and a pause took {longest:?} at most", start.elapsed());
        return Err(Paused);
    }
    assert!(matches!(released, Ok(Released::Released)), "the release of {name:?} answered {released:?}");
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
    Ok(())
}

pub(crate) async fn a_lease_ends_without_renewal(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let ttl = harness.short_lease();
    let start = Instant::now();
    let guard = Arc::new(take_fixed(&one, &name, ttl).await);
    let asked = start.elapsed();
    let left = guard.remaining();
    assert!(left <= ttl, "valid for {left:?}, the lease lasts {ttl:?}");
    let next = follow(&two, &name, &guard);

    let reason = within(ttl + LATE, "the guard to say that it lost", guard.lost()).await;
    assert_eq!(reason, LossReason::DeadlinePassed);
    assert!(start.elapsed() <= asked + ttl + LATE);
    // A lease must not end far too early, either.
    assert!(start.elapsed() >= ttl / 2, "lost after {:?}", start.elapsed());
    let next = within(ttl + LEASE_SLACK, "the next holder", next).await.unwrap();
    assert!(next.token() > guard.token());
    let released = Arc::into_inner(guard).expect("the only reference").release().await.unwrap();
    assert_eq!(released, Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_forgotten_guard_ends_with_its_lease(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take_fixed(&one, &name, harness.short_lease()).await;
    let token = guard.token();
    mem::forget(guard);
    let next = take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await;
    assert!(next.token() > token);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_forgotten_guard_ends_with_its_session(harness: &dyn Harness) {
    let (one, two, name) = (client_with(harness, 2 * LONG).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    let token = guard.token();
    mem::forget(guard);
    must_be_busy(&two, &name).await;
    within(SOON, "close", one.close()).await.unwrap();
    // Long before the session would have timed out.
    let next = take_within(LONG, &two, &name).await;
    assert!(next.token() > token);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn an_extended_lease_lasts_longer(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let ttl = harness.short_lease();
    let guard = take_fixed(&one, &name, ttl).await;
    let (first, before) = (guard.valid_until(), Clock::boot().now());
    let until = within(SOON, "the extension", guard.extend(4 * ttl)).await.unwrap();
    must_be_extended(harness, &guard.validity(), until, before + 3 * ttl);
    assert!(until > first || !has_ttl(harness), "{first:?} became {until:?}");
    assert!(until <= Clock::boot().now() + 4 * ttl, "valid for longer than the extension");
    tokio::time::sleep(2 * ttl).await;
    assert!(guard.is_valid());
    must_be_busy(&two, &name).await;

    // And shorter again.
    let until = within(SOON, "the extension", guard.extend(ttl)).await.unwrap();
    assert!(until <= Clock::boot().now() + ttl);
    let guard = Arc::new(guard);
    let next = within(ttl + LEASE_SLACK, "the next holder", follow(&two, &name, &guard)).await.unwrap();
    give_back(next).await;
    drop(guard);
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_lost_lock_is_not_extended(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take_fixed(&one, &name, harness.short_lease()).await;
    within(harness.short_lease() + LATE, "the guard to say that it lost", guard.lost()).await;
    let next = take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await;
    give_back(next).await;
    // Now the lock is free, and an extension could take it.
    let error = within(SOON, "the extension", guard.extend(LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_valid(), "a lost lock came back");
    give_back(try_take(&two, &name).await.expect("the extension of a lost lock took it again")).await;
    drop(guard);
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_lock_that_lasts_takes_another_ttl(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let ttl = harness.short_lease();
    let guard = take(&one, &name).await;
    for ttl in [3 * ttl, ttl] {
        let until = within(SOON, "the extension", guard.extend(ttl)).await.unwrap();
        assert!(until <= Clock::boot().now() + ttl, "valid for longer than the extension");
    }
    // It is renewed all the same.
    tokio::time::sleep(3 * ttl).await;
    assert!(guard.is_valid(), "lost: {:?}", guard.state());
    must_be_busy(&two, &name).await;
    two.break_lock(&name).await.unwrap();
    let error = within(SOON, "the extension", guard.extend(ttl)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    drop(guard);
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

/// Whether every lock has its own lease. If not, its deadline is that of the session, which advances by itself.
fn has_ttl(harness: &dyn Harness) -> bool {
    matches!(harness.capabilities().lease, LeaseKind::Ttl { .. })
}

/// The result of an extension is the new deadline, not before `at_least`.
pub(crate) fn must_be_extended(
    harness: &dyn Harness,
    validity: &Validity,
    until: BootInstant,
    at_least: BootInstant,
) {
    if has_ttl(harness) {
        assert_eq!(until, validity.until());
        assert!(until >= at_least, "{until:?} is nearer than {at_least:?}");
    } else {
        assert!(validity.is_valid() && until <= validity.until());
    }
}

pub(crate) async fn max_hold_ends_a_lock(harness: &dyn Harness) {
    let hold = 2 * harness.short_lease();
    // Longer than a lease, and shorter.
    max_hold_ends(harness, harness.short_lease(), hold).await;
    max_hold_ends(harness, LONG, hold).await;
}

async fn max_hold_ends(harness: &dyn Harness, lease: Duration, hold: Duration) {
    let (one, two, name) = (client_with(harness, lease).await, client(harness).await, fresh());
    let start = Instant::now();
    let mutex = one.mutex_with(&name, LockOptions::new().max_hold(hold)).unwrap();
    let guard = Arc::new(within(SOON, "the lock", mutex.acquire()).await.unwrap());
    let asked = start.elapsed();
    let next = follow(&two, &name, &guard);
    let reason = within(hold + LATE, "the guard to say that it lost", guard.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    assert!(start.elapsed() <= asked + hold + LATE);
    assert!(start.elapsed() >= hold * 3 / 4, "lost after {:?} of {hold:?}", start.elapsed());
    // Though the guard is still there.
    let next = within(hold + LEASE_SLACK, "the next holder", next).await.unwrap();
    assert!(next.token() > guard.token());
    drop(guard);
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn run_drops_the_work_of_a_lost_lock(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    let alive = Arc::new(());
    let work = {
        let alive = Arc::clone(&alive);
        async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        }
    };
    let breaking = async {
        tokio::time::sleep(NOISE / 3).await;
        two.break_lock(&name).await.unwrap();
    };
    let running = async { tokio::join!(guard.run(work), breaking).0 };
    let error =
        within(harness.short_lease() + LEASE_SLACK, "the end of the work", running).await.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(Arc::strong_count(&alive), 1, "the work goes on");
    drop(guard);
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn run_reports_a_body_that_ended_too_late(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let hold = harness.short_lease() / 2;
    let mutex = locks.mutex_with(&name, LockOptions::new().max_hold(hold)).unwrap();
    let guard = within(SOON, "the lock", mutex.acquire()).await.unwrap();
    // Nothing else is polled meanwhile: only the check of the clock afterwards finds the loss.
    let body = async {
        std::thread::sleep(hold + NOISE);
        7
    };
    let late = guard.run(body).await.unwrap_err();
    assert_eq!(late.error().kind(), ErrorKind::Lost, "{late}");
    assert!(!late.error().is_retryable(), "running it again with the same guard does not help: {late}");
    assert_eq!(late.into_output(), Some(7));
    drop(guard);
    nothing_left(harness, &name).await;
}

pub(crate) async fn signals_of_a_guard_outlive_it(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    for way in ["release", "drop", "break"] {
        let guard = take(&one, &name).await;
        let (validity, cancelled) = (guard.validity(), guard.cancellation_token());
        assert!(validity.is_valid() && !validity.remaining().is_zero() && !cancelled.is_cancelled());
        let lost = tokio::spawn({
            let validity = validity.clone();
            async move { validity.lost().await }
        });
        let guard = match way {
            "release" => {
                give_back(guard).await;
                None
            }
            "drop" => {
                drop(guard);
                None
            }
            _ => {
                assert!(two.break_lock(&name).await.unwrap());
                Some(guard)
            }
        };
        let limit = harness.short_lease() + LEASE_SLACK;
        let reason = within(limit, "the signal", lost).await.unwrap();
        within(limit, "the cancellation", cancelled.cancelled()).await;
        assert!(!validity.is_valid() && validity.remaining().is_zero(), "{validity:?} after {way}");
        assert_eq!(reason == LossReason::Released, guard.is_none(), "{reason} after {way}");
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn signals_of_a_guard_end_before_its_release_is_answered(harness: &dyn Harness) {
    let link = harness.link().await;
    for way in ["release", "drop"] {
        let (locks, direct, name) = (client(&*link).await, client(harness).await, fresh());
        let guard = take(&locks, &name).await;
        let (validity, cancelled) = (guard.validity(), guard.cancellation_token());
        assert!(validity.is_valid() && !cancelled.is_cancelled());
        link.fault(Fault::LoseReplies).await;
        let release = async {
            match way {
                "release" => drop(guard.release().await.unwrap_err()),
                _ => drop(guard),
            }
        };
        let next = async {
            let next = take_within(LONG + LEASE_SLACK, &direct, &name).await;
            assert!(!validity.is_valid(), "the next has the lock after a {way}, and {validity:?}");
            assert!(cancelled.is_cancelled(), "the next has the lock, and the work goes on after a {way}");
            assert_eq!(within(SOON, "the signal", validity.lost()).await, LossReason::Released);
            next
        };
        let both = Box::pin(async { tokio::join!(release, next) });
        let ((), next) = within(PATIENCE, "the release", both).await;
        link.fault(Fault::None).await;
        give_back(next).await;
        nothing_left(harness, &name).await;
    }
}

pub(crate) async fn validity_counts_from_the_request(harness: &dyn Harness) {
    // A session's validity counts from an earlier request that the quorum has committed, and so is less than the timeout
    // anyway. The delay must be longer than its heartbeats need, but no answer may be late enough to look like silence.
    let (lease, delay) = match harness.capabilities().lease.is_session() {
        false => (Duration::from_secs(2), Duration::from_millis(100)),
        true => (Duration::from_secs(6), Duration::from_millis(600)),
    };
    let link = harness.link().await;
    let (locks, name) = (client_with(&*link, lease).await, fresh());
    give_back(take(&locks, &name).await).await;
    link.fault(Fault::DelayReplies(delay)).await;
    // Requests from before the delay are answered by then.
    tokio::time::sleep(lease).await;
    let guard = take(&locks, &name).await;
    let left = guard.remaining();
    assert!(left + delay <= lease, "valid for {left:?} of {lease:?} after a reply that was {delay:?} late");
    link.fault(Fault::None).await;
    drop(guard);
    nothing_left(harness, &name).await;
}

async fn take_fixed(locks: &Client, name: &str, ttl: Duration) -> Held {
    let mutex = locks.mutex_with(name, LockOptions::new().fixed_ttl(ttl)).unwrap();
    within(SOON, "the lock", mutex.acquire()).await.unwrap()
}

/// Waits for the lock behind `holder`, which must not be valid when it is granted.
pub(crate) fn follow(locks: &Client, name: &str, holder: &Arc<Held>) -> JoinHandle<Held> {
    let (mutex, holder) = (locks.mutex(name), Arc::clone(holder));
    tokio::spawn(async move {
        let next = mutex.acquire().await.unwrap();
        assert!(
            !holder.is_valid(),
            "the next client has the lock, and the old guard is valid for {:?}",
            holder.remaining()
        );
        next
    })
}
