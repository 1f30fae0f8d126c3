//! Where the locks run: outside a runtime, on several of them, and before there is a server.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use lock_testkit::{PATIENCE, RedisServer, come, give_back, is_renewed, queue_up, soon, take};
use polylock::{ErrorKind, Guard, LockOptions, Locks, Mutex, Released, RwLock, Semaphore, Validity};
use tokio::time::{sleep, timeout};

use crate::common::{Servers, in_background, one_thread};

/// Leases that are renewed every two seconds.
const RENEWED: (&str, &str) = ("ttl=6s", "session_timeout=6s");
/// Time: a session that ends while its runtime is paused.
const SHORT_SESSION: &str = "session_timeout=2s";
/// Longer than any timeout of a connection or a command, and than the default ttl: that ends what a paused runtime left on
/// the servers.
const LONGEST: Duration = Duration::from_secs(60);

fn servers() -> Servers {
    one_thread().block_on(Servers::start())
}

#[test]
fn outside_a_runtime_every_call_says_what_to_do() {
    for url in ["redis://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "zk://127.0.0.1:1"] {
        let error = poll_once(Locks::connect(url)).unwrap_err();
        assert!(error.to_string().contains("#[tokio::main]"), "{url}: {error}");
        let lazy = Locks::connect_lazy(url).expect("nothing is connected yet");
        for error in [
            error,
            poll_once(lazy.mutex("a").acquire()).map(drop).unwrap_err(),
            poll_once(lazy.mutex("a").try_acquire()).map(drop).unwrap_err(),
            poll_once(lazy.inspect("a")).map(drop).unwrap_err(),
            poll_once(lazy.break_lock("a")).map(drop).unwrap_err(),
            poll_once(lazy.doctor()).map(drop).unwrap_err(),
            poll_once(lazy.close()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
        }
    }
}

#[test]
fn a_guard_outside_its_runtime_says_what_to_do_and_is_released() {
    let runtime = in_background();
    let locks = runtime.block_on(Locks::connect("memory://")).unwrap();
    let guard = runtime.block_on(take(&locks, "a"));
    for error in [
        poll_once(guard.verify()).map(drop).unwrap_err(),
        poll_once(guard.extend(PATIENCE)).map(drop).unwrap_err(),
        poll_once(guard.release()).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.lock().is_some() && error.to_string().contains("runtime"), "{error}");
    }
    // The guard was dropped with the failed release.
    runtime.block_on(async { drop(take(&locks, "a").await) });
}

#[test]
fn runtimes_that_run_in_turns_work_or_say_why_not() {
    on_each(servers().urls("", SHORT_SESSION), |url| {
        let (one, two) = (one_thread(), one_thread());
        let locks = one.block_on(Locks::connect(url)).unwrap();
        for (turn, runtime) in [&one, &two, &one, &two].into_iter().enumerate() {
            let pair = async { locks.mutex("turns").acquire().await?.release().await };
            let pair = runtime.block_on(async { timeout(LONGEST, pair).await });
            match pair.unwrap_or_else(|_| panic!("{url}, turn {turn}: no answer")) {
                Ok(released) => assert_eq!(released, Released::Released),
                Err(error) => {
                    assert!(error.to_string().contains("several tokio runtimes"), "{url}, {turn}: {error}");
                }
            }
        }
    });
}

type Asked<'a> = Pin<Box<dyn Future<Output = polylock::Result<()>> + 'a>>;

