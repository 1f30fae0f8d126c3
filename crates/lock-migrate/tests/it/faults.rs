//! Faults of either store, on every rung, while processes contend: no two guards are valid at once, tokens grow, all go on
//! afterwards, and nothing is left but tombstones.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::migration::Tombstone;
use lock_core::{Backend, Error, ErrorKind, Guard, LockName, Locks, Released};
use lock_migrate::{Migration, MigrationConfig, Operator, Rung};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::history::{Event, EventKind, Mode, ReleaseOutcome};
use lock_testkit::proxy::{Direction, FaultProxy, Protocol, Then};
use lock_testkit::{History, RedisServer, Worker, ZooKeeper, check, now_ns};
use lock_zk::{Zk, ZkConfig};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const NAMESPACE: &str = "shop";
/// Of leases and of sessions.
const LEASE: Duration = Duration::from_secs(2);
/// Far more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happens to the connections of a store.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Down,
    Slow,
    BlackHole,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Old,
    New,
}

/// Rungs side by side, on one name.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    rungs: [Rung; 2],
    has_moved: bool,
}

const ROWS: [Row; 6] = [
    Row { name: "old", rungs: [Rung::Old, Rung::Old], has_moved: false },
    Row { name: "dual", rungs: [Rung::Dual, Rung::Dual], has_moved: false },
    Row { name: "old-dual", rungs: [Rung::Old, Rung::Dual], has_moved: false },
    Row { name: "move", rungs: [Rung::Move, Rung::Move], has_moved: false },
    Row { name: "moved", rungs: [Rung::Move, Rung::Move], has_moved: true },
    Row { name: "old-moved", rungs: [Rung::Dual, Rung::Move], has_moved: true },
];

impl Row {
    /// Whether a process of this rung gets the lock while the store of this side does not answer.
    fn goes_on(self, rung: Rung, cut: Side) -> bool {
        match cut {
            Side::New => rung == Rung::Old,
            Side::Old => rung == Rung::Move && self.has_moved,
        }
    }
}

struct Servers {
    redis: RedisServer,
    zk: ZooKeeper,
}

impl Servers {
    async fn start() -> Arc<Self> {
        let redis = RedisServer::builder().appendonly(true).start();
        let (redis, zk) = tokio::join!(redis, ZooKeeper::start());
        Arc::new(Self { redis: redis.unwrap(), zk: zk.unwrap() })
    }

    fn proxy(&self, side: Side) -> FaultProxy {
        let proxy = match side {
            Side::Old => FaultProxy::start(self.redis.addr(), Protocol::Redis),
            Side::New => FaultProxy::start(self.zk.addr(), Protocol::ZooKeeper),
        };
        proxy.unwrap()
    }

    /// A process with connections of its own.
    async fn process(&self, rung: Option<Rung>) -> Process {
        let proxies = [self.proxy(Side::Old), self.proxy(Side::New)];
        let config = MigrationConfig::new(NAMESPACE);
        let config = rung.into_iter().fold(config, MigrationConfig::rung);
        let migration = Arc::new(migration(config, proxies[0].addr(), proxies[1].addr()).await);
        let locks = Locks::from_dyn(Arc::clone(&migration) as Arc<dyn Backend>);
        Process { migration, locks, proxies }
    }

    /// A client of the old store that knows nothing of the migration.
    async fn old_client(&self) -> Locks {
        Locks::new(redis(self.redis.addr()).await)
    }

    async fn operator(&self) -> Operator {
        let (redis, zk) = (redis(self.redis.addr()).await, zk(self.zk.addr()).await);
        Operator::connect(NAMESPACE, Arc::new(redis) as Arc<dyn Backend>, Arc::new(zk)).await.unwrap()
    }

    async fn has_moved(&self, name: &str) -> bool {
        let value = self.redis.command(&["GET", &format!("lock:{name}")]).await.unwrap();
        value.text().is_some_and(Tombstone::is_one)
    }

    /// What is left of a lock on both stores, but its tombstone and its last token.
    async fn left(&self, name: &str) -> Vec<String> {
        let keys = self.redis.command(&["KEYS", &format!("*:{name}*")]).await.unwrap();
        let keys = keys.array().unwrap_or_default().iter().filter_map(|key| key.text().map(str::to_owned));
        let mut left: Vec<_> = keys.filter(|key| !key.starts_with("polylock:tokens")).collect();
        if self.has_moved(name).await {
            left.retain(|key| *key != format!("lock:{name}"));
        }
        let dump = self.zk.four_letter("dump").await.unwrap();
        let nodes = dump.lines().map(str::trim).filter(|line| line.starts_with('/'));
        left.extend(nodes.filter(|node| node.contains(&format!("/{name}/"))).map(str::to_owned));
        left
    }

