//! The operator's steps on real servers: rungs, the way back, and the gate to `new`.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Backend;
use lock_core::{ErrorKind, Guard, Locks, Token};
use lock_migrate::{FinishTerms, Gate, MigrationConfig, Operator, Phase, Progress, Rung};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::{RedisServer, ZooKeeper};
use lock_zk::{Zk, ZkConfig};
use tokio::time::{Instant, sleep};

/// Far more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(30);
const TTL: &str = "2s";

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
        self.redis_as("").await
    }

    /// Connected with these credentials, as in `user:password@`.
    async fn redis_as(&self, credentials: &str) -> Arc<dyn Backend> {
        let url = self.redis.url().replace("redis://", &format!("redis://{credentials}"));
        let config = RedisConfig::from_url(&format!("{url}?ttl={TTL}")).unwrap();
        Arc::new(Redis::connect(config).await.unwrap())
    }

    async fn acl(&self, words: &[&str]) {
        let words = [&["ACL", "SETUSER"], words].concat();
        self.redis.command(&words).await.unwrap();
    }

    async fn zk(&self) -> Arc<dyn Backend> {
        let url = format!("{}?session_timeout=4s&session=private", self.zk.url());
        Arc::new(Zk::connect(ZkConfig::from_url(&url).unwrap()).await.unwrap())
    }

    async fn process(&self) -> Locks {
        self.open(MigrationConfig::new("shop")).await
    }

    async fn open(&self, config: MigrationConfig) -> Locks {
        Locks::new(config.open(self.redis().await, self.zk().await).await.unwrap())
    }

    async fn operator(&self) -> Operator {
        Operator::connect("shop", self.redis().await, self.zk().await).await.unwrap()
    }

    async fn value(&self, name: &str) -> Option<String> {
        let value = self.redis.command(&["GET", &format!("lock:{name}")]).await.unwrap();
        value.text().map(ToOwned::to_owned)
    }

    async fn is_moved(&self, name: &str) -> bool {
        self.value(name).await.is_some_and(|value| value.starts_with("polylock:moved"))
    }
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let guard = locks.mutex(name).try_acquire_for(PATIENCE).await.unwrap();
    guard.unwrap_or_else(|| panic!("{name} is busy"))
}

