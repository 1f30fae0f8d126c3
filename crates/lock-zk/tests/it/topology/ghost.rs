//! What a follower that lags behind does to a lock; and the ghost: a node whose creation the follower does not know of.
//!
//! The story of the ghost. The leader proposes the creation of a node, and the client is cut off before the others agree.
//! Its session moves to a follower, and what it reads there is from before the creation. So it makes another node, waits
//! behind its own first one, and no client gets the lock while the session lives.
//!
//! It is not enough for it that a follower hears late of what was agreed: the answer that lets a session move comes behind
//! all that was agreed before, over the same connection. The creation must still be open then.

use std::time::Duration;

use lock_core::{GuardState, Locks};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::{Direction, FaultProxy, opcode, zk_opcode};
use lock_zk::zookeeper_client::{Acls, Client, CreateMode};
use lock_zk::{ZkConfig, ZkLayout, ZkRecipe, ZkWait};
use tokio::time::sleep;

use crate::common::*;

/// Three servers. Clients find the leader first, and the follower on request.
struct Stage {
    leader: usize,
    follower: usize,
    third: usize,
    /// The test's own, at the leader.
    client: Client,
    // Looks whether the others have left anything.
    ensemble: Ensemble,
    to_leader: FaultProxy,
    to_follower: FaultProxy,
}

impl Stage {
    async fn new() -> Self {
        let ensemble = ensemble().await;
        let leader = ensemble.leader().await.unwrap();
        let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
        let [to_leader, to_follower] = [leader, follower].map(|index| proxy(&ensemble.nodes()[index]));
        let client = client(&ensemble.nodes()[leader]).await;
        to_follower.refuse(true);
        Self { leader, follower, third, client, ensemble, to_leader, to_follower }
    }

    fn node(&self, index: usize) -> &ZooKeeper {
        &self.ensemble.nodes()[index]
    }

    fn link(&self, follower: usize) -> &FaultProxy {
        self.ensemble.link(follower, self.leader)
    }

    fn hosts(&self) -> String {
        format!("{},{}", self.to_leader.addr(), self.to_follower.addr())
    }

    /// A client of this library, in a directory of the recipe.
    fn config(&self, layout: ZkLayout, recipe: ZkRecipe) -> ZkConfig {
        let config = config_of(self.hosts()).session_timeout(SESSION);
        let dir = if recipe == ZkRecipe::Queue { "/locks" } else { "/fixed" };
        config.layout(layout).recipe(recipe).dir(dir)
    }

    async fn locks(&self, layout: ZkLayout, recipe: ZkRecipe) -> Locks {
        opened(&self.config(layout, recipe)).await
    }

    async fn at(&self, index: usize) -> Locks {
        opened(&config(self.node(index)).session_timeout(SESSION)).await
    }

    /// Waits until all know the same: a client that knows more than a server is not let in there.
    async fn is_level(&self) {
        let zxid = async |index| {
            let answer = self.node(index).four_letter("srvr").await.unwrap();
            answer.lines().find(|line| line.starts_with("Zxid:")).unwrap().to_owned()
        };
        until("all servers know the same", async || {
            let leader = zxid(self.leader).await;
            zxid(self.follower).await == leader && zxid(self.third).await == leader
        })
        .await;
    }

    /// What the leader proposes from now on is not agreed upon, so that no creation is answered.
    async fn nobody_agrees(&self) -> Counts {
        self.is_level().await;
        self.link(self.third).hold(Direction::ToServer);
        self.link(self.follower).hold(Direction::ToClient);
        self.to_follower.reset_counters();
        self.to_follower.cut_when(zk_opcode(opcode::CREATE2));
        self.to_leader.refuse(true);
        self.counts().await
    }

    async fn counts(&self) -> Counts {
        let counters = self.node(self.leader).mntr().await.unwrap();
        let count = |name| counters[name].parse().unwrap();
        Counts { proposals: count("zk_proposal_count"), moves: count("zk_revalidate_count") }
    }

