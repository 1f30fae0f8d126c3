//! A server whose memory is full refuses new locks. It takes none away, and those that it has are released and handed over.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, LockOptions, Locks, Outcome, Released, Result, Token};
use lock_redis::RedisConfig;
use lock_testkit::{RedisServer, come, give_back, until};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(1);
/// Of a waiter that the server forgets, and of a grant that nobody confirms.
const FORGOTTEN: Duration = Duration::from_secs(6);

async fn server() -> RedisServer {
    RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap()
}

async fn client(server: &RedisServer, options: &str) -> Locks {
    let url = format!("{}?{options}", server.url());
    RedisConfig::from_url(&url).unwrap().connect().await.unwrap()
}

/// Fills the memory of the server, and checks that it refuses a new lock.
async fn fill(server: &RedisServer, locks: &Locks) {
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = locks.mutex("new").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Exhausted, Outcome::NotApplied), "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
}

async fn queue_is(server: &RedisServer, wanted: i64) {
    until(&format!("the queue has not {wanted} waiters"), async || {
        server.command(&["LLEN", "polylock:queue:{lock:a}"]).await.unwrap().int() == Some(wanted)
    })
    .await;
}

/// Waits in one mode, and returns when the waiter is in the queue.
async fn waits(server: &RedisServer, locks: &Locks, mode: &'static str, before: i64) -> JoinHandle<Guard> {
    let locks = locks.clone();
    let waiter = tokio::spawn(async move { acquire(&locks, mode).await.unwrap() });
    queue_is(server, before + 1).await;
    waiter
}

async fn acquire(locks: &Locks, mode: &str) -> Result<Guard> {
    match mode {
        "mutex" => locks.mutex("a").acquire().await,
        "reader" => locks.rw("a").read().await,
        "permit" => locks.semaphore("a", 2).acquire().await,
        _ => unreachable!("{mode}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_kept_and_released() {
    let server = server().await;
    let locks = client(&server, "ttl=1s").await;
    let setnx = client(&server, "ttl=2s&recipe=setnx-timestamp&prefix=old:").await;
    let mut guards = vec![
        ("a mutex", locks.mutex("m").acquire().await.unwrap()),
        ("a reader", locks.rw("r").read().await.unwrap()),
        ("another reader", locks.rw("r").read().await.unwrap()),
        ("a permit", locks.semaphore("s", 2).acquire().await.unwrap()),
        ("setnx-timestamp", setnx.mutex("m").acquire().await.unwrap()),
    ];
    let mut writer = locks.rw("d").write().await.unwrap();
    writer.downgrade().await.unwrap();
    guards.push(("a downgraded writer", writer));
    let mut late = locks.rw("late").write().await.unwrap();
    fill(&server, &locks).await;
    late.downgrade().await.unwrap();
    guards.push(("a writer that is downgraded now", late));

    sleep(TTL * 5 / 2).await;
    for (what, guard) in &guards {
        guard.extend(TTL * 2).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        guard
            .raise_token(Token::new(guard.token().get() + 160))
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(guard.is_valid() && guard.verify().await.is_ok(), "{what}");
    }
    for (what, guard) in guards {
        assert_eq!(guard.release().await.unwrap(), Released::Released, "{what}");
    }
    for key in ["lock:m", "lock:r", "lock:s", "lock:d", "lock:late", "old:m"] {
        assert!(!server.has_key(key).await, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lock_goes_to_the_next_waiter() {
    let server = server().await;
    let clients = [client(&server, "ttl=1s").await, client(&server, "ttl=1s").await];
    let [holder, next] = &clients;
    // After a moment, the message alone acquires the lock. After the grace period the waiter has to ask, too.
    for pause in [Duration::ZERO, TTL * 3 / 2] {
        for (first, second) in
            [("mutex", "mutex"), ("mutex", "reader"), ("reader", "mutex"), ("mutex", "permit")]
        {
            server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
            let guard = acquire(holder, first).await.unwrap();
            let waiter = waits(&server, next, second, 0).await;
            fill(&server, holder).await;
            sleep(pause).await;
            assert!(!waiter.is_finished() && guard.is_valid(), "{first}, then {second}");
            let token = guard.token();
            give_back(guard).await;
            let guard = come(waiter).await;
            assert!(guard.token() > token, "{first}, then {second}");
            guard.extend(TTL).await.unwrap();
            give_back(guard).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: waits as long as it takes until waiters are forgotten"]
async fn waiters_stay_in_the_queue() {
    let server = server().await;
    let holder = client(&server, "ttl=1s").await;
    let guard = acquire(&holder, "mutex").await.unwrap();
    let mut waiters = Vec::new();
    for (number, mode) in ["mutex", "reader", "permit"].into_iter().enumerate() {
        waiters.push(waits(&server, &client(&server, "ttl=1s").await, mode, number as i64).await);
    }
    fill(&server, &holder).await;
    sleep(FORGOTTEN).await;
    give_back(guard).await;
    for waiter in waiters {
        give_back(come(waiter).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_goes_on_to_a_task_that_wants_it_in_another_way() {
    let server = server().await;
    let locks = client(&server, "ttl=10s").await;
    let with = |label: &str| locks.mutex_with("a", LockOptions::new().label(label)).unwrap();
    let guard = with("one").acquire().await.unwrap();
    let next = with("two");
    let waiter = tokio::spawn(async move { next.acquire().await.unwrap() });
    until("it waits", async || locks.inspect("a").await.unwrap().waiters == 1).await;
    fill(&server, &locks).await;
    let token = guard.token();
    give_back(guard).await;
    let guard = come(waiter).await;
    assert!(guard.token() > token);
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_lock_is_waited_for() {
    let server = server().await;
    let (holder, next) = (client(&server, "ttl=1s").await, client(&server, "ttl=1s").await);
    // Its first lock acquires by script, the next ones by plain commands.
    give_back(next.mutex("first").acquire().await.unwrap()).await;
    let guard = acquire(&holder, "mutex").await.unwrap();
    fill(&server, &holder).await;
    let waiter = waits(&server, &next, "mutex", 0).await;
    give_back(guard).await;
    give_back(come(waiter).await).await;
}
