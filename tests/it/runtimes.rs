//! Where the locks run: outside a runtime, on several of them, and before there is a server.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_testkit::{RedisFive, RedisServer, ZooKeeper};
use polylock::{ErrorKind, Guard, LockOptions, Locks, Mutex, Released, RwLock, Semaphore, Validity};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

/// Longer than any timeout of a connection or a command, and than the default ttl: that ends what a paused runtime left on
/// the servers.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn outside_a_runtime_every_call_says_what_to_do() {
    for url in ["redis://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "zk://127.0.0.1:1"] {
        let error = poll_once(Locks::connect(url)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
        assert!(error.to_string().contains("#[tokio::main]"), "{url}: {error}");
        let lazy = Locks::connect_lazy(url).expect("nothing is connected yet");
        for error in [
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
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, guard) = runtime.block_on(async {
        let locks = Locks::connect("memory://").await.unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        (locks, guard)
    });
    for error in [
        poll_once(guard.verify()).map(drop).unwrap_err(),
        poll_once(guard.extend(PATIENCE)).map(drop).unwrap_err(),
        poll_once(guard.release()).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.lock().is_some() && error.to_string().contains("runtime"), "{error}");
    }
    let next = runtime.block_on(locks.mutex("a").try_acquire_for(PATIENCE)).unwrap();
    drop(next.expect("the guard was dropped with the failed release"));
}

#[test]
fn runtimes_that_run_in_turns_work_or_say_why_not() {
    let servers = Servers::start();
    let [redis, masters, ensemble] = servers.urls();
    on_each([redis, masters, format!("{ensemble}?session_timeout=2s")], |url| {
        let (one, two) = (one_thread(), one_thread());
        let locks = one.block_on(Locks::connect(url)).unwrap();
        for round in 0..2 {
            for (which, runtime) in [("the first", &one), ("the second", &two)] {
                let pair = async {
                    let guard = locks.mutex("turns").acquire().await?;
                    guard.release().await
                };
                let pair = runtime.block_on(async { timeout(PATIENCE, pair).await });
                match pair.unwrap_or_else(|_| panic!("{url}, {round}, {which}: no answer")) {
                    Ok(released) => assert_eq!(released, Released::Released),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("several tokio runtimes"), "{url}, {round}, {which}: {text}");
                    }
                }
            }
        }
    });
}

type Asked<'a> = Pin<Box<dyn Future<Output = polylock::Result<()>> + 'a>>;

/// The session has ended meanwhile, and a new one would be opened on the first runtime.
#[test]
fn whatever_is_asked_while_the_first_runtime_is_paused_is_answered() {
    let servers = Servers::start();
    let [redis, masters, ensemble] = servers.urls();
    on_each([redis, masters, format!("{ensemble}?session_timeout=2s")], |url| {
        let (one, two) = (one_thread(), one_thread());
        let locks = one.block_on(Locks::connect(url)).unwrap();
        let token = one.block_on(async {
            let guard = locks.mutex("turns").acquire().await.unwrap();
            let token = guard.token();
            guard.release().await.unwrap();
            token
        });
        two.block_on(async {
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
                let answer = timeout(PATIENCE, answer).await;
                let answer = answer.unwrap_or_else(|_| panic!("{url}, {what}: no answer"));
                // Not every backend lists locks or asks holders for theirs.
                if let Some(error) = answer.err().filter(|error| error.kind() != ErrorKind::Unsupported) {
                    let text = error.to_string();
                    assert!(text.contains("several tokio runtimes"), "{url}, {what}: {text}");
                }
            }
        });
    });
}

