//! Slots of a cluster that move from master to master, with the locks in them.

use std::sync::LazyLock;

use lock_core::{ErrorKind, GuardState, Outcome};
use lock_redis::redis::{self, IntoConnectionInfo as _, Value};
use lock_redis::{RedisConfig, Topology};
use lock_testkit::{
    PATIENCE, RedisCluster, RedisServer, acquiring, come, give_back, hand_over, is_renewed, queue_up, soon,
    take, until,
};
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::script::Script;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;

use crate::common::dial::{Use, routed};
use crate::common::{RECIPES, connect};
use crate::topology::cluster::{name_on, name_on_but};

/// A cluster, a name whose lock is on its first master, and its slot.
async fn cluster_with_a_name() -> (RedisCluster, String, u16) {
    let cluster = RedisCluster::start().await.unwrap();
    let name = name_on(&cluster, 0).await;
    let slot = cluster.slot(&format!("lock:{name}")).await.unwrap();
    (cluster, name, slot)
}

/// Has a slot move of which no key has moved yet.
async fn begin_to_migrate(cluster: &RedisCluster, slot: u16, from: usize, to: usize) {
    let (from, to, slot) = (&cluster.masters()[from], &cluster.masters()[to], slot.to_string());
    let (from_id, to_id) = (cluster.id(from).await.unwrap(), cluster.id(to).await.unwrap());
    to.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
    from.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
}

async fn move_key(cluster: &RedisCluster, from: usize, to: usize, key: &str) {
    let port = cluster.masters()[to].port().to_string();
    cluster.masters()[from].call(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
}

/// Moves a slot, key by key, and does this before the first and after the last.
async fn migrate_while(
    cluster: &RedisCluster,
    slot: u16,
    (from, to): (usize, usize),
    mut while_keys_are_together: impl AsyncFnMut(),
) {
    begin_to_migrate(cluster, slot, from, to).await;
    while_keys_are_together().await;
    let all = cluster.masters();
    let (slot, to_id) = (slot.to_string(), cluster.id(&all[to]).await.unwrap());
    loop {
        let keys = all[from].call(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]).await;
        let Some(key) = keys.array().and_then(|keys| keys.first()) else { break };
        move_key(cluster, from, to, key.text().unwrap()).await;
    }
    while_keys_are_together().await;
    for node in [&all[to], &all[from]].into_iter().chain(all) {
        node.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    }
}

async fn migrate(cluster: &RedisCluster, slot: u16, way: (usize, usize)) {
    migrate_while(cluster, slot, way, async || {}).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_queue_is_kept_through_the_move_of_its_slot() {
    if RedisServer::lacks("sharded channels", (7, 0)) {
        return;
    }
    let (cluster, name, slot) = cluster_with_a_name().await;
    let queue = format!("polylock:queue:{{lock:{name}}}");
    let url = format!("{}?ttl=60s", cluster.url());
    let mut guard = take(&connect(&url).await, &name).await;
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(queue_up(&connect(&url).await, &name).await);
    }
    let channels = cluster.masters()[0].call(&["PUBSUB", "SHARDCHANNELS"]).await;
    assert_eq!(channels.array().unwrap().len(), 3, "the waiter subscribes at the node that has the lock");
    migrate(&cluster, slot, (0, 1)).await;
    // They come again by themselves, at the other node, and to the places that they had.
    let there = &cluster.masters()[1];
    until("they listen at the other node", async || {
        there.call(&["PUBSUB", "SHARDCHANNELS"]).await.array().unwrap().len() == 3
    })
    .await;
    assert_eq!(there.call(&["LLEN", &queue]).await.int(), Some(3));
    for waiter in waiters {
        guard = hand_over(guard, waiter).await;
    }
    give_back(guard).await;
}

