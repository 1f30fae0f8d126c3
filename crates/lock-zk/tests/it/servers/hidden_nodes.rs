//! Nodes of another user, whose ACL grants us nothing, among those of a lock. Servers from 3.7.3, 3.8.4 and 3.9.2 on refuse the
//! stat of such a node, too; here a [`Meddler`] does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::{Backend, ErrorKind, Holder, LockName, LockOptions, Locks, LossReason, Mutex, Persistence};
use lock_zk::zookeeper_client::{Acls, Client, CreateMode, Error};
use lock_zk::{Zk, ZkConfig, ZkRecipe, ZkWait};

use crate::common::meddler::{Fate, Meddler};
use crate::common::*;

/// A server with the lock `a`, and a user whose nodes we may not read.
struct Stage {
    meddler: Meddler,
    owner: Client,
    server: Server,
}

impl Stage {
    async fn new() -> Self {
        let server = server().await;
        let (meddler, owner) = (Meddler::new(&server), client(&server).await);
        owner.auth("digest", b"me:Pa55").await.unwrap();
        Self { meddler, owner, server }
    }

    /// The node of a client that hides it, which is a holder.
    async fn hidden(&self, path: &str, mode: CreateMode, hides_stat: bool) -> Hidden<'_> {
        let options = mode.with_acls(Acls::creator_all());
        let (_, sequence) = self.owner.create(path, b"secret", &options).await.unwrap();
        let path = match mode {
            CreateMode::Ephemeral => path.to_owned(),
            _ => format!("{path}{sequence}"),
        };
        let exists = Arc::new(AtomicBool::new(true));
        let (hides, of) = (Arc::clone(&exists), path.clone());
        self.meddler.set(move |kind, path| match kind {
            "stat" | "watch_stat" if path == of && hides_stat && hides.load(Ordering::Relaxed) => {
                Fate::Fails(Error::NoAuth)
            }
            "watch_data" if path == of => Fate::IsNoted,
            _ => Fate::Passes,
        });
        Hidden { stage: self, path, exists }
    }

    fn config(&self) -> ZkConfig {
        config(&self.server)
    }

    async fn locks(&self, recipe: ZkRecipe) -> Locks {
        self.meddler.locks(self.config().recipe(recipe)).await
    }
}

struct Hidden<'a> {
    stage: &'a Stage,
    path: String,
    exists: Arc<AtomicBool>,
}

impl Hidden<'_> {
    async fn until_watched(&self) {
        until("it is watched", async || self.stage.meddler.met().contains(&"watch_data")).await;
    }

    async fn delete(self) {
        self.exists.store(false, Ordering::Relaxed);
        self.stage.owner.delete(&self.path, None).await.unwrap();
    }
}

/// The lock `a`, whose waiters do not queue again after a refusal.
fn strict(locks: &Locks) -> Mutex {
    locks.mutex_with("a", LockOptions::new().persistence(Persistence::Strict)).unwrap()
}

fn is_unknown(holder: &Holder) -> bool {
    matches!(holder, Holder::Unknown(text) if text.contains("may not read"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_wait_for_a_node_that_they_may_not_read() {
    for hides_stat in [false, true] {
        let stage = Stage::new().await;
        mkdir(&stage.owner, "/locks/a").await;
        let locks = stage.locks(ZkRecipe::Queue).await;
        let hidden = stage.hidden("/locks/a/lock-", CreateMode::EphemeralSequential, hides_stat).await;
        let waiter = acquiring(strict(&locks));
        hidden.until_watched().await;
        still_wait(&[&waiter]).await;
        hidden.delete().await;
        give_back(come(waiter).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_wait_for_the_only_node_of_a_lock_that_they_may_not_read() {
    for (wait, hides_stat) in
        [(ZkWait::Watch, false), (ZkWait::Watch, true), (ZkWait::Poll, false), (ZkWait::Poll, true)]
    {
        let stage = Stage::new().await;
        mkdir(&stage.owner, "/locks").await;
        let locks = stage.locks(ZkRecipe::Ephemeral(wait)).await;
        let hidden = stage.hidden("/locks/a", CreateMode::Ephemeral, hides_stat).await;
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "{wait:?} {hides_stat}");
        let waiter = acquiring(strict(&locks));
        still_wait(&[&waiter]).await;
        let state = locks.inspect("a").await.unwrap();
        assert!(is_unknown(&state.holders[0].holder), "{state}");
        hidden.delete().await;
        give_back(come(waiter).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_may_not_be_read_hides_no_other_one_from_operators() {
    for hides_stat in [false, true] {
        let stage = Stage::new().await;
        mkdir(&stage.owner, "/locks/a").await;
        let locks = stage.locks(ZkRecipe::Queue).await;
        let hidden = stage.hidden("/locks/a/read-", CreateMode::EphemeralSequential, hides_stat).await;
        let error = locks.request_revocation("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "nobody is asked: {error}");
        let ours = locks.rw("a").read().await.unwrap();
        let state = locks.inspect("a").await.unwrap();
        assert!(is_unknown(&state.holders[0].holder), "{state}");
        assert_eq!((state.holders[0].token, state.holders[1].token), (None, Some(ours.token())));
        assert!(locks.request_revocation("a").await.unwrap());
        soon(ours.revoke_requested()).await;
        assert!(locks.break_lock_if("a", ours.token()).await.unwrap());
        assert_eq!(soon(ours.lost()).await, LossReason::Removed);
        let error = locks.break_lock_if("a", ours.token()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "its token is unknown: {error}");
        assert!(locks.break_lock("a").await.unwrap());
        until_children(&stage.owner, "a", 0).await;
        drop(hidden);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_sees_the_end_of_a_holder_that_it_may_not_read() {
    for hides_stat in [false, true] {
        let stage = Stage::new().await;
        mkdir(&stage.owner, "/locks/a").await;
        let zk = Zk::connect(stage.config().ensemble(Arc::new(stage.meddler.clone()))).await.unwrap();
        let hidden = stage.hidden("/locks/a/lock-", CreateMode::EphemeralSequential, hides_stat).await;
        let name = LockName::new("a").unwrap();
        let seen = zk.inspect(&name).await.unwrap();
        let observing = tokio::spawn(async move { zk.await_change(&name, &seen).await.unwrap() });
        hidden.until_watched().await;
        still_wait(&[&observing]).await;
        hidden.delete().await;
        assert!(come(observing).await.holders.is_empty(), "{hides_stat}");
    }
}