/// Waits until all sessions have seen the present record.
async fn until_followed(operator: &Operator, sessions: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = operator.status().await.unwrap();
        let follow = status.sessions.iter().filter_map(|session| session.member.as_ref());
        if follow.filter(|member| member.record == status.version).count() == sessions {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn passed(gate: Gate) -> lock_migrate::Record {
    match gate {
        Gate::Passed(record) => *record,
        blocked => panic!("{blocked:?}"),
    }
}

fn blocked(gate: Gate) -> String {
    match gate {
        Gate::Blocked(obstacles) => obstacles.iter().map(|obstacle| format!("{obstacle}\n")).collect(),
        passed => panic!("{passed:?}"),
    }
}

const fn silent(_: Progress) {}

#[tokio::test]
async fn processes_follow_the_rungs_by_name() {
    let servers = Servers::start().await;
    let (operator, locks) = (servers.operator().await, servers.process().await);
    let zk = Locks::from_dyn(servers.zk().await);
    let guard = hold(&locks, "reports/1").await;
    assert!(zk.inspect("reports/1").await.unwrap().holder().is_none(), "old");
    operator.set(Rung::Dual, "*").await.unwrap();
    operator.set(Rung::Move, "reports/*").await.unwrap();
    until_followed(&operator, 1).await;
    let status = operator.status().await.unwrap();
    let member = status.sessions[0].member.as_ref().unwrap();
    assert_eq!((member.rung, member.behind), (Rung::Dual, Some(Rung::Old)), "a guard is still on old");
    // The guard keeps its rung: the name is still busy for all, and free for all afterwards.
    assert!(locks.mutex("reports/1").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    hold(&locks, "reports/1").await.release().await.unwrap();
    hold(&locks, "orders/1").await.release().await.unwrap();
    assert!(servers.is_moved("reports/1").await);
    assert!(!servers.is_moved("orders/1").await);
    until_noted(&operator, 1).await;
    let status = operator.status().await.unwrap();
    assert_eq!(status.tombstones.unwrap().count, 1);
    assert_eq!((status.lost_tombstones.len(), status.stragglers.len()), (0, 0));
}

#[tokio::test]
async fn rules_that_the_new_store_cannot_keep_are_refused() {
    let servers = Servers::start().await;
    let operator = servers.operator().await;
    let names = |number: usize| format!("{number}/{}*", "x".repeat(300_000));
    let deadline = Instant::now() + PATIENCE;
    // On a busy machine, so much takes longer than the server may.
    let set = async |rung: Rung, names: &str| {
        loop {
            match operator.set(rung, names).await {
                Err(error) if error.is_retryable() && Instant::now() < deadline => {}
                set => return set,
            }
        }
    };
    for number in 0..3 {
        set(Rung::Dual, &names(number)).await.unwrap();
    }
    let error = set(Rung::Dual, &names(3)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::InvalidConfig, "refused_step"),
        "{}",
        error.message()
    );
    // Fewer may always be set.
    assert_eq!(set(Rung::Dual, &names(2)).await.unwrap().rules.len(), 3);
    assert_eq!(set(Rung::Shadow, "*").await.unwrap().rules.len(), 1);
    operator.close().await.unwrap();
}

async fn until_noted(operator: &Operator, names: usize) {
    let deadline = Instant::now() + PATIENCE;
    while operator.status().await.unwrap().moved != names {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_is_lost_or_left_behind_is_found() {
    let servers = Servers::start().await;
    let (operator, locks) = (servers.operator().await, servers.process().await);
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 1).await;
    for name in ["a", "b"] {
        hold(&locks, name).await.release().await.unwrap();
    }
    until_noted(&operator, 2).await;
    // By hand, and by an old binary.
    locks_settle(&locks).await;
    servers.redis.command(&["DEL", "lock:a"]).await.unwrap();
    let straggler = Locks::from_dyn(servers.redis().await);
    let _held = hold(&straggler, "c").await;
    servers.redis.command(&["SET", "lock:d", "somebody", "PX", "60000"]).await.unwrap();
    let status = operator.status().await.unwrap();
    assert_eq!(status.lost_tombstones, ["a"]);
    let found: Vec<_> = status.stragglers.iter().map(|straggler| &*straggler.lock).collect();
    assert_eq!(found, ["c", "d"]);
    assert!(status.stragglers[0].holder.contains(&std::process::id().to_string()));
    assert!(status.stragglers[1].holder.contains("another library"));
    let text: String = status.obstacles.iter().map(ToString::to_string).collect();
    assert!(text.contains("lost their tombstones") && text.contains("old store alone"), "{text}");
}

async fn locks_settle(locks: &Locks) {
    locks.backend().settle().await;
}

#[tokio::test]
async fn the_way_back_frees_the_names_for_clients_of_the_old_store() {
    let servers = Servers::start().await;
    let (operator, one, two) = (servers.operator().await, servers.process().await, servers.process().await);
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 2).await;
    let mut last = Vec::new();
    for name in (0..300).map(|at| format!("orders/{at}")) {
        let guard = hold(&one, &name).await;
        last.push((name, guard.token()));
        guard.release().await.unwrap();
    }
    let error = operator.clean(None, silent).await.unwrap_err();
    assert!(error.to_string().contains("has not begun"), "{error}");
    let record = passed(operator.back(PATIENCE, silent).await.unwrap());
    assert_eq!((record.phase, record.generation, record.highest()), (Phase::Returning, 2, Rung::Dual));
    let error = operator.set(Rung::Move, "*").await.unwrap_err();
    assert!(error.to_string().contains("way back"), "{error}");
    // Meanwhile names that have moved are excluded as before.
    let held = hold(&two, "orders/7").await;
    let tombstones_left = std::sync::Mutex::new(Vec::new());
    let (gate, ()) = tokio::join!(
        operator.clean(None, |progress| {
            if let Progress::Tombstones { left, .. } = progress {
                tombstones_left.lock().unwrap().push(left);
            }
        }),
        async {
            sleep(Duration::from_secs(2)).await;
            held.release().await.unwrap();
        }
    );
    assert_eq!(passed(gate.unwrap()).phase, Phase::Open);
    assert_eq!(tombstones_left.into_inner().unwrap().last(), Some(&0));
    let redis = Locks::from_dyn(servers.redis().await);
    for (name, token) in last {
        let guard = hold(&redis, &name).await;
        assert!(guard.token() > token, "{name}: {} after {token}", guard.token());
        guard.release().await.unwrap();
    }
    let status = operator.status().await.unwrap();
    assert_eq!((status.moved, status.tombstones.unwrap().count), (0, 0));
    // And up again.
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 2).await;
    hold(&two, "orders/7").await.release().await.unwrap();
    assert!(servers.is_moved("orders/7").await);
}

#[tokio::test]
async fn the_way_back_waits_for_sessions_that_have_not_seen_it() {
    let servers = Servers::start().await;
    let (operator, locks) = (servers.operator().await, servers.process().await);
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 1).await;
    hold(&locks, "a").await.release().await.unwrap();
    // A session of an unknown version of the library, which follows nothing.
    let stranger = zookeeper_client::Client::connector()
        .with_session_timeout(Duration::from_secs(4))
        .connect(&servers.zk.connect_string())
        .await
        .unwrap();
    let create = zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());
    stranger.create("/locks/!migration/members/stranger", b"{}", &create).await.unwrap();
    let reasons = blocked(operator.back(Duration::from_secs(6), silent).await.unwrap());
    assert!(reasons.contains("stranger") && !reasons.contains("pid"), "{reasons}");
    let reasons = blocked(operator.clean(None, silent).await.unwrap());
    assert!(reasons.contains("has not seen the way back"), "{reasons}");
    assert!(servers.is_moved("a").await);
    drop(stranger);
    passed(operator.back(PATIENCE, silent).await.unwrap());
    passed(operator.clean(None, silent).await.unwrap());
    assert!(!servers.is_moved("a").await);
}

