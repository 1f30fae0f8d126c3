//! Faults of either store, on every rung, while processes contend: no two guards are valid at once, tokens grow, all go on
//! afterwards, and nothing is left but tombstones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{Backend, LockName, Locks, Released};
use lock_migrate::{Migration, MigrationConfig, Rung};
use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
use lock_testkit::{RedisServer, give_back, take, until};
use tokio::time::sleep;

use crate::common::{Servers, at_last, pass, redis, zk};
use crate::contention::Contention;

/// Time: of leases and of sessions, which the faults outlast.
const LEASE: Duration = Duration::from_secs(2);

/// What happens to a store, or to the connections of a process to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    /// The server is killed, and comes back with its data.
    Down,
    Slow,
    BlackHole,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Old,
    New,
}

const SIDES: [Side; 2] = [Side::Old, Side::New];

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

impl Servers {
    pub(crate) fn proxy(&self, side: Side) -> FaultProxy {
        let proxy = match side {
            Side::Old => FaultProxy::start(self.redis.addr(), Protocol::Redis),
            Side::New => FaultProxy::start(self.zk.addr(), Protocol::ZooKeeper),
        };
        proxy.unwrap()
    }

    fn kill(&self, side: Side) {
        match side {
            Side::Old => self.redis.kill(),
            Side::New => self.zk.kill(),
        }
    }

    async fn start_again(&self, side: Side) {
        match side {
            Side::Old => self.redis.start_again().await.unwrap(),
            Side::New => self.zk.start_again().await.unwrap(),
        }
    }

    /// Waits until nothing is left of a lock on both stores but its tombstone and its last token.
    pub(crate) async fn is_clean(&self, name: &str) {
        until(&format!("nothing is left of {name}"), async || {
            let keys = self.redis.call(&["KEYS", &format!("*:{name}*")]).await;
            let mut keys = keys.array().unwrap_or_default().iter().filter_map(|key| key.text());
            let has_moved = self.is_moved(name).await;
            let is_kept =
                |key: &str| key.starts_with("polylock:tokens") || has_moved && key == format!("lock:{name}");
            let dump = self.zk.four_letter("dump").await.unwrap();
            let mut nodes = dump.lines().map(str::trim).filter(|line| line.starts_with('/'));
            keys.all(is_kept) && !nodes.any(|node| node.contains(&format!("/{name}/")))
        })
        .await;
    }
}

/// A process on a rung, or on those of the record, with connections of its own.
pub(crate) struct Process {
    migration: Arc<Migration>,
    pub(crate) locks: Locks,
    proxies: [FaultProxy; 2],
}

pub(crate) async fn migration(rung: Option<Rung>, [old, new]: [SocketAddr; 2]) -> Migration {
    let config = rung.into_iter().fold(MigrationConfig::new("shop"), MigrationConfig::rung);
    let (old, new) = (redis(old, LEASE.as_secs()).await, zk(new, LEASE.as_secs()).await);
    at_last(async || config.clone().open(Arc::clone(&old), Arc::clone(&new)).await).await
}

impl Process {
    pub(crate) async fn on(servers: &Servers, rung: impl Into<Option<Rung>>) -> Self {
        let proxies = SIDES.map(|side| servers.proxy(side));
        let migration = Arc::new(migration(rung.into(), proxies.each_ref().map(FaultProxy::addr)).await);
        let locks = Locks::from_dyn(Arc::clone(&migration) as Arc<dyn Backend>);
        Self { migration, locks, proxies }
    }

    fn begin(&self, fault: Fault, side: Side) {
        let proxy = &self.proxies[side as usize];
        let both = [Direction::ToServer, Direction::ToClient];
        match fault {
            Fault::Down => {}
            // Time: an answer takes half a second.
            Fault::Slow => both.into_iter().for_each(|to| proxy.delay(to, Duration::from_millis(250))),
            Fault::BlackHole => both.into_iter().for_each(|to| proxy.black_hole(to, true)),
            Fault::Reset => proxy.rst(),
        }
    }

    fn heal(&self) {
        self.proxies.iter().for_each(FaultProxy::heal);
    }

    async fn follows(&self, rung: Rung) {
        let name = LockName::new("a").unwrap();
        until("it follows the record", async || self.migration.rung(&name) == rung).await;
    }
}

/// A row under a fault of one side.
struct Stand {
    row: Row,
    side: Side,
    processes: [Process; 2],
    contention: Contention,
}

impl Stand {
    async fn begin(servers: &Servers, row: Row, side: Side, fault: Fault) -> Self {
        let name = format!("{}-{side:?}-{fault:?}", row.name).to_lowercase();
        let [one, two] = row.rungs;
        let processes = [Process::on(servers, one).await, Process::on(servers, two).await];
        if row.has_moved {
            pass(&Process::on(servers, Rung::Move).await.locks, &name).await;
        }
        let contention = Contention::begin(&name, LEASE, processes.iter().map(|process| &process.locks));
        // A name that moves does so in the middle of the fault.
        if row.rungs != [Rung::Move; 2] || row.has_moved {
            contention.each_gets_it("before").await;
        }
        processes.iter().for_each(|process| process.begin(fault, side));
        Self { row, side, processes, contention }
    }