/// A lease is renewed on the runtime that it began on.
#[test]
fn a_holder_keeps_its_lock_when_the_runtime_of_the_one_before_ends() {
    let servers = Servers::start();
    let [redis, masters, ensemble] = servers.urls();
    let urls =
        [format!("{redis}?ttl=1s"), format!("{masters}?ttl=1s"), format!("{ensemble}?session_timeout=2s")];
    on_each(urls.iter().flat_map(|url| [(url, false), (url, true)]), |&(url, is_dropped)| {
        let [ends, stays] =
            [(); 2].map(|()| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
        let locks = stays.block_on(Locks::connect(url)).unwrap();
        let name = format!("outlives, {is_dropped}");
        let mutex = locks.mutex(&name);
        let first = ends.block_on(mutex.acquire()).unwrap();
        let next = stays.spawn(async move { mutex.acquire().await.unwrap() });
        stays.block_on(async {
            while locks.inspect(&name).await.unwrap().waiters == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        });
        let token = first.token();
        if is_dropped {
            drop(first);
        } else {
            assert_eq!(ends.block_on(first.release()).unwrap(), Released::Released);
        }
        let next = stays.block_on(async { timeout(PATIENCE, next).await }).unwrap().unwrap();
        assert!(next.token() > token, "{url}");
        ends.shutdown_timeout(PATIENCE);
        stays.block_on(async {
            sleep(Duration::from_secs(3)).await;
            assert!(next.is_valid(), "{url}: {next:?}");
            assert_eq!(next.release().await.unwrap(), Released::Released, "{url}");
        });
    });
}

/// As with a web server that has a runtime of one thread for each core.
#[test]
fn a_runtime_whose_thread_computes_takes_the_locks_of_no_other() {
    const COMPUTES: Duration = Duration::from_secs(4);
    let servers = Servers::start();
    let [redis, masters, ensemble] = servers.urls();
    let urls =
        [format!("{redis}?ttl=1s"), format!("{masters}?ttl=1s"), format!("{ensemble}?session_timeout=2s")];
    std::thread::scope(|scope| {
        for url in &urls {
            scope.spawn(move || {
                let stays = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                let locks = stays.block_on(Locks::connect(url)).unwrap();
                // It used the locks first.
                let busy = one_thread();
                let kept = busy.block_on(locks.mutex("of the busy one").acquire()).unwrap();
                let other = scope.spawn(move || {
                    one_thread().block_on(async {
                        let guard = locks.mutex("of the other one").acquire().await.unwrap();
                        let lost = timeout(COMPUTES, guard.lost()).await;
                        assert!(lost.is_err(), "{url}: {lost:?}");
                        guard.extend(Duration::from_secs(2)).await.unwrap();
                        assert_eq!(guard.release().await.unwrap(), Released::Released, "{url}");
                    });
                });
                busy.block_on(async { std::thread::sleep(COMPUTES + Duration::from_secs(1)) });
                other.join().unwrap();
                drop(kept);
            });
        }
    });
}

/// The connections that it opened again are driven by the runtime that the locks were connected on.
#[test]
fn a_runtime_whose_thread_computes_drives_no_connection() {
    let servers = Servers::start();
    let [redis, masters, _] = servers.urls();
    let urls = [
        format!("{redis}?ttl=30s&command_timeout=15s"),
        format!("{masters}?ttl=30s&longest_ttl=30s&master_timeout=15s"),
    ];
    let stays = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let busy = one_thread();
    for url in &urls {
        let locks = stays.block_on(Locks::connect(url)).unwrap();
        busy.block_on(async {
            servers.close_connections().await;
            // Each master gets a new one.
            for _ in 0..3 {
                drop(locks.mutex("of the busy one").acquire().await);
                sleep(Duration::from_millis(50)).await;
            }
        });
        let (answered, is_answered) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let busy = &busy;
            scope.spawn(move || busy.block_on(async { is_answered.recv_timeout(PATIENCE).unwrap() }));
            let other = locks.mutex("of the other one");
            let guard = stays.block_on(async { timeout(Duration::from_secs(10), other.acquire()).await });
            answered.send(()).unwrap();
            assert!(matches!(guard, Ok(Ok(_))), "{url}: {guard:?}");
        });
    }
}

