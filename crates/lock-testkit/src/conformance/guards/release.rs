//! Release, drop and panic of a holder.

use std::panic;
use std::thread;
use std::time::Duration;

use lock_core::backend::LeasePolicy;
use lock_core::{GuardState, Released};

use crate::conformance::Harness;
use crate::conformance::helpers::{
    LEASE_SLACK, SOON, client, fresh, give_back, must_be_busy, nothing_left, short_client, take, take_lease,
    take_within, within,
};

pub(crate) async fn a_second_release_releases_nothing(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut lease = take_lease(&one, &name, LeasePolicy::default()).await;
    let first = within(SOON, "the release", lease.release()).await.unwrap();
    assert_eq!(first, Released::Released);
    assert!(matches!(lease.validity().state(), GuardState::Lost(_)), "a released lease is not valid");

    let next = take(&two, &name).await;
    within(SOON, "the second release", lease.release()).await.unwrap();
    must_be_busy(&one, &name).await;
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "the second release freed the next holder");
    drop(lease);
    must_be_busy(&one, &name).await;
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_late_release_releases_nothing(harness: &dyn Harness) {
    let (one, two, three) = (client(harness).await, client(harness).await, client(harness).await);
    let (by_release, by_drop) = (fresh(), fresh());
    for name in [&by_release, &by_drop] {
        let stale = take(&one, name).await;
        assert!(two.break_lock(name).await.unwrap(), "the lock was held");
        let next = take(&two, name).await;
        if name == &by_release {
            let released = within(SOON, "the late release", stale.release()).await.unwrap();
            assert_eq!(released, Released::AlreadyLost);
        } else {
            drop(stale);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        must_be_busy(&three, name).await;
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "the late release freed the next holder");
        give_back(next).await;
        nothing_left(harness, name).await;
    }
}

pub(crate) async fn a_dropped_guard_releases(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    for _ in 0..3 {
        drop(take(&one, &name).await);
        give_back(take(&two, &name).await).await;
        // The next acquisition of the same client must not find the lock whose release is in flight.
        drop(take(&one, &name).await);
        drop(take(&one, &name).await);
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_guard_dropped_outside_a_runtime_releases(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    thread::spawn(move || drop(guard)).join().expect("a drop does not panic");
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_guard_outlives_its_runtime(harness: &dyn Harness) {
    let (two, name) = (client(harness).await, fresh());
    let name = &name;
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let (locks, guard) = runtime.block_on(async {
                let locks = short_client(harness).await;
                let guard = take(&locks, name).await;
                (locks, guard)
            });
            drop(runtime);
            drop(guard);
            drop(locks);
        });
        other.join().expect("a drop after the end of the runtime does not panic");
    });
    let next = take_within(harness.short_lease() + LEASE_SLACK, &two, name).await;
    give_back(next).await;
    nothing_left(harness, name).await;
}

pub(crate) async fn a_panic_releases(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mutex = one.mutex(&name);
    let section = tokio::spawn(async move {
        let _guard = mutex.acquire().await.unwrap();
        // Unwinds as a panic does, and prints nothing.
        panic::resume_unwind(Box::new("a bug in the critical section"));
    });
    assert!(within(SOON, "the panic", section).await.unwrap_err().is_panic());
    give_back(take(&two, &name).await).await;
    give_back(take(&one, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_dropped_lease_ends_by_itself(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let lease = take_lease(&one, &name, LeasePolicy::default()).await;
    must_be_busy(&two, &name).await;
    drop(lease);
    give_back(take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await).await;
    nothing_left(harness, &name).await;
}
