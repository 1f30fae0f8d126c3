//! Capabilities are declared, and impossible options refused.

use std::time::Duration;

use lock_core::{Error, ErrorKind, LeaseKind, LockOptions};

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::helpers::{
    LONG, SOON, client, client_with, fresh, give_back, must_be_of, nothing_left, take, within,
};

pub(crate) async fn capabilities_are_as_declared(harness: &dyn Harness) {
    let (reported, declared) = (client(harness).await.capabilities().clone(), harness.capabilities());
    assert_eq!(reported.backend, declared.backend);
    assert_eq!(reported.cross_process, declared.cross_process);
    assert_eq!(reported.fifo, declared.fifo);
    assert_eq!(reported.counts_waiters, declared.counts_waiters);
    assert_eq!(reported.shared.is_supported(), declared.shared.is_supported());
    assert_eq!(reported.permits.is_supported(), declared.permits.is_supported());
    assert_eq!(reported.revocation.is_supported(), declared.revocation.is_supported());
    assert_eq!(reported.names_sharers, declared.names_sharers);
    assert_eq!(reported.breaks_one.is_supported(), declared.breaks_one.is_supported());
    assert_eq!(reported.listing.is_supported(), declared.listing.is_supported());
    assert_eq!(
        matches!(reported.lease, LeaseKind::Session { .. }),
        matches!(declared.lease, LeaseKind::Session { .. }),
        "{reported:?} was declared as {declared:?}"
    );
    // The capabilities show the requested lease.
    for asked in [harness.short_lease(), LONG] {
        let locks = client_with(harness, asked).await;
        assert_eq!(locks.capabilities().lease.default_ttl(), asked);
    }
}

pub(crate) async fn impossible_lease_options_are_refused(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let mut refused = vec![LockOptions::new().max_hold(Duration::ZERO)];
    let least = shortest_ttl(&locks);
    assert!(!least.is_zero(), "a ttl of nothing is no ttl");
    for ttl in [Duration::ZERO, Duration::from_nanos(1), least - Duration::from_nanos(1), Duration::MAX] {
        refused.push(LockOptions::new().ttl(ttl));
        refused.push(LockOptions::new().fixed_ttl(ttl));
    }
    for options in [LockOptions::new().ttl(least), LockOptions::new().fixed_ttl(least)] {
        assert!(locks.mutex_with(&name, options).is_ok());
    }
    for options in refused {
        let shown = format!("{options:?}");
        let error = locks.mutex_with(&name, options).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{shown}: {error}");
        must_name(&error, harness);
    }
    let error = harness.connect(Duration::ZERO).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    must_name(&error, harness);
    nothing_left(harness, &name).await;
}

pub(crate) async fn an_impossible_extension_is_refused(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    let least = shortest_ttl(&locks);
    for ttl in [Duration::ZERO, least - Duration::from_nanos(1), Duration::MAX] {
        let error = within(SOON, "the answer", guard.extend(ttl)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{ttl:?}: {error}");
        must_name(&error, harness);
    }
    assert!(guard.is_valid());
    within(SOON, "the extension", guard.extend(least.max(harness.short_lease()))).await.unwrap();
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

/// The shortest time to live of a lock.
fn shortest_ttl(locks: &Client) -> Duration {
    locks.capabilities().lease.min_ttl()
}

fn must_name(error: &Error, harness: &dyn Harness) {
    let text = error.to_string();
    must_be_of(error, harness);
    assert!(
        text.starts_with(&format!("{}: ", error.backend())),
        "the text does not name the backend: {text}"
    );
    assert!(text.contains("; "), "the text names no way out: {text}");
    assert!(!error.is_retryable(), "trying again does not help: {text}");
}
