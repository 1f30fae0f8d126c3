//! Locks on every rung, on real servers: who excludes whom, and with which tokens.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, ErrorKind, Guard, GuardState, Locks, LossReason, Token};
use lock_migrate::{Migration, MigrationConfig, Rung};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
use lock_testkit::{RedisServer, ZooKeeper};
use lock_zk::{Zk, ZkConfig};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

/// The rungs of which every mixture excludes.
const MIXED: [Rung; 4] = [Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move];
/// Far more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(30);

struct Servers {
    redis: RedisServer,
    zk: ZooKeeper,
}

impl Servers {
    async fn start() -> Self {
        let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::start());
        Self { redis: redis.unwrap(), zk: zk.unwrap() }
    }

    async fn redis(&self) -> Arc<dyn Backend> {
        let config = RedisConfig::from_url(&format!("{}?ttl=5s", self.redis.url())).unwrap();
        Arc::new(Redis::connect(config).await.unwrap())
    }

    async fn zk(&self) -> Arc<dyn Backend> {
        let url = format!("{}?session_timeout=4s&session=private", self.zk.url());
        Arc::new(Zk::connect(ZkConfig::from_url(&url).unwrap()).await.unwrap())
    }

    /// A process on this rung.
    async fn on(&self, rung: Rung) -> Locks {
        self.open(MigrationConfig::new("shop").rung(rung)).await
    }

    async fn open(&self, config: MigrationConfig) -> Locks {
        Locks::new(self.migration(config).await)
    }

    async fn migration(&self, config: MigrationConfig) -> Migration {
        config.open(self.redis().await, self.zk().await).await.unwrap()
    }

    async fn value(&self, name: &str) -> Option<String> {
        let value = self.redis.command(&["GET", &format!("lock:{name}")]).await.unwrap();
        value.text().map(ToOwned::to_owned)
    }
}

/// How many scripts the server has run.
async fn scripts_run(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let stats = stats.text().expect("it is text").to_owned();
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}

