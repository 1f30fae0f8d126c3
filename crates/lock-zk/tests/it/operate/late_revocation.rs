//! Requests to release a lock that arrive when another client holds it, in a node of the same name.

use lock_core::{GuardState, LockOptions, Locks, Result};
use lock_testkit::proxy::{Direction, FaultProxy, Then, opcode, zk_opcode};
use lock_zk::{ZkLayout, ZkRecipe};
use tokio::task::JoinHandle;

use crate::common::*;

/// Where names are reused, the node of the next holder has the name, and the version, that a revocation request was meant for.
const REUSED: [(ZkLayout, ZkRecipe); 2] =
    [(ZkLayout::Plain, ZkRecipe::Queue), (ZkLayout::Curator, EPHEMERAL)];

/// One has released the lock when the revocation request of another process is on its way.
struct UnderWay {
    revoker: Locks,
    request: JoinHandle<Result<bool>>,
    /// The next holder has the locks through the proxy.
    scene: Scene,
    revoking: FaultProxy,
}

impl UnderWay {
    async fn new(layout: ZkLayout, recipe: ZkRecipe) -> Self {
        let of = |config: lock_zk::ZkConfig| config.layout(layout).recipe(recipe);
        let scene = Scene::of(TIMEOUT, of).await;
        let revoking = proxy(&scene.server);
        let revoker = opened(&of(through(&revoking)).session_timeout(LASTING)).await;
        let first = scene.other.mutex_with("a", LockOptions::new().label("one")).unwrap();
        let guard = first.acquire().await.unwrap();
        revoking.hold_after(zk_opcode(opcode::GET_DATA));
        let asking = revoker.clone();
        let request = tokio::spawn(async move { asking.request_revocation("a").await });
        until("it has seen the holder", async || revoking.queued(Direction::ToServer) > 120).await;
        give_back(guard).await;
        if recipe == ZkRecipe::Queue {
            // As the server removes a directory that is not used, and the next client creates it.
            scene.client.delete("/locks/a", None).await.unwrap();
            mkdir(&scene.client, "/locks/a").await;
        }
        Self { revoker, request, scene, revoking }
    }

    fn next(&self) -> lock_core::Mutex {
        self.scene.locks.mutex_with("a", LockOptions::new().label("two")).unwrap()
    }

    /// Waits until the only node says this, at this version at least.
    async fn until_node_says(&self, what: &str, least: i32) {
        let client = &self.scene.client;
        until(&format!("the node says {what}"), async || {
            let below = children(client, "a").await;
            let path = below.first().map_or_else(|| "/locks/a".to_owned(), |node| format!("/locks/a/{node}"));
            let data = client.get_data(&path).await;
            data.is_ok_and(|(data, stat)| {
                String::from_utf8_lossy(&data).contains(what) && stat.version >= least
            })
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_asks_nobody_else() {
    for (layout, recipe) in REUSED {
        let late = UnderWay::new(layout, recipe).await;
        // It was given up, and arrives all the same.
        late.request.abort();
        let guard = late.next().acquire().await.unwrap();
        late.revoking.deliver();
        // Overwritten, and restored.
        late.until_node_says("two", 2).await;
        assert!(!guard.is_revoke_requested(), "{layout:?} {recipe:?}");
        assert!(late.revoker.request_revocation("a").await.unwrap());
        soon(guard.revoke_requested()).await;
        late.until_node_says("two", 2).await;
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_found_another_holder_is_repeated() {
    for (layout, recipe) in REUSED {
        let late = UnderWay::new(layout, recipe).await;
        let guard = late.next().acquire().await.unwrap();
        late.revoking.deliver();
        assert!(come(late.request).await.unwrap());
        soon(guard.revoke_requested()).await;
        give_back(guard).await;
    }
}

/// Its creation is not answered, and the node names another owner by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_does_not_hide_a_node_from_its_owner() {
    for (layout, recipe) in REUSED {
        let late = UnderWay::new(layout, recipe).await;
        late.request.abort();
        lose(&late.scene.proxy, Some(Then::Hang), enters());
        let acquisition = acquiring(late.next());
        late.until_node_says("two", 0).await;
        late.revoking.deliver();
        late.until_node_says("one", 0).await;
        // It does not wait for itself.
        let guard = come(acquisition).await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert!(!guard.is_revoke_requested() && late.scene.proxy.fired() == 1);
        late.until_node_says("two", 0).await;
        give_back(guard).await;
    }
}

/// As above, and the request is for this owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_request_does_not_hide_a_node_from_its_owner() {
    for (layout, recipe) in [(ZkLayout::Curator, ZkRecipe::Queue), REUSED[0], REUSED[1]] {
        let scene = Scene::of(TIMEOUT, |config| config.layout(layout).recipe(recipe)).await;
        give_back(take(&scene.locks, "a").await).await;
        lose(&scene.proxy, Some(Then::Hang), enters());
        let acquisition = acquiring(scene.locks.mutex("a"));
        until("there is a node", async || scene.other.request_revocation("a").await.unwrap()).await;
        let guard = come(acquisition).await;
        assert_eq!((scene.proxy.fired(), guard.verify().await.unwrap()), (1, GuardState::Valid));
        soon(guard.revoke_requested()).await;
        assert!(children(&scene.client, "a").await.len() <= 1, "{layout:?}");
        give_back(guard).await;
        scene.is_clean().await;
    }
}
