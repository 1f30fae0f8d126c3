//! A server whose memory is full refuses new locks. It takes none away, and those that it has are released and handed over.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Guard, Locks, Outcome, Token};
use lock_testkit::{RedisServer, come, give_back, is_renewed, soon, take};
use tokio::time::sleep;

use crate::common::{client, queue_is};

/// Fills the memory of the server, and checks that it refuses a new lock.
async fn fill(server: &RedisServer, locks: &Locks) {
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = locks.mutex("new").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Exhausted, Outcome::NotApplied), "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
}

async fn server() -> RedisServer {
    RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_kept_and_released() {
    let server = server().await;
    let locks = client(&server, "ttl=5s").await;
    let setnx = client(&server, "ttl=5s&recipe=setnx-timestamp&prefix=old:").await;
    let [mut downgraded, mut late] =
        [locks.rw("d").write().await.unwrap(), locks.rw("late").write().await.unwrap()];
    downgraded.downgrade().await.unwrap();
    let mut guards = vec![
        ("a mutex", take(&locks, "m").await),
        ("a reader", locks.rw("r").read().await.unwrap()),
        ("another reader", locks.rw("r").read().await.unwrap()),
        ("a permit", locks.semaphore("s", 2).acquire().await.unwrap()),
        ("setnx-timestamp", take(&setnx, "m").await),
        ("a downgraded writer", downgraded),
    ];
    fill(&server, &locks).await;
    late.downgrade().await.unwrap();
    guards.push(("a writer that is downgraded now", late));

    join_all(guards.iter().map(|(_, guard)| is_renewed(guard))).await;
    for (what, guard) in &guards {
        guard.extend(Duration::from_secs(10)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let raised = guard.raise_token(Token::new(guard.token().get() + 160)).await;
        raised.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(guard.is_valid() && guard.verify().await.is_ok(), "{what}");
    }
    for (_, guard) in guards {
        give_back(guard).await;
    }
    for key in ["lock:m", "lock:r", "lock:s", "lock:d", "lock:late", "old:m"] {
        assert!(!server.has_key(key).await, "{key}");
    }
}

async fn acquire(locks: &Locks, mode: &str) -> Guard {
    let acquired = match mode {
        "mutex" => soon(locks.mutex("a").acquire()).await,
        "reader" => soon(locks.rw("a").read()).await,
        _ => soon(locks.semaphore("a", 2).acquire()).await,
    };
    acquired.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lock_goes_to_the_next_waiter() {
    let server = server().await;
    let (holder, next) = (client(&server, "ttl=60s").await, client(&server, "ttl=60s").await);
    // At first the message alone acquires the lock. After the grace period the waiter has to ask, too.
    // Time: it is longer than the grace period.
    for pause in [Duration::ZERO, Duration::from_millis(1_500)] {
        for (first, second) in
            [("mutex", "mutex"), ("mutex", "reader"), ("reader", "mutex"), ("mutex", "permit")]
        {
            server.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
            let guard = acquire(&holder, first).await;
            let waiting = next.clone();
            let waiter = tokio::spawn(async move { acquire(&waiting, second).await });
            queue_is(&server, 1).await;
            fill(&server, &holder).await;
            // Time: as above.
            sleep(pause).await;
            assert!(!waiter.is_finished() && guard.is_valid(), "{first}, then {second}");
            let token = guard.token();
            give_back(guard).await;
            let guard = come(waiter).await;
            assert!(guard.token() > token, "{first}, then {second}");
            guard.extend(Duration::from_secs(60)).await.unwrap();
            give_back(guard).await;
        }
    }
}
