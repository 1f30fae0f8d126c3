//! All names under a prefix.

use crate::common::{PASSED_ON, Stage, lease, next_of, request};
use lock_core::{ErrorKind, HandOver, LockName, Locks, MemoryConfig, Result};
use lock_layers::PrefixLayer;
use lock_testkit::{give_back, take};

fn store_and_shop() -> (Locks, Locks) {
    let store = MemoryConfig::new().connect().unwrap();
    let shop = store.clone().layer(PrefixLayer::new("shop/").unwrap());
    (store, shop)
}

#[tokio::test]
async fn every_operation_goes_by_the_short_name() -> Result<()> {
    let (store, shop) = store_and_shop();
    let other = store.mutex("other/1").acquire().await?;
    let exactly_the_prefix = store.mutex("shop/").acquire().await?;
    let guard = shop.mutex("orders/42").acquire().await?;
    assert_eq!(guard.name().as_str(), "orders/42");
    assert!(store.inspect("shop/orders/42").await?.is_held() && shop.inspect("orders/42").await?.is_held());
    assert!(!shop.inspect("1").await?.is_held());
    let names = |listed: Vec<LockName>| listed.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(shop.list("").await?), ["orders/42"]);
    assert_eq!(names(shop.list("orders/").await?), ["orders/42"]);
    assert!(shop.list("shop/").await?.is_empty());
    assert!(shop.request_revocation("orders/42").await?);
    guard.revoke_requested().await;
    assert!(shop.break_lock_if("orders/42", guard.token()).await?);
    assert!(!guard.is_valid());
    let guard = shop.mutex("orders/42").acquire().await?;
    assert!(shop.break_lock("orders/42").await?);
    assert!(!guard.is_valid() && other.is_valid() && exactly_the_prefix.is_valid());
    Ok(())
}

#[tokio::test]
async fn prefixes_nest() -> Result<()> {
    let (store, shop) = store_and_shop();
    let orders = shop.layer(PrefixLayer::new("orders/")?);
    let guard = orders.mutex("42").acquire().await?;
    assert!(store.inspect("shop/orders/42").await?.is_held());
    drop(guard);
    Ok(())
}

/// A store that checks tokens itself is asked then.
#[tokio::test(start_paused = true)]
async fn the_lease_below_layers_learns_whether_the_token_was_read() {
    for is_read in [false, true] {
        let locks = Locks::new(Stage::new()).layer(PrefixLayer::new("the/").unwrap());
        let locks = locks.layer(PrefixLayer::new("name/").unwrap());
        let first = take(&locks, PASSED_ON).await;
        let owner = first.owner();
        assert!(!is_read || first.token().get() == 1);
        let next = next_of(&locks, PASSED_ON, first).await;
        assert_eq!(next.owner() == owner, !is_read, "passed on, and handed over by the store");
        give_back(next).await;
    }
}

#[tokio::test]
async fn a_lock_is_handed_over_under_its_prefix() -> Result<()> {
    let stage = Stage::new();
    let last = stage.last.clone();
    let shop = Locks::new(stage).layer(PrefixLayer::new("shop/")?);
    let name_below = || last.get().name.to_string();
    let mut lease = lease(&**shop.backend(), "a").await;
    for _ in 0..2 {
        assert_eq!(name_below(), "shop/a");
        let HandOver::HandedOver(next) = lease.hand_over(&request("a")).await? else { panic!() };
        lease = next;
    }
    assert_eq!((name_below().as_str(), lease.token().get()), ("shop/a", 3));
    Ok(())
}

#[tokio::test]
async fn names_that_become_too_long_are_refused() {
    let (_, shop) = store_and_shop();
    let most = LockName::MAX_BYTES - "shop/".len();
    assert!(shop.mutex("x".repeat(most)).acquire().await.is_ok());
    let name = "x".repeat(most + 1);
    for error in [
        shop.mutex(&name).acquire().await.map(drop).unwrap_err(),
        shop.inspect(&name).await.map(drop).unwrap_err(),
        shop.break_lock(&name).await.map(drop).unwrap_err(),
        shop.request_revocation(&name).await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidName, "memory"), "{error}");
        assert!(error.to_string().contains("1025 bytes with its prefix"), "{error}");
        assert!(error.to_string().contains("use at most 1019 bytes"), "{error}");
    }
}

#[test]
fn prefixes_that_leave_no_name_are_refused() {
    for bad in [String::new(), "x".repeat(LockName::MAX_BYTES)] {
        assert_eq!(PrefixLayer::new(bad).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    assert!(PrefixLayer::new("x".repeat(LockName::MAX_BYTES - 1)).is_ok());
}
