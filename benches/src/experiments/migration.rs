//! `migration`: what each rung of a migration from Redis to ZooKeeper costs, and what the moves cost.
//!
//! The scenario has servers of its own: the record of a migration, its tombstones and thousands of moved names are no company
//! for other measurements.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_testkit::history::Event;
use lock_testkit::{RedisServer, ZooKeeper, now_ns};
use polylock::migrate::{Gate, Migration, MigrationConfig, Operator, Phase, Progress, Record, Rung};
use polylock::{ErrorKind, Locks, Mutex, backend};
use rand::seq::SliceRandom;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::bench::{Bench, Measured, time};
use crate::data::events::{EventLog, GrantInfo, TimedHold, outcome};
use crate::data::failure::{Failure, Outcome};
use crate::data::latency::Latency;
use crate::data::names::rung::{DUAL, DUAL_BESIDE_MOVE, MIGRATE, MOVE, NEW, OLD, REDIS, SHADOW, ZK};
use crate::data::plan::Plan;
use crate::data::results::Row;
use crate::rig::url;

/// The settings, for the report.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        (
            "duration",
            format!(
                "{} for all subjects together, after {} of warm-up",
                time(plan.uncontended),
                time(plan.warm_up)
            ),
        ),
        ("servers", "one Redis server and one ZooKeeper server of its own, without fsync".into()),
        ("interleaving", "one operation of each subject in each round, in an order by chance".into()),
        (
            "sessions",
            "all subjects share one ZooKeeper session; each has a connection of its own to Redis".into(),
        ),
        (
            "floors",
            "old: redis; shadow: old; dual: redis and zk of the same round together; move and new: zk".into(),
        ),
        (
            "dual",
            "in a fleet of which no name has moved; beside move: in one whose other names have moved, so that tokens of \
             ZooKeeper are ahead of those of Redis, and each acquisition raises these by one more request"
                .into(),
        ),
        (
            "verdict",
            format!(
                "every {CHALLENGE_EVERY} rounds a client on another rung tries to acquire the lock while it is held; one client \
                 on each rung contend for {MIXED_NAMES} names, which move meanwhile"
            ),
        ),
        (
            "moves",
            format!(
                "{} names, one after the other; then the way back, which is interrupted once when half of them are left",
                plan.moved_names
            ),
        ),
    ]
}

/// Measures.
pub(super) async fn run(bench: &Bench) -> Outcome<Vec<Measured>> {
    let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::builder().for_load(true).start());
    let stores = Stores { redis: redis?, zk: zk? };
    let Ladder { rungs, subjects } = Ladder::connect(bench, &stores).await?;
    // On a worker thread of the runtime, as the tasks of a service.
    let mut measured = AbortOnDropHandle::new(tokio::spawn(climb(bench.plan, subjects))).await??;
    let mut whole = Measured { backend: MIGRATE, ..Measured::default() };
    whole.events = contend(bench, &rungs).await?;
    for locks in rungs {
        locks.close().await?;
    }
    move_and_return(bench, &stores, &mut whole).await?;
    measured.push(whole);
    Ok(measured)
}

/// The servers of both stores.
#[derive(Debug)]
struct Stores {
    redis: RedisServer,
    zk: ZooKeeper,
}

impl Stores {
    /// Locks whose keys begin with this.
    async fn redis(&self, prefix: &str) -> Outcome<Locks> {
        Ok(Locks::connect(&url::with_option(&self.redis.url(), "prefix", prefix)).await?)
    }

    /// Locks in this directory. All connections of the process share a session.
    async fn zk(&self, dir: &str) -> Outcome<Locks> {
        Ok(Locks::connect(&url::with_option(&self.zk.url(), "dir", dir)).await?)
    }

    /// A process of this fleet, on this rung or on those that the record says.
    async fn process(&self, fleet: &'static Fleet, rung: Option<Rung>) -> Outcome<Locks> {
        let config = MigrationConfig::new(fleet.namespace);
        let config = match rung {
            Some(rung) => config.rung(rung),
            None => config,
        };
        let (from, to) = (self.redis(fleet.prefix).await?, self.zk(fleet.dir).await?);
        Ok(locks(config.open(Arc::clone(from.backend()), Arc::clone(to.backend())).await?))
    }

    /// A process of another migration, which is finished.
    async fn sealed(&self) -> Outcome<Locks> {
        let to = self.zk(SEALED.dir).await?;
        let target =
            to.backend().migration_target().ok_or_else(|| Failure::new("locks cannot move to zk"))?;
        let mut record = Record::new(SEALED.namespace, "redis://gone", target.identity());
        record.phase = Phase::Sealed;
        record.set(Rung::New, "*");
        // The second process finds it.
        target.write_record(&record.to_bytes(), None).await?;
        // Its old store is not used any more.
        let from = Locks::connect_lazy(&url::with_option(&self.redis.url(), "prefix", SEALED.prefix))?;
        let open =
            MigrationConfig::new(SEALED.namespace).open(Arc::clone(from.backend()), Arc::clone(to.backend()));
        Ok(locks(open.await?))
    }

