//! Owners that acquire a lock that they hold.

use lock_core::{ErrorKind, Locks, Reentrant, Released};

use crate::conformance::Harness;
use crate::conformance::helpers::{
    PATIENCE, SOON, client, fresh, give_back, must_be_busy, nothing_left, take, within,
};

pub(crate) async fn an_owner_acquires_again_and_others_are_excluded(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let (owner, another) =
        (Reentrant::new(&Locks::mutex(&one, &name)), Reentrant::new(&Locks::mutex(&one, &name)));
    let outer = within(SOON, "the lock", owner.acquire()).await.unwrap();
    let inner = within(SOON, "the nested lock", owner.acquire()).await.unwrap();
    assert_eq!(inner.token(), outer.token());
    assert!(another.try_acquire().await.unwrap().is_none(), "another owner of the same process");
    must_be_busy(&two, &name).await;
    assert_eq!(outer.release().await.unwrap(), None);
    must_be_busy(&two, &name).await;
    let tried = owner.try_acquire().await.unwrap().expect("the owner holds it");
    assert_eq!(tried.release().await.unwrap(), None);
    assert_eq!(inner.release().await.unwrap(), Some(Released::Released));
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn tasks_of_one_owner_share_its_lock(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let held = take(&two, &name).await;
    let owner = Reentrant::new(&Locks::mutex(&one, &name));
    let tasks = [(); 3].map(|()| {
        let owner = owner.clone();
        tokio::spawn(async move { owner.acquire().await.unwrap() })
    });
    give_back(held).await;
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(within(PATIENCE, "the lock", task).await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token() && guard.depth() == 3));
    drop(guards);
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn an_owner_that_lost_the_lock_acquires_nothing(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let owner = Reentrant::new(&Locks::mutex(&one, &name));
    let (outer, inner) = (owner.acquire().await.unwrap(), owner.acquire().await.unwrap());
    let token = outer.token();
    assert!(two.break_lock(&name).await.unwrap(), "the lock is held");
    within(PATIENCE, "the loss", inner.lost()).await;
    assert!(!outer.is_valid());
    assert_eq!(owner.acquire().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(outer);
    assert_eq!(inner.release().await.unwrap(), Some(Released::AlreadyLost));
    let next = within(PATIENCE, "the lock", owner.acquire()).await.unwrap();
    assert!(next.token() > token, "token {} came after {token}", next.token());
    assert_eq!(next.release().await.unwrap(), Some(Released::Released));
    nothing_left(harness, &name).await;
}