/// The session has ended meanwhile, and a new one would be opened on the first runtime.
#[test]
fn whatever_is_asked_while_the_first_runtime_is_paused_is_answered() {
    on_each(servers().urls("", SHORT_SESSION), |url| {
        let (one, two) = (one_thread(), one_thread());
        let locks = one.block_on(Locks::connect(url)).unwrap();
        let token = one.block_on(async {
            let guard = take(&locks, "turns").await;
            let token = guard.token();
            give_back(guard).await;
            token
        });
        two.block_on(async {
            // Time: nobody sees the session end.
            sleep(Duration::from_secs(3)).await;
            let asked: [(&str, Asked<'_>); 6] = [
                ("inspect", Box::pin(async { locks.inspect("turns").await.map(drop) })),
                ("break_lock", Box::pin(async { locks.break_lock("turns").await.map(drop) })),
                ("break_lock_if", Box::pin(async { locks.break_lock_if("turns", token).await.map(drop) })),
                ("list", Box::pin(async { locks.list("").await.map(drop) })),
                ("revocation", Box::pin(async { locks.request_revocation("turns").await.map(drop) })),
                ("doctor", Box::pin(async { locks.doctor().await.map(drop) })),
            ];
            for (what, answer) in asked {
                let answer = timeout(LONGEST, answer).await;
                let answer = answer.unwrap_or_else(|_| panic!("{url}, {what}: no answer"));
                // Not every backend lists locks or asks holders for theirs.
                if let Some(error) = answer.err().filter(|error| error.kind() != ErrorKind::Unsupported) {
                    assert!(error.to_string().contains("several tokio runtimes"), "{url}, {what}: {error}");
                }
            }
        });
    });
}

/// A lease is renewed on the runtime that it began on.
#[test]
fn a_holder_keeps_its_lock_when_the_runtime_of_the_one_before_ends() {
    let servers = servers();
    let urls = servers.urls(RENEWED.0, RENEWED.1);
    on_each(urls.iter().flat_map(|url| [(url, false), (url, true)]), |&(url, is_dropped)| {
        let (ends, stays) = (in_background(), in_background());
        let locks = stays.block_on(Locks::connect(url)).unwrap();
        let name = format!("outlives, {is_dropped}");
        let first = ends.block_on(take(&locks, &name));
        let next = stays.block_on(queue_up(&locks, &name));
        let token = first.token();
        if is_dropped {
            drop(first);
        } else {
            ends.block_on(give_back(first));
        }
        let next = stays.block_on(come(next));
        assert!(next.token() > token, "{url}");
        ends.shutdown_timeout(LONGEST);
        stays.block_on(async {
            is_renewed(&next).await;
            is_renewed(&next).await;
            give_back(next).await;
        });
    });
}

/// As with a web server that has a runtime of one thread for each core.
#[test]
fn a_runtime_whose_thread_computes_takes_the_locks_of_no_other() {
    on_each(servers().urls(RENEWED.0, RENEWED.1), |url| {
        let (stays, busy) = (in_background(), one_thread());
        let locks = stays.block_on(Locks::connect(url)).unwrap();
        // It used the locks first.
        let kept = busy.block_on(take(&locks, "of the busy one"));
        while_it_computes(&busy, || {
            one_thread().block_on(async {
                let guard = take(&locks, "of the other one").await;
                is_renewed(&guard).await;
                is_renewed(&guard).await;
                guard.extend(PATIENCE).await.unwrap();
                give_back(guard).await;
            });
        });
        drop(kept);
    });
}

/// The connections that it opened again are driven by the runtime that the locks were connected on.
#[test]
fn a_runtime_whose_thread_computes_drives_no_connection() {
    let servers = servers();
    let [redis, masters, _] = servers.urls("ttl=30s", "");
    let (stays, busy) = (in_background(), one_thread());
    for url in
        [format!("{redis}&command_timeout=15s"), format!("{masters}&longest_ttl=30s&master_timeout=15s")]
    {
        let locks = stays.block_on(Locks::connect(&url)).unwrap();
        busy.block_on(async {
            for redis in servers.masters.servers().iter().chain([&servers.redis]) {
                redis.call(&["CLIENT", "KILL", "TYPE", "normal"]).await;
            }
            // Each master gets a new one.
            for _ in 0..3 {
                drop(locks.mutex("of the busy one").acquire().await);
                locks.backend().settle().await;
            }
        });
        while_it_computes(&busy, || {
            let other = locks.mutex("of the other one");
            // Time: less than the timeouts of the driver, so that its own connection has answered.
            let guard = stays.block_on(async { timeout(Duration::from_secs(10), other.acquire()).await });
            assert!(matches!(guard, Ok(Ok(_))), "{url}: {guard:?}");
        });
    }
}

/// Does something while the only thread of this runtime is busy.
fn while_it_computes(busy: &tokio::runtime::Runtime, does: impl FnOnce()) {
    let (ends, has_ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || busy.block_on(async { has_ended.recv_timeout(2 * LONGEST).unwrap_err() }));
        does();
        drop(ends);
    });
}

/// A guard that was moved to another runtime, while its own is paused.
#[test]
fn a_guard_of_a_paused_runtime_answers_within_its_lease() {
    let servers = servers();
    // Time: the lease ends.
    let [redis, masters, _] = servers.urls("ttl=1s", "");
    for url in [redis, masters] {
        let (stays, paused) = (in_background(), one_thread());
        let locks = stays.block_on(Locks::connect(&url)).unwrap();
        let guard = paused.block_on(take(&locks, "moves"));
        stays.block_on(async {
            assert_eq!(soon(guard.extend(PATIENCE)).await.unwrap_err().kind(), ErrorKind::Lost, "{url}");
            assert_eq!(soon(guard.release()).await.unwrap(), Released::AlreadyLost, "{url}");
        });
    }
}