    async fn operator(&self) -> Outcome<Operator> {
        let (from, to) = (self.redis(MOVING.prefix).await?, self.zk(MOVING.dir).await?);
        Ok(Operator::connect(MOVING.namespace, Arc::clone(from.backend()), Arc::clone(to.backend())).await?)
    }
}

fn locks(migration: Migration) -> Locks {
    backend::Locks::new(migration).into()
}

/// A migration.
struct Fleet {
    namespace: &'static str,
    /// Of the locks on ZooKeeper.
    dir: &'static str,
    /// Of the locks on Redis.
    prefix: &'static str,
}

/// All rungs, and the plain backends.
struct Ladder {
    /// The processes on the rungs that may be mixed.
    rungs: Vec<Locks>,
    subjects: Vec<Subject>,
}

impl Ladder {
    async fn connect(bench: &Bench, stores: &Stores) -> Outcome<Self> {
        let mut rungs = Vec::new();
        for rung in MIXED {
            rungs.push(stores.process(&MOVING, Some(rung)).await?);
        }
        let [old, shadow, dual, moved] = &rungs[..] else { return Err(Failure::new("there are four rungs")) };
        let behind = stores.process(&MOVING, Some(Rung::Old)).await?;
        let ahead = stores.process(&MOVING, Some(Rung::Dual)).await?;
        let still = stores.process(&STILL, Some(Rung::Dual)).await?;
        let still_behind = stores.process(&STILL, Some(Rung::Old)).await?;
        let (redis, other_redis) = (stores.redis(PLAIN).await?, stores.redis(PLAIN).await?);
        let (zk, other_zk) = (stores.zk(PLAIN).await?, stores.zk(PLAIN).await?);
        let (new, other_new) = (stores.sealed().await?, stores.sealed().await?);
        let subjects = [
            (REDIS, &redis, &other_redis),
            (ZK, &zk, &other_zk),
            (OLD, old, &ahead),
            (SHADOW, shadow, &ahead),
            (DUAL, &still, &still_behind),
            (DUAL_BESIDE_MOVE, dual, &behind),
            (MOVE, moved, &behind),
            (NEW, &new, &other_new),
        ];
        let subjects = subjects.map(|(name, locks, rival)| Subject::new(bench, name, locks, rival)).into();
        Ok(Self { rungs, subjects })
    }
}

/// What is measured: a client, and a rival that challenges it now and then.
struct Subject {
    name: &'static str,
    mutex: Mutex,
    rival: Mutex,
    lock: String,
    holds: Vec<TimedHold>,
    logs: [EventLog; 2],
    times: Latency,
    floor: Latency,
}

impl Subject {
    fn new(bench: &Bench, name: &'static str, locks: &Locks, rival: &Locks) -> Self {
        let lock = bench.lock(&format!("migration-{}", name.replace(' ', "-")));
        Self {
            name,
            mutex: locks.mutex(&*lock),
            rival: rival.mutex(bench.lock_of(&lock, "rival")),
            logs: [EventLog::new(0, 0, &lock), EventLog::new(0, 1, &lock)],
            lock,
            holds: Vec::new(),
            times: Latency::new(),
            floor: Latency::new(),
        }
    }

    /// Acquires and releases once, and returns the time.
    async fn operate(&mut self) -> Outcome<u64> {
        let hold = hold(&self.mutex).await?;
        self.holds.push(hold);
        Ok(took(&hold))
    }

    /// Has the rival try to acquire the lock while the client holds it.
    async fn challenge(&mut self) -> Outcome<()> {
        let [ours, theirs] = &mut self.logs;
        ours.acquire_called();
        let guard = self.mutex.acquire().await?;
        ours.acquired(&guard);
        theirs.acquire_called();
        match self.rival.try_acquire().await {
            Ok(None) => theirs.refused(),
            // A client of the old store alone.
            Err(error) if error.kind() == ErrorKind::Moved => theirs.refused(),
            Err(error) => return Err(error.into()),
            Ok(Some(stolen)) => {
                theirs.acquired(&stolen);
                theirs.release_called();
                theirs.released(stolen.release().await?);
            }
        }
        ours.release_called();
        ours.released(guard.release().await?);
        Ok(())
    }