/// The channel is refused by a node that has it no more, and is available there again later.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_refused_channel_is_subscribed_once_its_slot_is_back() {
    if RedisServer::lacks("sharded channels", (7, 0)) {
        return;
    }
    let (cluster, name, slot) = cluster_with_a_name().await;
    let guard = take(&connect(&format!("{}?ttl=60s", cluster.url())).await, &name).await;
    // Nobody listens before it is open.
    let gate = watch::Sender::new(false);
    let opens = gate.clone();
    let dial = routed(move |purpose, to| {
        let mut opens = opens.subscribe();
        async move {
            if purpose == Use::Pushes {
                opens.wait_for(|open| *open).await.unwrap();
            }
            Ok(to)
        }
    });
    let waits = RedisConfig::from_url(&cluster.url()).unwrap().dial(dial).connect().await.unwrap();
    let waiter = acquiring(waits.mutex(&name));
    until("somebody is about to listen", async || gate.receiver_count() > 0).await;
    migrate(&cluster, slot, (0, 1)).await;
    gate.send_replace(true);
    let is_heard_at = async |node: usize| {
        let channels = async || cluster.masters()[node].call(&["PUBSUB", "SHARDCHANNELS"]).await;
        until("somebody listens at the node", async || !channels().await.array().unwrap().is_empty()).await;
    };
    is_heard_at(1).await;
    migrate(&cluster, slot, (1, 0)).await;
    is_heard_at(0).await;
    give_back(hand_over(guard, waiter).await).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_lock_survives_the_migration_of_its_slot() {
    for recipe in RECIPES {
        let (cluster, name, slot) = cluster_with_a_name().await;
        let locks = connect(&format!("{}?ttl=5s&{recipe}", cluster.url())).await;
        let guard = take(&locks, &name).await;
        migrate_while(&cluster, slot, (0, 1), async || is_renewed(&guard).await).await;
        is_renewed(&guard).await;
        assert!(cluster.masters()[1].has_key(&format!("lock:{name}")).await);
        let token = guard.token();
        give_back(guard).await;
        let next = take(&locks, &name).await;
        assert!(next.token() > token);
        give_back(next).await;
        // And back, while nobody holds it: the first request goes to the wrong node.
        migrate(&cluster, slot, (1, 0)).await;
        give_back(take(&locks, &name).await).await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn while_a_slot_moves_new_locks_in_it_are_to_be_tried_again() {
    let cluster = RedisCluster::start().await.unwrap();
    let slot = cluster.slot("tag").await.unwrap();
    let from = usize::from(slot) / 5462;
    let way = (from, (from + 1) % 3);
    // Time: that it is not waited for long is the subject.
    let locks = connect(&format!("{}?command_timeout=300ms", cluster.url())).await;
    let patient = connect(&format!("{}?command_timeout=20s", cluster.url())).await;
    let held = take(&locks, "{tag}/held").await;
    let old = take(&connect(&format!("{}?{}", cluster.url(), RECIPES[1])).await, "{tag}/old").await;
    begin_to_migrate(&cluster, slot, way.0, way.1).await;
    // The cluster takes no request for several keys of which some are missing.
    let error = locks.mutex("{tag}/new").acquire().await.unwrap_err();
    let what = (error.kind(), error.outcome());
    assert_eq!(what, (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.to_string().contains("TRYAGAIN"), "{error}");
    // None is missing here.
    give_back(old).await;
    // With time enough it is waited for.
    let server = &cluster.masters()[way.1];
    server.call(&["CONFIG", "RESETSTAT"]).await;
    let waits = acquiring(patient.mutex("{tag}/new"));
    until("it is refused", async || server.text(&["INFO", "errorstats"]).await.contains("TRYAGAIN")).await;
    migrate(&cluster, slot, way).await;
    give_back(come(waits).await).await;
    give_back(held).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_lock_whose_keys_are_apart_holds_up_no_renewal_of_another() {
    let (cluster, name, slot) = cluster_with_a_name().await;
    let neighbour = name_on_but(&cluster, 0, &name).await;
    // Any wait for the keys to come together takes longer than the lease.
    let locks = connect(&format!("{}?ttl=6s&command_timeout=20s", cluster.url())).await;
    let (apart, other) = (take(&locks, &name).await, take(&locks, &neighbour).await);
    begin_to_migrate(&cluster, slot, 0, 1).await;
    move_key(&cluster, 0, 1, &format!("polylock:tokens:{{lock:{name}}}")).await;
    // Its renewals are refused.
    soon(apart.lost()).await;
    is_renewed(&other).await;
    assert_eq!(other.state(), GuardState::Valid);
    give_back(other).await;
}

/// Reads two keys in one batch, and returns when the second is answered. The first must not be by then.
async fn answers_the_second_alone(client: &RedisClient, keys: [&str; 2]) {
    static SCRIPT: LazyLock<Script> =
        LazyLock::new(|| Script::of("", &["return redis.call('EXISTS', KEYS[1])"]));
    let calls = keys.map(|key| SCRIPT.on(&[key]));
    let (answers, mut answered) = unbounded_channel();
    let note = |at, answer: lock_core::Result<i64>| answers.send((at, answer.is_ok())).unwrap();
    let read = |answer: &Value| redis::from_redis_value_ref(answer).ok();
    tokio::select! {
        all = client.read_each(&calls, read, note) => panic!("all are answered: {all:?}"),
        first = soon(answered.recv()) => assert_eq!(first, Some((1, true))),
    }
}

/// As locks are renewed that were acquired at one master, of which some have moved since.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_got_a_slot_and_hangs_holds_up_no_answer_of_another() {
    let (cluster, name, slot) = cluster_with_a_name().await;
    for master in cluster.masters() {
        master.call(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let [moves, stays] =
        [name.clone(), name_on_but(&cluster, 0, &name).await].map(|name| format!("lock:{name}"));
    let seeds = cluster.masters().iter().map(|master| master.url().into_connection_info().unwrap());
    let mut options = ClientOptions::new("redis", &[], Topology::Cluster(seeds.collect()));
    options.command_timeout = PATIENCE * 2;
    let client = RedisClient::new(options).unwrap();
    client.connect().await.unwrap();
    migrate(&cluster, slot, (0, 1)).await;
    cluster.masters()[1].stop();
    // The first time, the other master says that the slot has moved.
    for _ in 0..2 {
        answers_the_second_alone(&client, [&moves, &stays]).await;
    }
    cluster.masters()[1].cont();
}
