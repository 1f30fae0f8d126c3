//! Requests to holders to release their lock.

use lock_core::ErrorKind;

use crate::conformance::Harness;
use crate::conformance::helpers::{
    NOISE, SOON, client, fresh, give_back, must_be_busy, nothing_left, take, within,
};
use tokio::time::sleep;

pub(crate) async fn revocation_can_be_requested_or_is_refused(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    assert!(!guard.is_revoke_requested());
    match two.capabilities().revocation.why_not() {
        None => {
            assert!(two.request_revocation(&name).await.unwrap(), "the lock is held");
            within(SOON, "the request", guard.revoke_requested()).await;
            assert!(guard.is_revoke_requested());
        }
        Some(why) => {
            let error = two.request_revocation(&name).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(!why.is_empty() && error.to_string().contains(why), "{error}");
            let requested = tokio::time::timeout(NOISE, guard.revoke_requested()).await;
            assert!(requested.is_err() && !guard.is_revoke_requested(), "the request was refused");
        }
    }
    assert!(guard.is_valid(), "a request does not release the lock");
    must_be_busy(&two, &name).await;
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn only_holders_are_asked_to_release(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    assert!(!two.request_revocation(&name).await.unwrap(), "the lock is free");
    let guard = take(&one, &name).await;
    let mutex = two.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    sleep(NOISE).await;
    assert!(one.request_revocation(&name).await.unwrap());
    within(SOON, "the request", guard.revoke_requested()).await;
    give_back(guard).await;
    let next = within(SOON, "the lock", waiter).await.unwrap();
    sleep(NOISE).await;
    assert!(!next.is_revoke_requested(), "the request was for the holder before");
    give_back(next).await;
    assert!(!one.request_revocation(&name).await.unwrap(), "the lock is free");
    nothing_left(harness, &name).await;
}