    fn measured(self) -> Measured {
        let row = |(metric, part)| {
            let row = Row::new(SCENARIO, self.name, metric, "us", self.times.quantile_us(part));
            if self.floor.len() == 0 { row } else { row.with_floor(self.floor.quantile_us(part)) }
        };
        let rows = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].into_iter().map(row).collect();
        let mut log = EventLog::new(0, 0, &self.lock);
        self.holds.iter().for_each(|hold| log.hold(hold));
        let mut events = log.into_events();
        events.extend(self.logs.into_iter().flat_map(EventLog::into_events));
        Measured { backend: self.name, rows, events, ..Measured::default() }
    }
}

/// Has each subject acquire and release once in each round.
async fn climb(plan: Plan, mut subjects: Vec<Subject>) -> Outcome<Vec<Measured>> {
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    let mut took = vec![0; subjects.len()];
    for (span, counts) in [(plan.warm_up, false), (plan.uncontended, true)] {
        let (end, mut round) = (Instant::now() + span, 0);
        while Instant::now() < end && round < plan.most_operations {
            // The round after a challenge is not counted: background work of the challenge disturbs it.
            let challenged = round % CHALLENGE_EVERY == 0;
            if challenged {
                for subject in &mut subjects {
                    subject.challenge().await?;
                }
            }
            round += 1;
            order.shuffle(&mut rand::rng());
            for &at in &order {
                took[at] = subjects[at].operate().await?;
            }
            if counts && !challenged {
                note(&mut subjects, &took);
            }
        }
    }
    Ok(subjects.into_iter().map(Subject::measured).collect())
}

/// Notes the times of a round.
fn note(subjects: &mut [Subject], took: &[u64]) {
    let of = |name| NAMES.iter().position(|other| *other == name).map_or(0, |at| took[at]);
    for (subject, &took) in subjects.iter_mut().zip(took) {
        subject.times.record(took);
        let floor: u64 = floors(subject.name).iter().map(|name| of(*name)).sum();
        if floor > 0 {
            subject.floor.record(floor);
        }
    }
}

/// What a rung is compared with.
fn floors(subject: &str) -> &'static [&'static str] {
    match subject {
        OLD => &[REDIS],
        SHADOW => &[OLD],
        DUAL | DUAL_BESIDE_MOVE => &[REDIS, ZK],
        MOVE | NEW => &[ZK],
        _ => &[],
    }
}

async fn hold(mutex: &Mutex) -> Outcome<TimedHold> {
    let called_ns = now_ns();
    let guard = mutex.acquire().await?;
    let (acquired_ns, grant) = (now_ns(), GrantInfo::of(&guard));
    let release_called_ns = now_ns();
    let released = outcome(guard.release().await?);
    let released_ns = now_ns();
    Ok(TimedHold { called_ns, acquired_ns, grant, release_called_ns, released_ns, released })
}

const fn took(hold: &TimedHold) -> u64 {
    hold.acquired_ns - hold.called_ns + hold.released_ns - hold.release_called_ns
}

/// Lets a client of each rung contend for names that move meanwhile.
async fn contend(bench: &Bench, rungs: &[Locks]) -> Outcome<Vec<Event>> {
    let mut events = Vec::new();
    for at in 0..MIXED_NAMES {
        let lock = bench.lock(&format!("mixed-{at}"));
        let (held, mut clients) = (MIXED_HOLDS[at % MIXED_HOLDS.len()], Vec::new());
        for (client, locks) in (0..).zip(rungs) {
            let mutex = locks.mutex(bench.lock_of(&lock, client));
            let log = EventLog::new(0, client, &lock);
            clients.push(AbortOnDropHandle::new(tokio::spawn(take_turns(mutex, log, held))));
        }
        for client in clients {
            events.extend(client.await??);
        }
    }
    Ok(events)
}

async fn take_turns(mutex: Mutex, mut log: EventLog, held: Duration) -> Outcome<Vec<Event>> {
    for _ in 0..MIXED_TURNS {
        log.acquire_called();
        let guard = mutex.acquire().await?;
        log.acquired(&guard);
        sleep(held).await;
        log.release_called();
        log.released(guard.release().await?);
    }
    Ok(log.into_events())
}