#[tokio::test]
async fn a_process_that_is_pinned_to_move_blocks_the_end_of_the_way_back() {
    let servers = Servers::start().await;
    let operator = servers.operator().await;
    let pinned = servers.open(MigrationConfig::new("shop").rung(Rung::Move)).await;
    hold(&pinned, "a").await.release().await.unwrap();
    passed(operator.back(PATIENCE, silent).await.unwrap());
    // It writes no tombstone while the way back lasts.
    hold(&pinned, "b").await.release().await.unwrap();
    assert!(!servers.is_moved("b").await);
    let reasons = blocked(operator.clean(None, silent).await.unwrap());
    assert!(reasons.contains("pinned to move"), "{reasons}");
    assert!(!servers.is_moved("a").await);
    pinned.close().await.unwrap();
    drop(pinned);
    passed(operator.clean(None, silent).await.unwrap());
}

#[tokio::test]
async fn the_seal_needs_a_closed_store_and_ended_leases() {
    let servers = Servers::start().await;
    let (operator, locks) = (servers.operator().await, servers.process().await);
    let error = operator.set(Rung::New, "*").await.unwrap_err();
    assert!(error.to_string().contains("finish"), "{error}");
    let reasons = blocked(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(reasons.contains("some names are on old"), "{reasons}");
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 1).await;
    let gone = FinishTerms::new().source_is_gone();
    let reasons = blocked(operator.finish(&gone, silent).await.unwrap());
    assert!(reasons.contains("is not gone"), "{reasons}");

    hold(&locks, "moved").await.release().await.unwrap();
    let (r, z) = {
        let (redis, zk) = (Locks::from_dyn(servers.redis().await), Locks::from_dyn(servers.zk().await));
        let r = hold(&redis, "other").await;
        let z = hold(&zk, "another").await;
        (r.token(), z.token())
    };
    servers.redis.kill();
    let reasons = blocked(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(reasons.contains("--gone"), "{reasons}");
    let began = Instant::now();
    let record = passed(operator.finish(&gone.longest_ttl(Duration::from_secs(3)), silent).await.unwrap());
    assert!(began.elapsed() >= Duration::from_secs(3), "leases may still live");
    assert_eq!((record.phase, record.lowest()), (Phase::Sealed, Rung::New));
    assert!(record.floor > r.get().max(z.get()));
    // Without Redis, on the rung new: processes that run, and those that start.
    let pinned = MigrationConfig::new("shop").rung(Rung::New);
    let lazy = RedisConfig::from_url(&servers.redis.url()).unwrap().connect_lazy().unwrap();
    let started = pinned.open(Arc::clone(lazy.backend()), servers.zk().await).await.unwrap();
    let started = Locks::new(started);
    for locks in [&locks, &started] {
        for name in ["other", "another", "moved"] {
            let guard = hold(locks, name).await;
            assert!(guard.token().get() > record.floor);
            guard.release().await.unwrap();
        }
    }
    let error = operator.back(PATIENCE, silent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("sealed"), "{error}");
    let error = operator.set(Rung::Old, "*").await.unwrap_err();
    assert!(error.to_string().contains("sealed"), "{error}");
}

#[tokio::test]
async fn waiters_of_a_closed_store_go_on_with_the_new_one_after_the_seal() {
    let servers = Servers::start().await;
    for user in ["fleet", "operator"] {
        servers.acl(&[user, "on", &format!(">{user}"), "~*", "&*", "+@all"]).await;
    }
    let config = MigrationConfig::new("shop");
    let locks = config.open(servers.redis_as("fleet:fleet@").await, servers.zk().await).await.unwrap();
    let locks = Locks::new(locks);
    let from = servers.redis_as("operator:operator@").await;
    let operator = Operator::connect("shop", from, servers.zk().await).await.unwrap();
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 1).await;
    // A token that somebody raised on the old store, far beyond its clock.
    let ahead = locks.mutex("b").acquire().await.unwrap().token().get() + 6 * 3_600_000_000;
    servers
        .redis
        .command(&["ZADD", "polylock:tokens:{lock:ahead}", &ahead.to_string(), "last"])
        .await
        .unwrap();
    // An old binary that hangs, and what it holds.
    servers.redis.command(&["SET", "lock:a", "somebody", "PX", "12000"]).await.unwrap();
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { hold(&locks, "a").await.token() }
    });
    sleep(Duration::from_millis(300)).await;
    let reasons = blocked(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(reasons.contains("\"fleet\"") && reasons.contains("\"operator\""), "{reasons}");
    servers.acl(&["fleet", "resetkeys"]).await;
    servers.acl(&["default", "resetkeys", "%R~*"]).await;
    servers.acl(&["operator", "resetkeys", "%R~*"]).await;
    assert!(!waiter.is_finished());
    let began = Instant::now();
    let record = passed(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(began.elapsed() > Duration::from_secs(4), "the old binary may still work");
    let token = tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap();
    assert!(token.get() > record.floor && record.floor > ahead);
}

#[tokio::test]
async fn tokens_of_a_closed_store_that_cannot_be_read_or_surpassed_refuse_the_seal() {
    let servers = Servers::start().await;
    let (operator, locks) = (servers.operator().await, servers.process().await);
    hold(&locks, "a").await.release().await.unwrap();
    operator.set(Rung::Move, "*").await.unwrap();
    until_followed(&operator, 1).await;
    servers
        .redis
        .command(&["ZADD", "polylock:tokens:{lock:odd}", &i64::MAX.to_string(), "last"])
        .await
        .unwrap();
    servers.acl(&["default", "resetkeys", "%R~*"]).await;
    let error = operator.finish(&FinishTerms::new(), silent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(
        error.to_string().contains("no room") && error.to_string().contains("polylock:tokens"),
        "{error}"
    );
    servers.acl(&["default", "resetkeys", "%R~lock:*"]).await;
    let error = operator.finish(&FinishTerms::new(), silent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("%R~*"), "{error}");
    // With that key gone, it passes.
    servers.acl(&["default", "resetkeys", "~*"]).await;
    servers.redis.command(&["DEL", "polylock:tokens:{lock:odd}"]).await.unwrap();
    servers.acl(&["default", "resetkeys", "%R~*"]).await;
    passed(operator.finish(&FinishTerms::new(), silent).await.unwrap());
}

#[tokio::test]
async fn the_seal_without_the_old_store_is_above_what_processes_saw_whatever_the_operators_clock_says() {
    // Raised by hand, they are as far ahead of the operator's clock as if that were wrong.
    let ahead = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(6 * 3_600);
    for (rung, leave) in [(Rung::Old, false), (Rung::Dual, true)] {
        let servers = Servers::start().await;
        let (operator, locks) = (servers.operator().await, servers.process().await);
        operator.set(rung, "*").await.unwrap();
        until_followed(&operator, 1).await;
        let redis = Locks::from_dyn(servers.redis().await);
        let guard = hold(&redis, "a").await;
        guard.raise_token(Token::new(ahead().as_micros() as u64)).await.unwrap();
        guard.release().await.unwrap();
        let guard = hold(&locks, "a").await;
        let seen = guard.token();
        assert!(u128::from(seen.get()) > ahead().as_micros() - 60_000_000, "{rung}: {seen}");
        guard.release().await.unwrap();
        operator.set(Rung::Move, "*").await.unwrap();
        until_followed(&operator, 1).await;
        match leave {
            // Only the new store knows then.
            true => locks.close().await.unwrap(),
            false => until_registered(&operator, seen).await,
        }
        servers.redis.kill();
        let record = passed(operator.finish(&FinishTerms::new().source_is_gone(), silent).await.unwrap());
        assert!(record.floor > seen.get(), "{rung}: {} is not above {seen}", record.floor);
        if !leave {
            let guard = hold(&locks, "a").await;
            assert!(guard.token() > seen, "{rung}: {} after {seen}", guard.token());
            guard.release().await.unwrap();
        }
    }
}

/// Waits until the only process has registered that it saw a token as large as this.
async fn until_registered(operator: &Operator, token: Token) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = operator.brief_status().await.unwrap();
        if status.sessions[0].member.as_ref().unwrap().largest_token >= token.get() {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn tokens_that_are_more_than_a_day_ahead_are_refused() {
    let servers = Servers::start().await;
    let (operator, locks) = (servers.operator().await, servers.process().await);
    // As after many elections.
    let zk = Locks::from_dyn(servers.zk().await);
    let guard = hold(&zk, "a").await;
    let ahead = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(2 * 86_400);
    guard.raise_token(Token::new(ahead.as_micros() as u64)).await.unwrap();
    guard.release().await.unwrap();
    let findings = operator.preflight().await.unwrap();
    let warned =
        findings.iter().any(|finding| finding.to_string().contains("ahead of the old store's clock"));
    assert!(warned, "{findings:?}");
    for rung in [Rung::Dual, Rung::Move] {
        operator.set(rung, "*").await.unwrap();
        until_followed(&operator, 1).await;
        let error = locks.mutex("b").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.to_string().contains("set old"), "{error}");
        let obstacles = operator.status().await.unwrap().obstacles;
        assert!(obstacles.iter().any(|obstacle| obstacle.to_string().contains("set old")), "{obstacles:?}");
        assert!(!servers.is_moved("b").await);
    }
    // Nothing is left of it on either store.
    locks_settle(&locks).await;
    operator.set(Rung::Old, "*").await.unwrap();
    until_followed(&operator, 1).await;
    hold(&locks, "b").await.release().await.unwrap();
    hold(&zk, "b").await.release().await.unwrap();
    let report = Locks::from_dyn(servers.redis().await).doctor().await.unwrap();
    assert!(report.to_string().contains("take part in a migration"), "{report}");
}
