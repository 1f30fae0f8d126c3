//! Tokens that grow through everything, and are raised to those of another store.

use futures_util::FutureExt;
use lock_core::{ErrorKind, GuardState, Locks, Token};
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{Acls, CreateMode};

use crate::common::*;

const BASE: &str = "/locks/!token-base";
/// Tokens of Redis are microseconds since 1970.
const REDIS: Token = Token::new(1_790_000_000_000_000);

fn above(token: Token, more: u64) -> Token {
    Token::new(token.get() + more)
}

async fn token(locks: &Locks, name: &str) -> Token {
    let guard = take(locks, name).await;
    let token = guard.token();
    assert_eq!(locks.inspect(name).await.unwrap().token, Some(token));
    give_back(guard).await;
    token
}

async fn raise(locks: &Locks, name: &str, floor: Token) {
    let guard = take(locks, name).await;
    let before = guard.token();
    guard.raise_token(floor).await.unwrap();
    assert_eq!(guard.token(), before, "a token stays what it is");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn no_caller_waits_for_another_one_that_is_paused() {
    let server = server().await;
    let locks = connect(&server).await;
    // It has begun to read the base.
    let one = locks.mutex("a");
    let mut stuck = Box::pin(one.acquire());
    assert!(stuck.as_mut().now_or_never().is_none());
    give_back(take(&locks, "b").await).await;
    give_back(stuck.await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tokens_continue_those_of_another_store() {
    let scene = Scene::new().await;
    let (one, two, three) = (&scene.locks, &scene.other, scene.connect().await);
    // Both know that there is no base.
    let before = token(two, "a").await.max(token(one, "a").await);
    raise(one, "a", REDIS).await;
    let next = token(two, "a").await;
    assert!(next > before && REDIS < next && next < above(REDIS, 1_000), "no higher than it must: {next}");
    assert!(token(one, "a").await > next);
    // What is low enough changes nothing.
    let version = async || scene.client.check_stat(BASE).await.unwrap().unwrap().version;
    let written = version().await;
    raise(two, "a", REDIS).await;
    raise(two, "b", Token::new(1)).await;
    assert_eq!(version().await, written);
    // All later holders see it, also of locks that were never held before.
    assert!(token(&three, "b").await > REDIS);
    // Another dir is another namespace.
    let elsewhere = opened(&config(&scene.server).dir("/elsewhere")).await;
    assert!(token(&elsewhere, "a").await < REDIS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_base_that_does_not_change_costs_nothing() {
    let scene = Scene::new().await;
    raise(&scene.other, "a", REDIS).await;
    let round = async || {
        let before = scene.proxy.requests();
        let guard = take(&scene.locks, "a").await;
        let token = guard.token();
        give_back(guard).await;
        (scene.proxy.requests() - before, token)
    };
    // Heartbeats come in between.
    let least = async || {
        let mut least = u64::MAX;
        for _ in 0..10 {
            least = least.min(round().await.0);
        }
        least
    };
    round().await;
    assert_eq!(least().await, 2, "create, delete");
    raise(&scene.other, "a", above(REDIS, REDIS.get())).await;
    let (requests, token) = round().await;
    assert!(requests >= 3, "it is read again");
    assert!(token.get() > 2 * REDIS.get());
    assert_eq!(least().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_raise_is_not_missed_while_cut_off() {
    let scene = Scene::with(LASTING, Default::default()).await;
    let mut last = token(&scene.locks, "a").await;
    for is_released_before in [false, true] {
        let guard = take(&scene.other, "a").await;
        let next = queue_up(&scene.locks, "a").await;
        scene.cut();
        let floor = above(last, 1_000_000);
        guard.raise_token(floor).await.unwrap();
        if is_released_before {
            give_back(guard).await;
            scene.proxy.heal();
        } else {
            scene.proxy.heal();
            give_back(guard).await;
        }
        let next = come(next).await;
        assert!(next.token() > floor, "{} is not above {floor}", next.token());
        last = next.token();
        give_back(next).await;
    }
}

/// Who has seen the base computes with it all the same, and others do not know of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_raise_writes_the_base_again_that_somebody_has_deleted() {
    let scene = Scene::new().await;
    raise(&scene.locks, "a", REDIS).await;
    scene.client.delete(BASE, None).await.unwrap();
    let guard = take(&scene.locks, "a").await;
    assert!(guard.token() > REDIS);
    guard.raise_token(REDIS).await.unwrap();
    give_back(guard).await;
    assert!(token(&scene.connect().await, "a").await > REDIS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_a_holder_raises() {
    let scene = Scene::new().await;
    let guard = take(&scene.locks, "a").await;
    delete_node(&scene.client, 0).await;
    assert_eq!(guard.raise_token(REDIS).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(guard.state(), GuardState::Lost(_)));
    assert!(scene.client.check_stat(BASE).await.unwrap().is_none());
    let guard = take(&scene.locks, "b").await;
    let highest = Token::new(i64::MAX.unsigned_abs());
    assert_eq!(guard.raise_token(highest).await.unwrap_err().kind(), ErrorKind::Exhausted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_raise_by_an_older_holder_fits_below_another_one() {
    let scene = Scene::new().await;
    let (one, two, three) = (&scene.locks, &scene.other, scene.connect().await);
    raise(one, "x", REDIS).await;
    let (older, next) = (take(one, "a").await, queue_up(two, "a").await);
    let newer = take(&three, "b").await;
    let (low, high) = (above(REDIS, REDIS.get()), above(REDIS, 2 * REDIS.get()));
    newer.raise_token(high).await.unwrap();
    // All sessions know of that one.
    for locks in [one, two, &three] {
        assert!(token(locks, "c").await > high);
    }
    older.raise_token(low).await.unwrap();
    let next = hand_over(older, next).await;
    assert!(low < next.token() && next.token() < high, "{}", next.token());
    give_back(next).await;
    give_back(newer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_burst_of_raises_leaves_holders_their_token_and_waiters_their_turn() {
    let scene = Scene::new().await;
    raise(&scene.locks, "x", REDIS).await;
    let (long, next) = (take(&scene.locks, "a").await, queue_up(&scene.other, "a").await);
    let turn = node(&scene.client, 1).await;
    for raised in 1..=20 {
        raise(&scene.locks, &format!("m{raised}"), above(REDIS, raised * 1_000_000_000)).await;
    }
    assert!(scene.locks.inspect("a").await.unwrap().token.is_some_and(|token| token >= long.token()));
    let next = hand_over(long, next).await;
    assert_eq!(node(&scene.client, 0).await, turn, "it is granted the lock with its first node");
    give_back(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_holder_of_a_shared_lock_raises_too() {
    let scene = Scene::new().await;
    let (one, two) = (scene.locks.rw("a"), scene.other.rw("a"));
    let (first, second) = (one.read().await.unwrap(), two.read().await.unwrap());
    second.raise_token(REDIS).await.unwrap();
    give_back(first).await;
    give_back(second).await;
    let writer = one.write().await.unwrap();
    assert!(writer.token() > REDIS);
    give_back(writer).await;
}

/// What elections of a leader skip, in transactions.
const ELECTION: u64 = 1 << 32;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn elections_skip_few_tokens_above_a_base() {
    let server = ZooKeeper::start().await.unwrap();
    let connect = async || connect(&server).await;
    let locks = connect().await;
    raise(&locks, "a", REDIS).await;
    let (mut last, restarts, elections) = (token(&locks, "a").await, 2, 8);
    let first = last;
    locks.close().await.unwrap();
    for _ in 0..restarts {
        server.skip_epochs(elections).await.unwrap();
        let locks = connect().await;
        for name in ["a", "b", "a"] {
            let next = token(&locks, name).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        locks.close().await.unwrap();
    }
    let skipped = last.get() - first.get();
    assert!(skipped < restarts * elections * ELECTION / 100, "{skipped} tokens");

    // A sharer raises the tokens of all locks, and no higher than it must.
    let (locks, mut floor) = (connect().await, above(last, REDIS.get()));
    for _ in 0..5 {
        let reader = locks.rw("a").read().await.unwrap();
        reader.raise_token(floor).await.unwrap();
        give_back(reader).await;
        let other = token(&locks, "b").await;
        assert!(floor < other && other < above(floor, 1_000), "{other} above {floor}");
        floor = other;
    }
    locks.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_broken_base_is_reported() {
    let scene = Scene::new().await;
    let (locks, operator) = (&scene.locks, &scene.client);
    let mut last = token(locks, "a").await;
    raise(locks, "a", REDIS).await;
    // A client that has seen it continues from there.
    operator.delete(BASE, None).await.unwrap();
    for _ in 0..2 {
        let next = token(locks, "a").await;
        assert!(next > last && next > REDIS);
        last = next;
    }
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create(BASE, b"many", &open).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(BASE), "{error}");
    until_children(operator, "a", 0).await;
    operator.set_data(BASE, i64::MAX.to_string().as_bytes(), None).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    until_children(operator, "a", 0).await;

    // Only a client with the credentials can read it.
    let mine = opened(&config(&scene.server).credentials("me", "Pa55").dir("/mine")).await;
    raise(&mine, "a", REDIS).await;
    operator.auth("digest", b"me:Pa55").await.unwrap();
    let (acl, _) = operator.get_acl("/mine/!token-base").await.unwrap();
    assert_eq!(acl[0].scheme(), "digest");
}

/// As in nodes that were copied to a new ensemble.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_of_another_ensemble_is_refused() {
    let scene = Scene::new().await;
    let (locks, operator) = (&scene.locks, &scene.client);
    mkdir(operator, "/locks").await;
    let (begins, ends) = (1_u64 << 60, (1_u64 << 60) + 1_000);
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    // No node would ever reach the one; the other would give tokens from before the copy again.
    operator.create(BASE, format!("{begins} {ends} {REDIS}").as_bytes(), &open).await.unwrap();
    for next in [format!("0 {ends} {REDIS}"), (REDIS.get() + 7).to_string()] {
        let error = soon(locks.mutex("a").acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        for text in [BASE, "another ensemble", "write a number"] {
            assert!(error.to_string().contains(text), "{error}");
        }
        until_children(operator, "a", 0).await;
        operator.set_data(BASE, next.as_bytes(), None).await.unwrap();
    }
    assert!(token(locks, "a").await > REDIS);
}

/// The tokens of tasks of one process that get the lock one after the other.
async fn tasks(locks: &Locks, name: &str, count: usize) -> Vec<Token> {
    let (mut guard, mut waiters, mut tokens) = (take(locks, name).await, Vec::new(), Vec::new());
    for _ in 1..count {
        waiters.push(queue_up(locks, name).await);
    }
    for waiter in waiters {
        tokens.push(guard.token());
        guard = hand_over(guard, waiter).await;
    }
    tokens.push(guard.token());
    give_back(guard).await;
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lock_goes_from_task_to_task_with_the_tokens_of_its_block() {
    let scene = Scene::new().await;
    let (locks, other) = (&scene.locks, &scene.other);
    let in_a_row = |tokens: &[Token]| tokens.windows(2).filter(|pair| above(pair[0], 1) == pair[1]).count();
    let tokens = tasks(locks, "a", 20).await;
    assert_eq!(tokens[0].get() % 16, 0);
    // A busy machine ends a series early.
    assert!(in_a_row(&tokens) > 0, "{tokens:?}");
    let each_asks = opened(&config(&scene.server).local_handovers(1)).await;
    assert_eq!(in_a_row(&tasks(&each_asks, "a", 5).await), 0);

    // A base that another lock's holder writes is beyond all blocks; what is low enough writes none.
    let held = take(locks, "held").await;
    raise(other, "b", Token::new(1)).await;
    assert!(scene.client.check_stat(BASE).await.unwrap().is_none());
    raise(other, "b", above(token(other, "b").await, 1_000)).await;
    let (next, before) = (queue_up(locks, "held").await, held.token());
    let next = hand_over(held, next).await;
    assert_eq!(next.token(), above(before, 1));
    let passed = next.token();
    give_back(next).await;
    assert!(token(other, "held").await > passed);
    let after = tasks(locks, "a", 5).await;
    assert!(after[0] > tokens[19]);
    assert_eq!(in_a_row(&after), 0, "above a base each task is granted the lock: {after:?}");
}