    /// Waits until the leader has proposed the creation. It would drop what it has not got to when its client is cut off,
    /// and refuse what arrives after the move of the session.
    async fn is_proposed(&self, before: &Counts) {
        until("the creation is proposed", async || self.counts().await.proposals > before.proposals).await;
    }

    /// Cuts the client off, and lets its session move to the follower, where it is before the creation.
    async fn session_moves(&self, before: Counts) {
        self.is_proposed(&before).await;
        self.to_leader.rst();
        self.to_follower.refuse(false);
        until("the session moves", async || self.counts().await.moves > before.moves).await;
        // The follower's own consent is not to arrive.
        self.link(self.follower).delay(Direction::ToServer, 10 * LASTING);
        self.link(self.follower).deliver();
    }

    /// Cuts a client of this library off, which then asks the follower. Its session does not move before a majority agrees.
    async fn session_is_to_move(&self, before: Counts) {
        self.is_proposed(&before).await;
        self.to_leader.rst();
        self.to_follower.refuse(false);
        until("it asks the follower", async || self.to_follower.connections() > 0).await;
    }

    /// All that was proposed is agreed upon, and the follower gets to know it.
    fn all_agree(&self) {
        for follower in [self.follower, self.third] {
            self.link(follower).heal();
        }
    }

    /// Ends this client. The next ones find the leader only.
    async fn back(&self, locks: Locks) {
        assert_eq!(self.to_follower.fired(), 0, "another node was asked for");
        locks.close().await.unwrap();
        for proxy in [&self.to_leader, &self.to_follower] {
            proxy.heal();
        }
        self.to_follower.refuse(true);
    }

    /// How often a node of the lock `a` was created or deleted.
    async fn changes(&self) -> i32 {
        self.client.check_stat("/locks/a").await.unwrap().map_or(0, |stat| stat.cversion)
    }
}

/// What the leader has done.
struct Counts {
    proposals: u64,
    /// How many sessions it was asked to let move.
    moves: u64,
}

/// As long as what a test waits for may take, and no longer: the sessions that were cut off are waited for in the end.
const SESSION: Duration = Duration::from_secs(20);

/// What Curator, kazoo and others do, which list without `sync`.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_mere_listing_leaves_a_ghost() {
    if ZooKeeper::lacks("counters of requests", (3, 6)) {
        return;
    }
    let stage = Stage::new().await;
    mkdir(&stage.client, "/locks/a").await;
    let connector = Client::connector().with_session_timeout(SESSION);
    let client = connector.connect(&stage.hosts()).await.unwrap();
    let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let before = stage.nobody_agrees().await;
    let first = client.create("/locks/a/guid-lock-", b"", &mode);
    stage.session_moves(before).await;
    assert!(first.await.is_err(), "its answer is lost");
    stage.to_follower.heal();
    let listed = soon(client.list_children("/locks/a")).await.unwrap();
    assert!(listed.is_empty(), "the follower knows of it: {listed:?}");
    let second = client.create("/locks/a/guid-lock-", b"", &mode);
    stage.all_agree();
    let (_, second) = soon(second).await.unwrap();
    assert_eq!(second.into_i64(), 1);
    let nodes = children(&stage.client, "a").await;
    assert_eq!(nodes, ["guid-lock-0000000000", "guid-lock-0000000001"]);
    for node in nodes {
        let stat = stage.client.check_stat(&format!("/locks/a/{node}")).await.unwrap().unwrap();
        assert_eq!(stat.ephemeral_owner, client.session_id().0, "{node}");
    }
}