/// Long enough for half a dozen looks of an observer that polls.
const IDLE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_stores_notify_an_observer_on_every_rung() {
    let servers = Servers::start().await;
    let process = async |rung: Rung| {
        // Renewed rarely.
        let redis = RedisConfig::from_url(&format!("{}?ttl=60s", servers.redis.url())).unwrap();
        let redis = Arc::new(Redis::connect(redis).await.unwrap());
        let config = MigrationConfig::new("shop").rung(rung);
        Locks::new(config.open(redis, servers.zk().await).await.unwrap())
    };
    for rung in MIXED {
        let (watching, leading, name) = (process(rung).await, process(rung).await, format!("on {rung}"));
        let mut leaders = watching.election(&name).observe();
        assert!(timeout(PATIENCE, leaders.next()).await.unwrap().unwrap().unwrap().is_none());
        for _ in 0..2 {
            let leadership = leading.election(&name).campaign("one").await.unwrap();
            let leader = timeout(PATIENCE, leaders.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(leader.unwrap().label(), Some("one"));
            // The token grows as the leader gets the locks of both stores.
            while let Ok(Some(leader)) = timeout(IDLE / 3, leaders.next()).await {
                assert_eq!(leader.unwrap().unwrap().label(), Some("one"));
            }
            let before = scripts_run(&servers.redis).await;
            assert!(timeout(IDLE, leaders.next()).await.is_err(), "nothing has changed");
            let looks = scripts_run(&servers.redis).await - before;
            assert!(looks < 5, "{rung}: it looked {looks} times in {IDLE:?}");
            leadership.resign().await.unwrap();
            let leader = timeout(PATIENCE, leaders.next()).await.unwrap().unwrap().unwrap();
            assert!(leader.is_none(), "{rung}: {leader:?}");
        }
        watching.close().await.unwrap();
        leading.close().await.unwrap();
    }
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let guard = locks.mutex(name).try_acquire_for(PATIENCE).await.unwrap();
    guard.unwrap_or_else(|| panic!("{name} is busy"))
}

#[tokio::test]
async fn an_acquisition_that_is_not_polled_keeps_the_lock_of_no_store() {
    let servers = Servers::start().await;
    for rung in [Rung::Dual, Rung::Move] {
        let (one, two, old) = (servers.on(rung).await, servers.on(rung).await, servers.on(Rung::Old).await);
        let name = rung.name();
        let busy = hold(&old, name).await;
        let mutex = one.mutex(name);
        let mut acquiring = Box::pin(mutex.acquire());
        while old.inspect(name).await.unwrap().waiters == 0 {
            let waits = timeout(Duration::from_millis(50), &mut acquiring).await;
            assert!(waits.is_err(), "{rung}: it waits for the old store");
        }
        busy.release().await.unwrap();
        hold(&two, name).await.release().await.unwrap();
        let guard = timeout(PATIENCE, acquiring).await.expect("it starts over").unwrap();
        assert!(guard.is_valid());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn every_mixture_excludes() {
    let servers = Servers::start().await;
    for first in MIXED {
        for second in MIXED {
            let (one, two) = (servers.on(first).await, servers.on(second).await);
            let name = format!("{first}-{second}");
            for time in ["before", "after"] {
                let guard = hold(&one, &name).await;
                let other = two.mutex(&*name).try_acquire().await.unwrap();
                assert!(other.is_none(), "{second} beside {first}, {time} anything moved");
                let waiting = two.mutex(&*name);
                let (next, released) = tokio::join!(waiting.try_acquire_for(PATIENCE), async {
                    sleep(Duration::from_millis(100)).await;
                    let token = guard.token();
                    guard.release().await.unwrap();
                    token
                });
                let next =
                    next.unwrap().unwrap_or_else(|| panic!("{second} waits for {first} in vain, {time}"));
                assert!(
                    next.token() > released,
                    "{second} after {first}, {time}: {} {released}",
                    next.token()
                );
                next.release().await.unwrap();
            }
            let moved = servers.value(&name).await.is_some_and(|value| value.starts_with("polylock:moved"));
            assert_eq!(moved, [first, second].contains(&Rung::Move), "{name}");
            one.close().await.unwrap();
            two.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn tokens_increase_through_a_walk_over_the_rungs() {
    let servers = Servers::start().await;
    let mut processes = Vec::new();
    for rung in MIXED {
        processes.push((rung, servers.on(rung).await));
    }
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut last = std::collections::HashMap::new();
    for step in 0..200 {
        let name = format!("walk-{}", rng.random_range(0..20));
        // Names move late, so that all mixtures come before.
        let choice = if step < 120 { &processes[..3] } else { &processes[..] };
        let (rung, locks) = choice.choose(&mut rng).unwrap();
        let guard = hold(locks, &name).await;
        let before = last.insert(name.clone(), guard.token());
        assert!(
            before.is_none_or(|before| guard.token() > before),
            "{name} on {rung}: {before:?} {}",
            guard.token()
        );
        guard.release().await.unwrap();
    }
}

/// The token base of the locks on ZooKeeper, and how often it was written.
async fn base(servers: &Servers) -> Option<i32> {
    let client = zookeeper_client::Client::connect(&servers.zk.connect_string()).await.unwrap();
    client.check_stat("/locks/!token-base").await.unwrap().map(|stat| stat.version)
}

/// How far the tokens of ZooKeeper are ahead of the clock of Redis.
async fn lead(zk: &Locks) -> Duration {
    let guard = hold(zk, "lead").await;
    let (token, clock) = (guard.token().get(), std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64);
    guard.release().await.unwrap();
    Duration::from_micros(token.saturating_sub(clock))
}

#[tokio::test]
async fn the_lead_of_the_new_tokens_is_bounded_through_modes_elections_and_raises() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let servers = Servers::start().await;
    servers.zk.skip_epochs(30).await.unwrap();
    let mover = servers.on(Rung::Move).await;
    for _ in 0..2 {
        hold(&mover, "m").await.release().await.unwrap();
    }
    mover.close().await.unwrap();
    for _ in 0..3 {
        let (dual, zk) = (servers.on(Rung::Dual).await, Locks::from_dyn(servers.zk().await));
        let written = base(&servers).await;
        for round in 0..8 {
            dual.rw("d").read().await.unwrap().release().await.unwrap();
            dual.semaphore("s", 3).acquire().await.unwrap().release().await.unwrap();
            dual.rw("d").write().await.unwrap().release().await.unwrap();
            assert!(lead(&zk).await < HOUR + HOUR / 10, "round {round}: {:?} ahead", lead(&zk).await);
        }
        let writes = base(&servers).await.unwrap() - written.unwrap();
        assert!(writes <= 1, "the base was written {writes} times");
        dual.close().await.unwrap();
        zk.close().await.unwrap();
        servers.zk.skip_epochs(1).await.unwrap();
    }
    // What a sharer raises by hand comes on top once.
    let (dual, zk) = (servers.on(Rung::Dual).await, Locks::from_dyn(servers.zk().await));
    let reader = dual.rw("d").read().await.unwrap();
    reader.raise_token(Token::new(reader.token().get() + 2 * HOUR.as_micros() as u64)).await.unwrap();
    for _ in 0..4 {
        dual.rw("d").read().await.unwrap().release().await.unwrap();
    }
    reader.release().await.unwrap();
    let lead = lead(&zk).await;
    assert!(HOUR < lead && lead < 4 * HOUR, "{lead:?} ahead");
}

#[tokio::test]
async fn a_guard_of_both_ends_with_either_and_gives_the_other_one_back() {
    let servers = Servers::start().await;
    let locks = servers.on(Rung::Dual).await;
    let (redis, zk) = (Locks::from_dyn(servers.redis().await), Locks::from_dyn(servers.zk().await));
    for lost in [&redis, &zk] {
        let guard = hold(&locks, "a").await;
        assert!(redis.mutex("a").try_acquire().await.unwrap().is_none());
        assert!(zk.mutex("a").try_acquire().await.unwrap().is_none());
        assert!(lost.break_lock("a").await.unwrap());
        let reason = timeout(PATIENCE, guard.lost()).await.expect("it is lost");
        assert_eq!(reason, LossReason::Removed);
        // Though the guard is still there.
        hold(&redis, "a").await.release().await.unwrap();
        hold(&zk, "a").await.release().await.unwrap();
        assert!(matches!(guard.state(), GuardState::Lost(_)));
    }
}

#[tokio::test]
async fn names_that_have_moved_go_on_when_redis_is_down() {
    let servers = Servers::start().await;
    let locks = servers.on(Rung::Move).await;
    hold(&locks, "moved").await.release().await.unwrap();
    servers.redis.kill();
    hold(&locks, "moved").await.release().await.unwrap();
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.redis.start_again().await.unwrap();
    // It has no data any more. With the next connection that is known, and the tombstone is written again.
    hold(&locks, "other").await.release().await.unwrap();
    let guard = hold(&locks, "moved").await;
    assert!(servers.value("moved").await.is_some_and(|value| value.starts_with("polylock:moved")));
    guard.release().await.unwrap();
}

/// The old store has failed to say to which migration it belongs, and is asked again a second later.
#[tokio::test]
async fn a_name_that_has_moved_is_unavailable_until_the_process_follows_the_record() {
    let servers = Servers::start().await;
    hold(&servers.on(Rung::Move).await, "moved").await.release().await.unwrap();
    let proxy = FaultProxy::start(servers.redis.addr(), Protocol::Redis).unwrap();
    let old = RedisConfig::from_url(&format!("redis://{}?ttl=5s", proxy.addr())).unwrap();
    let old: Arc<dyn Backend> = Arc::new(Redis::connect(old).await.unwrap());
    let zk = servers.zk().await;
    let opening = MigrationConfig::new("shop").rung(Rung::Old).open(old, zk);
    // It asks once more over another connection.
    let fails_twice = async {
        for fired in 0..2 {
            proxy.cut_when(|request| String::from_utf8_lossy(request).contains("polylock:migration:"));
            while proxy.fired() == fired {
                sleep(Duration::from_micros(100)).await;
            }
        }
    };
    let (migration, ()) = tokio::join!(opening, fails_twice);
    let locks = Locks::new(migration.unwrap());
    let error = locks.mutex("moved").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    let follows = async {
        while let Err(error) = locks.mutex("moved").try_acquire().await {
            assert!(error.is_retryable(), "{error}");
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, follows).await.expect("it asks again");
}

#[tokio::test]
async fn the_rung_new_needs_the_seal() {
    let servers = Servers::start().await;
    let config = MigrationConfig::new("shop").rung(Rung::New);
    let error = config.open(servers.redis().await, servers.zk().await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("seal"), "{error}");
}

#[tokio::test]
async fn a_tombstone_of_another_migration_is_an_error() {
    let servers = Servers::start().await;
    let locks = servers.on(Rung::Move).await;
    hold(&locks, "a").await.release().await.unwrap();
    // As a migration would have written it whose prefix is a part of the name.
    let text = servers.value("a").await.unwrap();
    let other = text.replace("namespace=shop", "namespace=store");
    servers.redis.command(&["SET", "lock:b", &other, "PX", "86400000"]).await.unwrap();
    let error = locks.mutex("b").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("\"shop\"") && error.to_string().contains("\"store\""), "{error}");
}

#[tokio::test]
async fn bad_options_are_refused() {
    let servers = Servers::start().await;
    let (redis, zk) = (servers.redis().await, servers.zk().await);
    let open = async |config: MigrationConfig, from: &Arc<dyn Backend>, to: &Arc<dyn Backend>| {
        config.open(Arc::clone(from), Arc::clone(to)).await.unwrap_err()
    };
    let short = MigrationConfig::new("shop").tombstone_life(Duration::from_secs(3_600));
    for (error, part) in [
        (open(MigrationConfig::new(""), &redis, &zk).await, "namespace"),
        (open(short, &redis, &zk).await, "at least a day"),
        (open(MigrationConfig::new("shop"), &zk, &redis).await, "cannot move from zk"),
        (open(MigrationConfig::new("shop"), &zk, &zk).await, "both stores are zk"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_lock_that_is_held_for_a_while_has_a_shadow() {
    let servers = Servers::start().await;
    let migration = Arc::new(servers.migration(MigrationConfig::new("shop").rung(Rung::Shadow)).await);
    let locks = Locks::from_dyn(Arc::clone(&migration) as Arc<dyn Backend>);
    let zk = Locks::from_dyn(servers.zk().await);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for round in 1..3 {
        let guard = hold(&locks, "a").await;
        while migration.shadow().granted < round {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", migration.shadow());
            sleep(Duration::from_millis(1)).await;
        }
        assert!(zk.mutex(".shadow/a").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        // As the next holder needs it: what releases late ends in the background.
        hold(&zk, ".shadow/a").await.release().await.unwrap();
    }
    let report = migration.shadow();
    assert_eq!((report.tried, report.double_grants, report.failed), (2, 0, 0));
}

/// A process on the rung `shadow`, with its own connection to ZooKeeper or one through a proxy.
async fn shadowing(servers: &Servers, proxy: Option<&FaultProxy>) -> (Arc<Migration>, Locks) {
    let redis = RedisConfig::from_url(&format!("{}?ttl=10s", servers.redis.url())).unwrap();
    let address = proxy.map_or_else(|| servers.zk.addr(), FaultProxy::addr);
    let zk = ZkConfig::from_url(&format!("zk://{address}?session_timeout=20s&session=private")).unwrap();
    let (redis, zk) = (Redis::connect(redis).await.unwrap(), Zk::connect(zk).await.unwrap());
    let config = MigrationConfig::new("shop").rung(Rung::Shadow);
    let migration = Arc::new(config.open(Arc::new(redis), Arc::new(zk)).await.unwrap());
    let locks = Locks::from_dyn(Arc::clone(&migration) as Arc<dyn Backend>);
    (migration, locks)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_lock_that_is_granted_twice_is_counted_and_a_crash_is_not() {
    let servers = Servers::start().await;
    let (first, second) = (shadowing(&servers, None).await, shadowing(&servers, None).await);
    let doubles = || first.0.shadow().double_grants + second.0.shadow().double_grants;
    // As a holder leaves it that crashed, whose key has ended: nobody answers for its session.
    let left = hold(&Locks::from_dyn(servers.zk().await), ".shadow/crashed").await;
    let guard = hold(&second.1, "crashed").await;
    timeout(PATIENCE, left.revoke_requested()).await.expect("the shadow is asked for");
    sleep(Duration::from_millis(200)).await;
    assert_eq!(doubles(), 0);
    guard.release().await.unwrap();

    let guard = hold(&first.1, "doubled").await;
    until("the shadow of the first", || first.0.shadow().granted == 1).await;
    // As a failover does that forgets it.
    servers.redis.command(&["DEL", "lock:doubled"]).await.unwrap();
    let other = hold(&second.1, "doubled").await;
    until("the first one finds it", || doubles() == 1).await;
    drop((guard, other));
}

#[tokio::test]
async fn a_shadow_ends_with_its_guard_while_zookeeper_is_silent() {
    let servers = Servers::start().await;
    let proxy = FaultProxy::start(servers.zk.addr(), Protocol::ZooKeeper).unwrap();
    let (migration, locks) = shadowing(&servers, Some(&proxy)).await;
    hold(&locks, "warm").await.release().await.unwrap();
    proxy.black_hole(Direction::ToClient, true);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 1..=20 {
        let guard = hold(&locks, &format!("a-{round}")).await;
        until("a shadow begins", || migration.shadow().tried == round).await;
        guard.release().await.unwrap();
    }
    until("the shadows end", || tasks() < before + 10).await;
    assert!(migration.shadow().failed == 0, "by themselves, after a while");
}