    /// While one store does not answer, exactly those get the lock that need the other one alone.
    async fn goes_on_or_waits(&self) {
        let goes_on = self.row.rungs.map(|rung| self.row.goes_on(rung, self.side));
        if goes_on == [true; 2] {
            return self.contention.each_gets_it("without the other store").await;
        }
        let before = self.contention.granted();
        // Time: the others get nothing meanwhile.
        sleep(LEASE).await;
        for ((goes_on, before), after) in goes_on.into_iter().zip(before).zip(self.contention.granted()) {
            // One that goes on may wait for the other one, which has one of both locks.
            assert!(goes_on || before == after, "{}: {before} {after}", self.contention.name());
        }
    }
}

async fn all_rows_endure(fault: Fault, sides: &[Side]) {
    let servers = Servers::with(RedisServer::builder().appendonly(true)).await;
    let rows = ROWS.iter().flat_map(|row| sides.iter().map(|side| (*row, *side)));
    let stands = join_all(rows.map(|(row, side)| Stand::begin(&servers, row, side, fault))).await;
    if fault == Fault::Down {
        sides.iter().for_each(|side| servers.kill(*side));
    }
    // Time: a lease that was held when it began has ended.
    sleep(LEASE).await;
    match fault {
        Fault::BlackHole => _ = join_all(stands.iter().map(Stand::goes_on_or_waits)).await,
        Fault::Down => _ = join_all(sides.iter().map(|side| servers.start_again(*side))).await,
        // Time: so does one that was acquired since.
        Fault::Slow | Fault::Reset => sleep(LEASE).await,
    }
    stands.iter().flat_map(|stand| &stand.processes).for_each(Process::heal);
    join_all(stands.iter().map(|stand| stand.contention.each_gets_it("after"))).await;
    for Stand { row, contention, processes, .. } in stands {
        let name = contention.name().to_owned();
        contention.end().await;
        assert_eq!(servers.is_moved(&name).await, row.rungs.contains(&Rung::Move), "{name}");
        servers.is_clean(&name).await;
        drop(processes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole() {
    all_rows_endure(Fault::BlackHole, &SIDES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: ten seconds of contention"]
async fn a_slow_store() {
    all_rows_endure(Fault::Slow, &SIDES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: ten seconds of contention"]
async fn connections_that_are_reset() {
    all_rows_endure(Fault::Reset, &SIDES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: many seconds of contention"]
async fn a_store_that_is_down() {
    for side in SIDES {
        all_rows_endure(Fault::Down, &[side]).await;
    }
}

/// A holder of both that is cut off from one store knows that it lost when the next client has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_from_one_store() {
    let servers = Servers::start().await;
    for (cut, next) in [(Side::Old, Rung::Old), (Side::Old, Rung::Dual), (Side::New, Rung::Dual)] {
        let name = format!("cut-{cut:?}-{next}").to_lowercase();
        let (holder, next) = (Process::on(&servers, Rung::Dual).await, Process::on(&servers, next).await);
        let guard = take(&holder.locks, &name).await;
        holder.begin(Fault::BlackHole, cut);
        let next = take(&next.locks, &name).await;
        assert!(!guard.is_valid(), "two guards of {name} are valid");
        assert!(next.token() > guard.token());
        holder.heal();
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert!(next.is_valid(), "the late release of {name} freed the next holder");
        give_back(next).await;
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
        processes.push(Process::on(&servers, None).await);
    }
    let contend = |name| Contention::begin(name, LEASE, processes.iter().map(|process| &process.locks));
    let follow = async |processes: &[Process], rung| {
        operator.set(rung, "*").await.unwrap();
        join_all(processes.iter().map(|process| process.follows(rung))).await;
    };
    let contention = contend("a");
    contention.each_gets_it("at first").await;
    for rung in [Rung::Dual, Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move, Rung::Dual] {
        follow(&processes, rung).await;
        contention.each_gets_it(rung.name()).await;
    }
    contention.end().await;
    assert!(servers.is_moved("a").await);

    // One process is cut off from the record: it stays on the old store, and meets the tombstone there.
    operator.set(Rung::Old, "*").await.unwrap();
    let contention = contend("b");
    contention.each_gets_it("on the old store").await;
    processes[0].begin(Fault::BlackHole, Side::New);
    follow(&processes[1..], Rung::Dual).await;
    contention.each_gets_it("cut off, beside dual").await;
    operator.set(Rung::Move, "*").await.unwrap();
    until("it moves", async || servers.is_moved("b").await).await;
    // Time: what it held has ended.
    sleep(LEASE).await;
    let before = contention.granted()[0];
    // Time: it gets nothing more.
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