#[test]
fn an_outage_that_has_another_cause_keeps_its_hint() {
    let (one, two) = (one_thread(), one_thread());
    let server = one.block_on(RedisServer::start()).unwrap();
    let locks = one.block_on(Locks::connect(&server.url())).unwrap();
    // From here on a connection may live on a runtime that is paused.
    one.block_on(async { give_back(take(&locks, "a").await).await });
    let elsewhere = two.block_on(async { timeout(LONGEST, locks.inspect("a")).await });
    drop(elsewhere.expect("an answer, or the end of the patience with it"));
    server.kill();
    let refused = one.block_on(async {
        let mut tries = 0..20;
        loop {
            let error = locks.mutex("a").acquire().await.map(drop).unwrap_err();
            if error.code() == "refused" || tries.next().is_none() {
                return error;
            }
        }
    });
    let text = refused.to_string();
    assert!(refused.code() == "refused" && text.contains("start the server"), "{text}");
    assert!(!text.contains("several tokio runtimes"), "nobody listens there: {text}");
}

#[test]
fn a_lazy_connection_waits_for_its_server() {
    let (runtime, servers) = (in_background(), servers());
    let kill = || {
        servers.redis.kill();
        servers.masters.servers().iter().for_each(RedisServer::kill);
        servers.zk.kill();
    };
    kill();
    // Time: how long each attempt takes that is in vain.
    for url in servers.urls("connect_timeout=2s", "connect_timeout=2s") {
        // Outside the runtime, as a static would be made.
        let locks = Locks::connect_lazy(&url).unwrap();
        let error = runtime.block_on(locks.mutex("lazy").acquire()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        assert!(error.is_retryable() && error.lock().is_some(), "{url}: {error}");
        runtime.block_on(async {
            servers.redis.start_again().await.unwrap();
            for master in servers.masters.servers() {
                master.start_again().await.unwrap();
            }
            servers.zk.start_again().await.unwrap();
            give_back(take(&locks, "lazy").await).await;
            locks.close().await.unwrap();
            let error = locks.mutex("lazy").acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{url}: {error}");
        });
        kill();
    }
}

#[test]
fn a_lazy_connection_reads_its_url_at_once() {
    for url in ["redis://", "redlock://a:1", "zk://h?ttl=10s", "consul://h", "redis://h?tll=10s"] {
        assert_eq!(Locks::connect_lazy(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
    }
    // Time: too short.
    let short = LockOptions::new().ttl(Duration::from_millis(1));
    for url in ["redis://h", "redlock://a:1,b:2,c:3"] {
        let locks = Locks::connect_lazy(url).unwrap();
        assert_eq!(locks.mutex_with("a", short.clone()).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

/// What spawned tasks and threads hold can be sent there; the compiler checks it.
#[test]
fn everything_can_be_sent_to_another_thread() {
    fn send_and_sync<T: Send + Sync + 'static>() {}
    fn send<T: Send>(_: T) {}
    send_and_sync::<(Locks, Mutex, RwLock, Semaphore, Guard, Validity, LockOptions, polylock::Error)>();
    let _ = |locks: &Locks, mutex: &Mutex, guard: &mut Guard| {
        send(Locks::connect("memory://"));
        send((locks.inspect("a"), locks.break_lock("a"), locks.request_revocation("a"), locks.doctor()));
        send(locks.close());
        send((mutex.acquire(), mutex.try_acquire(), mutex.try_acquire_for(PATIENCE)));
        send((guard.lost(), guard.verify(), guard.extend(PATIENCE), guard.revoke_requested()));
        send(guard.run(async {}));
        send(guard.raise_token(guard.token()));
        send(guard.downgrade());
    };
    let _ = |guard: Guard| send(guard.release());
}

/// Does the same on several stores at once.
fn on_each<T: Sync>(stores: impl IntoIterator<Item = T>, run: impl Fn(&T) + Sync) {
    let stores = Vec::from_iter(stores);
    thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| run(store));
        }
    });
}

/// Polls a future outside any runtime; it must be ready.
fn poll_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits for a runtime"),
    }
}
