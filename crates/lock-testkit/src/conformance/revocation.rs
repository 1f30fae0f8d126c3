//! Holders that are asked to give their lock up.

use lock_core::ErrorKind;

use super::Harness;
use super::helpers::{NOISE, SOON, client, fresh, give_back, must_be_busy, nothing_left, take, within};
use tokio::time::sleep;

pub(super) async fn holders_can_be_asked_or_asking_is_refused(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    assert!(!guard.is_revoke_requested());
    match two.capabilities().revocation.why_not() {
        None => {
            assert!(two.request_revocation(&name).await.unwrap(), "the lock is held");
            within(SOON, "the wish", guard.revoke_requested()).await;
            assert!(guard.is_revoke_requested());
        }
        Some(why) => {
            let error = two.request_revocation(&name).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(!why.is_empty() && error.to_string().contains(why), "{error}");
            let wish = tokio::time::timeout(NOISE, guard.revoke_requested()).await;
            assert!(wish.is_err() && !guard.is_revoke_requested(), "nobody could ask");
        }
    }
    assert!(guard.is_valid(), "a wish takes nothing away");
    must_be_busy(&two, &name).await;
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn only_those_who_hold_the_lock_are_asked(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    assert!(!two.request_revocation(&name).await.unwrap(), "nobody holds the lock");
    let guard = take(&one, &name).await;
    let mutex = two.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    sleep(NOISE).await;
    assert!(one.request_revocation(&name).await.unwrap());
    within(SOON, "the wish", guard.revoke_requested()).await;
    give_back(guard).await;
    let next = within(SOON, "the lock", waiter).await.unwrap();
    sleep(NOISE).await;
    assert!(!next.is_revoke_requested(), "it was asked of another");
    give_back(next).await;
    assert!(!one.request_revocation(&name).await.unwrap(), "nobody holds the lock");
    nothing_left(harness, &name).await;
}