    async fn is_clean(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.left(name).await;
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{name} left {left:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn redis(addr: SocketAddr) -> Redis {
    let url = format!("redis://{addr}?ttl={}s", LEASE.as_secs());
    let config = RedisConfig::from_url(&url).unwrap();
    at_last(|| Redis::connect(config.clone())).await
}

async fn zk(addr: SocketAddr) -> Zk {
    let url = format!("zk://{addr}?session=private&session_timeout={}s", LEASE.as_secs());
    let config = ZkConfig::from_url(&url).unwrap();
    at_last(|| Zk::connect(config.clone())).await
}

/// On a busy machine a session may end before it is used.
async fn at_last<T, F: Future<Output = Result<T, Error>>>(connect: impl Fn() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect().await {
            Ok(connected) => return connected,
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < deadline => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn migration(config: MigrationConfig, old: SocketAddr, new: SocketAddr) -> Migration {
    let (old, new): (Arc<dyn Backend>, Arc<dyn Backend>) =
        (Arc::new(redis(old).await), Arc::new(zk(new).await));
    at_last(|| config.clone().open(Arc::clone(&old), Arc::clone(&new))).await
}

struct Process {
    migration: Arc<Migration>,
    locks: Locks,
    proxies: [FaultProxy; 2],
}

impl Process {
    fn begin(&self, fault: Fault, side: Side) {
        let proxy = &self.proxies[side as usize];
        let both = [Direction::ToServer, Direction::ToClient];
        match fault {
            // The server itself is killed.
            Fault::Down => {}
            Fault::Slow => both.into_iter().for_each(|to| proxy.delay(to, Duration::from_millis(250))),
            Fault::BlackHole => both.into_iter().for_each(|to| proxy.black_hole(to, true)),
            Fault::Reset => proxy.rst(),
        }
    }

    async fn follows(&self, rung: Rung) {
        let follows = async {
            while self.migration.rung(&LockName::new("a").unwrap()) != rung {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, follows).await.expect("it follows the record");
    }

    fn heal(&self) {
        self.proxies.iter().for_each(FaultProxy::heal);
    }
}

/// Processes that contend for one name, and what happened.
struct Contention {
    name: String,
    events: Arc<Mutex<Vec<Event>>>,
    /// By process.
    grants: Vec<Arc<AtomicU32>>,
    errors: Arc<Mutex<Vec<Error>>>,
    is_over: Arc<AtomicBool>,
    running: JoinSet<()>,
}

impl Contention {
    fn begin(name: &str, processes: &[Process]) -> Self {
        let mut this = Self {
            name: name.to_owned(),
            events: Arc::default(),
            grants: processes.iter().map(|_| Arc::default()).collect(),
            errors: Arc::default(),
            is_over: Arc::default(),
            running: JoinSet::new(),
        };
        for (number, process) in processes.iter().enumerate() {
            let contender = Contender {
                name: this.name.clone(),
                number: u32::try_from(number).unwrap(),
                events: Arc::clone(&this.events),
                grants: Arc::clone(&this.grants[number]),
                errors: Arc::clone(&this.errors),
                is_over: Arc::clone(&this.is_over),
            };
            this.running.spawn(contender.run(process.locks.clone()));
        }
        this
    }

    fn granted(&self) -> Vec<u32> {
        self.grants.iter().map(|grants| grants.load(Ordering::SeqCst)).collect()
    }

    /// Waits until each of these processes has got the lock again, so many times.
    async fn each_gets_it(&self, when: &str) {
        let before = self.granted();
        let all = async {
            while self.granted().iter().zip(&before).any(|(now, before)| *now < before + 2) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let errors = || self.errors.lock().unwrap().iter().map(Error::to_string).collect::<BTreeSet<_>>();
        let all = timeout(PATIENCE, all).await;
        assert!(all.is_ok(), "{} {when}: {before:?} {:?} {:#?}", self.name, self.granted(), errors());
    }

    /// Ends the contention, and judges what happened.
    async fn end(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        while let Some(ended) = timeout(PATIENCE, self.running.join_next()).await.expect("a process ends") {
            ended.unwrap();
        }
        let report = check(&History::new(self.events.lock().unwrap().drain(..)));
        let verdict = report.verdict();
        assert!(report.holds >= 4, "{} was hardly held", self.name);
        assert!(verdict.l2 && verdict.l3 && verdict.token_order, "{}: {report}", self.name);
        for error in self.errors.lock().unwrap().iter() {
            let is_expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Moved);
            assert!(is_expected, "{error:?}");
            assert_eq!(error.lock().map(|lock| lock.as_str()), Some(&*self.name), "{error}");
        }
    }
}

struct Contender {
    name: String,
    number: u32,
    events: Arc<Mutex<Vec<Event>>>,
    grants: Arc<AtomicU32>,
    errors: Arc<Mutex<Vec<Error>>>,
    is_over: Arc<AtomicBool>,
}

impl Contender {
    async fn run(self, locks: Locks) {
        let mutex = locks.mutex(&self.name);
        while !self.is_over.load(Ordering::SeqCst) {
            self.note(EventKind::AcquireCalled);
            match mutex.try_acquire_for(Duration::from_secs(1)).await {
                Ok(Some(guard)) => self.hold(guard).await,
                Ok(None) => self.note(EventKind::AcquireFailed),
                Err(error) => {
                    self.note(EventKind::AcquireUnknown);
                    self.errors.lock().unwrap().push(error);
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn hold(&self, guard: Guard) {
        let until = |guard: &Guard| u64::try_from(guard.valid_until().since_boot().as_nanos()).unwrap();
        self.grants.fetch_add(1, Ordering::SeqCst);
        let (token, valid_until_ns) = (Some(guard.token().get()), Some(until(&guard)));
        self.note(EventKind::Acquired { token, valid_until_ns, mode: Mode::Exclusive });
        let mut end = sleep(Duration::from_millis(2));
        if self.grants.load(Ordering::SeqCst).is_multiple_of(16) {
            // Now and then longer than a lease: it is renewed.
            end = sleep(LEASE + LEASE / 4);
        }
        tokio::select! {
            _ = guard.lost() => self.note(EventKind::Lost),
            () = end => self.note(EventKind::Extended { valid_until_ns: until(&guard) }),
        }
        self.note(EventKind::ReleaseCalled);
        let outcome = match guard.release().await {
            Ok(Released::Released) => ReleaseOutcome::Released,
            Ok(_) => ReleaseOutcome::AlreadyLost,
            Err(_) => ReleaseOutcome::Unknown,
        };
        self.note(EventKind::Released { outcome });
    }

    fn note(&self, kind: EventKind) {
        let lock = self.name.clone();
        let event = Event { process: self.number, client: 0, lock, at_ns: now_ns(), kind };
        self.events.lock().unwrap().push(event);
    }
}

async fn endure(servers: Arc<Servers>, row: Row, side: Side, fault: Fault) {
    let name = format!("{}-{side:?}-{fault:?}", row.name).to_lowercase();
    let mut processes = Vec::new();
    for rung in row.rungs {
        processes.push(servers.process(Some(rung)).await);
    }
    if row.has_moved {
        let mover = servers.process(Some(Rung::Move)).await;
        hold(&mover.locks, &name).await.release().await.unwrap();
    }
    let contention = Contention::begin(&name, &processes);
    // Names that move do so in the middle of the fault.
    if row.rungs != [Rung::Move; 2] || row.has_moved {
        contention.each_gets_it("before").await;
    }
    processes.iter().for_each(|process| process.begin(fault, side));
    sleep(LEASE).await;
    // A lease that was held when it began has ended by now.
    if matches!(fault, Fault::BlackHole) {
        goes_on_or_waits(&contention, row, side).await;
    } else {
        sleep(LEASE).await;
    }
    processes.iter().for_each(Process::heal);
    contention.each_gets_it("after").await;
    contention.end().await;
    assert_eq!(servers.has_moved(&name).await, row.rungs.contains(&Rung::Move), "{name}");
    servers.is_clean(&name).await;
}

/// While one store does not answer, exactly those get the lock that need the other one alone.
async fn goes_on_or_waits(contention: &Contention, row: Row, cut: Side) {
    let goes_on = row.rungs.map(|rung| row.goes_on(rung, cut));
    let before = contention.granted();
    if goes_on == [true; 2] {
        return contention.each_gets_it("without the other store").await;
    }
    sleep(LEASE).await;
    for ((goes_on, before), after) in goes_on.into_iter().zip(before).zip(contention.granted()) {
        // One that goes on may wait for the other one, which has one of both locks.
        assert!(goes_on || before == after, "{}: {before} {after}", contention.name);
    }
}

async fn all_rows_endure(fault: Fault) {
    let servers = Servers::start().await;
    let mut running = JoinSet::new();
    for row in ROWS {
        for side in [Side::Old, Side::New] {
            running.spawn(endure(Arc::clone(&servers), row, side, fault));
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole() {
    all_rows_endure(Fault::BlackHole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: ten seconds of contention"]
async fn a_slow_store() {
    all_rows_endure(Fault::Slow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: ten seconds of contention"]
async fn connections_that_are_reset() {
    all_rows_endure(Fault::Reset).await;
}

/// A server that is killed and comes back, with its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: many seconds of contention"]
async fn a_store_that_is_down() {
    for side in [Side::Old, Side::New] {
        let servers = Servers::start().await;
        let mut running = JoinSet::new();
        for row in ROWS {
            running.spawn(endure(Arc::clone(&servers), row, side, Fault::Down));
        }
        sleep(Duration::from_secs(2)).await;
        match side {
            Side::Old => servers.redis.kill(),
            Side::New => servers.zk.kill(),
        }
        sleep(LEASE).await;
        match side {
            Side::Old => servers.redis.start_again().await.unwrap(),
            Side::New => servers.zk.start_again().await.unwrap(),
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    }
}

/// A holder of both that is cut off from one store knows that it lost when the next client has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_from_one_store() {
    let servers = Servers::start().await;
    for (cut, next) in [(Side::Old, Rung::Old), (Side::Old, Rung::Dual), (Side::New, Rung::Dual)] {
        let name = format!("cut-{cut:?}-{next}").to_lowercase();
        let (holder, next) = (servers.process(Some(Rung::Dual)).await, servers.process(Some(next)).await);
        let guard = hold(&holder.locks, &name).await;
        holder.begin(Fault::BlackHole, cut);
        let next = hold(&next.locks, &name).await;
        assert!(!guard.is_valid(), "two guards of {name} are valid");
        assert!(next.token() > guard.token());
        holder.heal();
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert!(next.is_valid(), "the late release of {name} freed the next holder");
        next.release().await.unwrap();
        servers.is_clean(&name).await;
    }
}

/// The rung changes while guards are held and waited for; one process cannot see that for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rung_changes_under_contention() {
    let servers = Servers::start().await;
    let operator = servers.operator().await;
    operator.set(Rung::Old, "*").await.unwrap();
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(servers.process(None).await);
    }
    let contention = Contention::begin("a", &processes);
    contention.each_gets_it("at first").await;
    for rung in [Rung::Dual, Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move, Rung::Dual] {
        operator.set(rung, "*").await.unwrap();
        join_all(processes.iter().map(|process| process.follows(rung))).await;
        contention.each_gets_it(rung.name()).await;
    }
    contention.end().await;
    assert!(servers.has_moved("a").await);

    // One process is cut off from the record: it stays on the old store, and meets the tombstone there.
    operator.set(Rung::Old, "*").await.unwrap();
    let contention = Contention::begin("b", &processes);
    contention.each_gets_it("on the old store").await;
    processes[0].begin(Fault::BlackHole, Side::New);
    operator.set(Rung::Dual, "*").await.unwrap();
    join_all(processes[1..].iter().map(|process| process.follows(Rung::Dual))).await;
    contention.each_gets_it("cut off, beside dual").await;
    operator.set(Rung::Move, "*").await.unwrap();
    let moved = async {
        while !servers.has_moved("b").await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, moved).await.expect("it moves");
    sleep(LEASE).await;
    let before = contention.granted()[0];
    sleep(LEASE / 2).await;
    assert_eq!(contention.granted()[0], before, "it holds a lock that has moved");
    processes[0].heal();
    processes[0].follows(Rung::Move).await;
    contention.each_gets_it("after").await;
    contention.end().await;
    for name in ["a", "b"] {
        servers.is_clean(name).await;
    }
}

/// A mover is killed after each request to either store, its answer unseen: between any two steps of a move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mover_is_killed_at_every_step() {
    let servers = Servers::start().await;
    // So that the base is raised in one of them at most.
    let warm_up = servers.process(Some(Rung::Move)).await;
    hold(&warm_up.locks, "warm-up").await.release().await.unwrap();
    let mut killed = Vec::new();
    for side in [Side::Old, Side::New] {
        // Until a move has no more steps.
        for first in (1..).step_by(AT_ONCE) {
            let steps = (first..).take(AT_ONCE).map(|step| kill_at(&servers, side, step));
            let steps = join_all(steps).await;
            let was_last = steps.iter().any(|killed| !killed.at_the_step);
            killed.extend(steps);
            if was_last {
                break;
            }
        }
    }
    let at_a_step = killed.iter().filter(|killed| killed.at_the_step).count();
    let moved = killed.iter().filter(|killed| killed.at_the_step && killed.has_moved).count();
    println!("{at_a_step} killed at a step, {moved} of them after the tombstone: {killed:#?}");
    // Before the tombstone and after it.
    assert!(at_a_step > 6 && moved > 0 && moved < at_a_step, "{killed:#?}");
}

/// How many movers are killed at the same time.
const AT_ONCE: usize = 4;

#[derive(Debug)]
#[allow(dead_code, reason = "it is printed")]
struct Killed {
    side: Side,
    step: u64,
    at_the_step: bool,
    has_moved: bool,
}

async fn kill_at(servers: &Servers, side: Side, step: u64) -> Killed {
    let name = format!("kill-{side:?}-{step:02}").to_lowercase();
    let (old_client, mover) = (servers.old_client().await, servers.process(Some(Rung::Move)).await);
    let guard = hold(&old_client, &name).await;
    let mut last = guard.token();
    guard.release().await.unwrap();

    let proxies = [servers.proxy(Side::Old), servers.proxy(Side::New)];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["faults::a_child_that_moves_a_lock", "--exact", "--nocapture"]);
    command.env(CHILD, format!("{} {} {name}", proxies[0].addr(), proxies[1].addr()));
    let child = Worker::spawn(&command).unwrap();
    assert_eq!(child.recv_deadline(PATIENCE).await.unwrap(), json!("ready"));
    let proxy = &proxies[side as usize];
    proxy.swallow_reply(step, Then::Hang);
    child.send(&json!("go")).await.unwrap();
    let fires = async {
        while proxy.fired() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let at_the_step = tokio::select! {
        () = fires => true,
        held = child.recv_deadline(PATIENCE) => {
            last = lock_core::Token::new(held.unwrap().as_u64().unwrap());
            assert!(servers.has_moved(&name).await, "the guard was handed out before the tombstone");
            false
        }
    };
    child.kill();

    // Nobody gets it on one store while it is held on the other one.
    let has_moved = servers.has_moved(&name).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match old_client.mutex(&*name).try_acquire().await {
            Ok(Some(guard)) => {
                assert!(!servers.has_moved(&name).await);
                assert!(mover.locks.mutex(&*name).try_acquire().await.unwrap().is_none(), "two hold {name}");
                assert!(guard.token() > last, "{name}: {} after {last}", guard.token());
                last = guard.token();
                guard.release().await.unwrap();
                break;
            }
            Ok(None) => assert!(Instant::now() < deadline, "{name} stays busy"),
            Err(error) if error.kind() == ErrorKind::Moved => break,
            Err(error) => panic!("{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
    let guard = hold(&mover.locks, &name).await;
    assert!(guard.token() > last, "{name}: {} after {last}", guard.token());
    let error = old_client.mutex(&*name).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Moved);
    guard.release().await.unwrap();
    servers.is_clean(&name).await;
    Killed { side, step, at_the_step, has_moved }
}

/// The arguments of a child: the addresses of both stores, and the lock.
const CHILD: &str = "LOCK_MIGRATE_CHILD";

/// No test, but the process that [`a_mover_is_killed_at_every_step`] starts.
#[tokio::test]
async fn a_child_that_moves_a_lock() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let [old, new, name] = arguments.split(' ').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
    let config = MigrationConfig::new(NAMESPACE).rung(Rung::Move);
    let locks = Locks::new(migration(config, old.parse().unwrap(), new.parse().unwrap()).await);
    // At the start of a line, where the parent looks for messages.
    println!("\n{}", json!("ready"));
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
    let guard = at_last(|| async { locks.mutex(name).acquire().await }).await;
    println!("{}", guard.token().get());
    sleep(PATIENCE).await;
    drop(guard);
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let guard = locks.mutex(name).try_acquire_for(PATIENCE).await;
    guard.unwrap_or_else(|error| panic!("{error}")).unwrap_or_else(|| panic!("{name} is busy"))
}