/// A guard that was moved to another runtime, while its own is paused.
#[test]
fn a_guard_of_a_paused_runtime_answers_within_its_lease() {
    let servers = Servers::start();
    let [redis, masters, _] = servers.urls();
    for url in [format!("{redis}?ttl=1s"), format!("{masters}?ttl=1s")] {
        let stays = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let locks = stays.block_on(Locks::connect(&url)).unwrap();
        let paused = one_thread();
        let guard = paused.block_on(locks.mutex("moves").acquire()).unwrap();
        stays.block_on(async {
            let extended = timeout(PATIENCE, guard.extend(Duration::from_secs(1))).await;
            assert_eq!(extended.expect("an answer").unwrap_err().kind(), ErrorKind::Lost, "{url}");
            let released = timeout(PATIENCE, guard.release()).await;
            assert_eq!(released.expect("an answer").unwrap(), Released::AlreadyLost, "{url}");
        });
    }
}

#[test]
fn an_outage_that_has_another_cause_keeps_its_hint() {
    let (one, two) = (one_thread(), one_thread());
    let server = one.block_on(RedisServer::start()).unwrap();
    let locks = one.block_on(Locks::connect(&server.url())).unwrap();
    // From here on a connection may live on a runtime that is paused.
    one.block_on(async { locks.mutex("a").acquire().await?.release().await }).unwrap();
    let elsewhere = two.block_on(async { timeout(PATIENCE, locks.inspect("a")).await });
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
    assert_eq!(refused.code(), "refused", "{refused}");
    assert!(refused.to_string().contains("start the server"), "{refused}");
    assert!(!refused.to_string().contains("several tokio runtimes"), "nobody listens there: {refused}");
}

#[test]
fn a_lazy_connection_waits_for_its_server() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let servers = Servers::start();
    servers.kill();
    for url in servers.urls() {
        // Outside the runtime, as a static would be made.
        let locks = Locks::connect_lazy(&format!("{url}?connect_timeout=2s")).unwrap();
        let error = runtime.block_on(locks.mutex("lazy").acquire()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        assert!(error.is_retryable() && error.lock().is_some(), "{url}: {error}");
        runtime.block_on(servers.start_again());
        let guard = runtime.block_on(locks.mutex("lazy").acquire()).unwrap();
        assert!(guard.is_valid(), "{url}");
        runtime.block_on(guard.release()).unwrap();
        runtime.block_on(locks.close()).unwrap();
        let error = runtime.block_on(locks.mutex("lazy").acquire()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{url}: {error}");
        servers.kill();
    }
}

#[test]
fn a_lazy_connection_reads_its_url_at_once() {
    for url in ["redis://", "redlock://a:1", "zk://h?ttl=1s", "etcd://h", "redis://h?tll=1s"] {
        assert_eq!(Locks::connect_lazy(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
    }
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

/// A server of each kind.
struct Servers {
    redis: RedisServer,
    masters: RedisFive,
    ensemble: ZooKeeper,
}

impl Servers {
    fn start() -> Self {
        one_thread().block_on(async {
            let (redis, masters, ensemble) =
                tokio::try_join!(RedisServer::start(), RedisFive::start(), ZooKeeper::start()).unwrap();
            Self { redis, masters, ensemble }
        })
    }

    fn urls(&self) -> [String; 3] {
        [self.redis.url(), self.masters.url(), self.ensemble.url()]
    }

    async fn close_connections(&self) {
        for redis in self.masters.servers().iter().chain([&self.redis]) {
            redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
        }
    }

    fn kill(&self) {
        self.redis.kill();
        self.masters.servers().iter().for_each(RedisServer::kill);
        self.ensemble.kill();
    }

    async fn start_again(&self) {
        self.redis.start_again().await.unwrap();
        for master in self.masters.servers() {
            master.start_again().await.unwrap();
        }
        self.ensemble.start_again().await.unwrap();
    }
}

/// Does the same on several stores at once.
fn on_each<T: Sync>(stores: impl IntoIterator<Item = T>, run: impl Fn(&T) + Sync) {
    let stores = Vec::from_iter(stores);
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| run(store));
        }
    });
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Polls a future outside any runtime; it must be ready.
fn poll_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits for a runtime"),
    }
}