/// Moves many names one after the other, then goes all the way back.
async fn move_and_return(bench: &Bench, stores: &Stores, measured: &mut Measured) -> Outcome<()> {
    let count = bench.plan.moved_names;
    let names: Vec<String> = (0..count).map(|at| bench.lock(&format!("fleet-{at}"))).collect();
    let operator = stores.operator().await?;
    operator.set(Rung::Move, "*").await?;
    let fleet = stores.process(&MOVING, None).await?;
    let moving = tokio::spawn(move_all(fleet.clone(), names.clone()));
    let (last, move_all) = AbortOnDropHandle::new(moving).await??;
    let mut moves = Latency::new();
    last.iter().for_each(|hold| moves.record(took(hold)));

    let old = stores.redis(MOVING.prefix).await?;
    let before = tombstones(&old).await?;
    if before < count {
        return Err(Failure::new(format!("{before} of {count} names have moved")));
    }
    match operator.back(PATIENCE, |_| ()).await? {
        Gate::Passed(_) => {}
        blocked => return Err(Failure::new(format!("the way back: {blocked:?}"))),
    }
    let first = clean(&operator, before / 2).await?;
    let left = tombstones(&old).await?;
    let second = clean(&operator, 0).await?;
    let after = tombstones(&old).await?;
    if after > 0 {
        measured.complaints.push(format!("{after} tombstones are left after the way back"));
    }
    let row = |metric, unit, value| Row::new(SCENARIO, MIGRATE, metric, unit, value);
    measured.rows.extend([
        row("moving_p50", "us", moves.quantile_us(0.5)),
        row("moving_p99", "us", moves.quantile_us(0.99)),
        row("move_all", "s", move_all.as_secs_f64()),
        row("clean_all", "s", (first + second).as_secs_f64()),
        row("left_at_interrupt", "", left as f64),
        row("left_after_clean", "", after as f64),
    ]);

    // Clients of the old store alone go on with larger tokens.
    for (at, (name, moved)) in names.iter().zip(&last).enumerate() {
        let mut log = EventLog::new(0, 0, name);
        log.hold(moved);
        if at % SAMPLED_EVERY == 0 {
            log.hold(&hold(&old.mutex(&**name)).await?);
        }
        measured.events.extend(log.into_events());
    }
    operator.close().await?;
    fleet.close().await?;
    Ok(old.close().await?)
}

/// Moves each of these names once, and returns how long all took together.
async fn move_all(fleet: Locks, names: Vec<String>) -> Outcome<(Vec<TimedHold>, Duration)> {
    let (began, mut holds) = (Instant::now(), Vec::with_capacity(names.len()));
    for name in &names {
        holds.push(hold(&fleet.mutex(name)).await?);
    }
    // That they have moved is noted in the background.
    fleet.backend().settle().await;
    Ok((holds, began.elapsed()))
}

/// The number of tombstones on the old store.
async fn tombstones(old: &Locks) -> Outcome<usize> {
    let source =
        old.backend().migration_source().ok_or_else(|| Failure::new("locks cannot move from redis"))?;
    Ok(source.tombstones("").await?.len())
}

/// Removes tombstones until no more than these are left, and returns the time. Then it is dropped in the middle, or in its wait
/// for late requests.
async fn clean(operator: &Operator, most_left: usize) -> Outcome<Duration> {
    let (report, mut reported) = mpsc::unbounded_channel();
    let began = Instant::now();
    let on_progress = |progress| {
        if let Progress::Tombstones { left, .. } = progress {
            // Nobody listens once few enough are left.
            let _ = report.send(left);
        }
    };
    tokio::select! {
        biased;
        Some(()) = async { loop { if reported.recv().await? <= most_left { return Some(()) } } } => {}
        ended = operator.clean(None, on_progress) => match ended? {
            Gate::Passed(_) => {}
            blocked => return Err(Failure::new(format!("clean: {blocked:?}"))),
        },
    }
    Ok(began.elapsed())
}

/// In the order of the subjects.
const NAMES: [&str; 8] = [REDIS, ZK, OLD, SHADOW, DUAL, DUAL_BESIDE_MOVE, MOVE, NEW];

const SCENARIO: &str = "migration";
/// The fleet whose names move.
const MOVING: Fleet = Fleet { namespace: "moving", dir: "/moving", prefix: "moving:" };
/// A fleet on dual, before any of its names has moved.
const STILL: Fleet = Fleet { namespace: "still", dir: "/still", prefix: "still:" };
/// A fleet whose migration is finished.
const SEALED: Fleet = Fleet { namespace: "sealed", dir: "/sealed", prefix: "sealed:" };
/// The directory, or the prefix, of locks of one store alone.
const PLAIN: &str = "/plain";
/// The rungs of which every mixture excludes.
const MIXED: [Rung; 4] = [Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move];
const MIXED_NAMES: usize = 30;
const MIXED_TURNS: usize = 3;
/// A lock that is held for more than 10 ms has a shadow.
const MIXED_HOLDS: [Duration; 3] =
    [Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(12)];
const CHALLENGE_EVERY: u64 = 128;
/// Of so many names one is acquired on the old store alone, after the way back.
const SAMPLED_EVERY: usize = 100;
/// How long sessions may take to see the way back.
const PATIENCE: Duration = Duration::from_secs(20);