/// A fixed node is its own as well, and not one to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_acquisition_finds_its_node_behind_a_check() {
    if ZooKeeper::lacks("counters of requests", (3, 6)) {
        return;
    }
    let stage = Stage::new().await;
    let queues = LAYOUTS.map(|layout| (layout, ZkRecipe::Queue));
    let fixed = [ZkWait::Watch, ZkWait::Poll].map(|by| (ZkLayout::Curator, ZkRecipe::Ephemeral(by)));
    for (layout, recipe) in queues.into_iter().chain(fixed) {
        let (locks, at) = (stage.locks(layout, recipe).await, format!("{layout:?} {recipe:?}"));
        give_back(take(&locks, "a").await).await;
        let before = stage.nobody_agrees().await;
        let waiter = acquiring(locks.mutex("a"));
        stage.session_is_to_move(before).await;
        // For a listing, and for another creation.
        still_wait(&[&waiter]).await;
        stage.all_agree();
        let guard = come(waiter).await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        let other = opened(&stage.config(layout, recipe)).await;
        assert_eq!(other.inspect("a").await.unwrap().token, Some(guard.token()), "{at}");
        assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "{at}");
        give_back(guard).await;
        assert!(!other.inspect("a").await.unwrap().is_held(), "{at}: another node is left");
        other.close().await.unwrap();
        stage.back(locks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_dropped_acquisition_leaves_no_ghost() {
    if ZooKeeper::lacks("counters of requests", (3, 6)) {
        return;
    }
    let stage = Stage::new().await;
    let other = stage.at(stage.leader).await;
    for layout in LAYOUTS {
        for late in [false, true] {
            let locks = stage.locks(layout, ZkRecipe::Queue).await;
            give_back(take(&locks, "a").await).await;
            let (before, changes) = (stage.nobody_agrees().await, stage.changes().await);
            let acquisition = acquiring(locks.mutex("a"));
            stage.is_proposed(&before).await;
            if !late {
                acquisition.abort();
            }
            stage.session_is_to_move(before).await;
            acquisition.abort();
            assert!(acquisition.await.is_err_and(|error| error.is_cancelled()));
            // Time: for as many looks as there may be.
            sleep(Duration::from_secs(1)).await;
            stage.all_agree();
            until("the node came and went", async || stage.changes().await == changes + 2).await;
            assert_eq!(children(&stage.client, "a").await.len(), 0, "{layout:?} {late}");
            let guard = other.mutex("a").try_acquire().await.unwrap().unwrap();
            give_back(guard).await;
            stage.back(locks).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_try_at_a_follower_that_lags_may_fail_and_never_wins_wrongly() {
    let stage = Stage::new().await;
    let (ours, theirs) = (stage.at(stage.follower).await, stage.at(stage.leader).await);
    let guard = take(&theirs, "a").await;
    stage.is_level().await;
    stage.link(stage.follower).hold(Direction::ToClient);
    give_back(guard).await;
    until_children(&stage.client, "a", 0).await;
    assert!(ours.mutex("a").try_acquire().await.unwrap().is_none(), "the follower still shows a holder");
    stage.link(stage.follower).deliver();
    stage.is_level().await;
    let guard = ours.mutex("a").try_acquire().await.unwrap().unwrap();
    give_back(guard).await;
    stage.is_level().await;

    // Now it shows that the lock is free, and it is not.
    stage.link(stage.follower).hold(Direction::ToClient);
    let (guard, mutex) = (take(&theirs, "a").await, ours.mutex("a"));
    let trial = tokio::spawn(async move { mutex.try_acquire().await.unwrap() });
    until_children(&stage.client, "a", 2).await;
    // What it waits for has not arrived.
    still_wait(&[&trial]).await;
    stage.link(stage.follower).deliver();
    assert!(come(trial).await.is_none(), "there are two holders");
    until_children(&stage.client, "a", 1).await;
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_waiter_at_a_follower_that_lags_gets_its_turn_later_and_keeps_its_place() {
    let stage = Stage::new().await;
    let (ours, theirs) = (stage.at(stage.follower).await, stage.at(stage.leader).await);
    let mut last = None;
    for _ in 0..3 {
        let guard = take(&theirs, "a").await;
        assert!(Some(guard.token()) > last);
        let waiter = acquiring(ours.mutex("a"));
        until_children(&stage.client, "a", 2).await;
        // It watches.
        settled().await;
        stage.is_level().await;
        stage.link(stage.follower).hold(Direction::ToClient);
        give_back(guard).await;
        until_children(&stage.client, "a", 1).await;
        assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none(), "it is overtaken");
        // It cannot know yet.
        still_wait(&[&waiter]).await;
        stage.link(stage.follower).deliver();
        let guard = come(waiter).await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        last = Some(guard.token());
        give_back(guard).await;
    }
}
