//! The way from Redis to ZooKeeper: a client on each rung, and names that move.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_testkit::history::Event;
use lock_testkit::{RedisServer, ZooKeeper};
use polylock::migrate::{self, Gate, MigrationConfig, Operator, Phase, Progress, Record, Rung};
use polylock::{Locks, Mutex, backend};
use rand::seq::SliceRandom;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::data::names::rung::{DUAL, DUAL_BESIDE_MOVE, MOVE, NEW, OLD, REDIS, SHADOW, ZK};
pub(crate) use crate::experiments::parts::side_by_side::CHALLENGE_EVERY;
use crate::experiments::parts::side_by_side::MeasuredClient;
use crate::experiments::prelude::*;
use crate::rig::measured_lock::{hold_once, hold_through};

/// The servers of both stores.
#[derive(Debug)]
pub(crate) struct Stores {
    redis: RedisServer,
    zk: ZooKeeper,
}

impl Stores {
    pub(crate) async fn start() -> Outcome<Self> {
        let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::builder().for_load(true).start());
        Ok(Self { redis: redis?, zk: zk? })
    }

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

fn locks(migration: migrate::Migration) -> Locks {
    backend::Locks::new(migration).into()
}

struct Fleet {
    namespace: &'static str,
    /// Of the locks on ZooKeeper.
    dir: &'static str,
    /// Of the locks on Redis.
    prefix: &'static str,
}

/// All rungs, and the plain backends.
pub(crate) struct Ladder {
    /// The processes on the rungs that may be mixed.
    pub(crate) rungs: Vec<Locks>,
    pub(crate) subjects: Vec<Subject>,
}

impl Ladder {
    pub(crate) async fn connect(bench: &Bench, stores: &Stores) -> Outcome<Self> {
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
        let subjects: [(_, &'static [_], _, _); 8] = [
            (REDIS, &[], &redis, &other_redis),
            (ZK, &[], &zk, &other_zk),
            (OLD, &[REDIS], old, &ahead),
            (SHADOW, &[OLD], shadow, &ahead),
            (DUAL, &[REDIS, ZK], &still, &still_behind),
            (DUAL_BESIDE_MOVE, &[REDIS, ZK], dual, &behind),
            (MOVE, &[ZK], moved, &behind),
            (NEW, &[ZK], &new, &other_new),
        ];
        let subject = |(name, stores, locks, rival)| Subject::new(bench, name, stores, locks, rival);
        let subjects = subjects.map(subject).into();
        Ok(Self { rungs, subjects })
    }
}

pub(crate) struct Subject {
    name: &'static str,
    /// What it is compared with: these together.
    stores: &'static [&'static str],
    client: MeasuredClient,
    floor: Latency,
}

impl Subject {
    fn new(
        bench: &Bench,
        name: &'static str,
        stores: &'static [&'static str],
        locks: &Locks,
        rival: &Locks,
    ) -> Self {
        let lock = bench.lock(&format!("migration-{}", name.replace(' ', "-")));
        Self { name, stores, client: MeasuredClient::new(locks, rival, bench, &lock), floor: Latency::new() }
    }

    fn measured(self) -> Measured {
        let row = |(metric, part)| {
            let row = Row::of(metric, self.client.times.both.quantile_us(part));
            if self.floor.len() == 0 { row } else { row.with_floor(self.floor.quantile_us(part)) }
        };
        let rows = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].into_iter().map(row).collect();
        Measured { events: self.client.into_events(), ..Measured::of(self.name, rows) }
    }
}

/// Has each subject acquire and release once in each round.
pub(crate) async fn climb(plan: Plan, mut subjects: Vec<Subject>) -> Outcome<Vec<Measured>> {
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    let mut took = vec![0; subjects.len()];
    for (span, counts) in [(plan.warm_up, false), (plan.uncontended, true)] {
        let (end, mut round) = (Instant::now() + span, 0);
        while Instant::now() < end && round < plan.most_operations {
            // The round after a challenge is not counted: background work of the challenge disturbs it.
            let challenged = round % CHALLENGE_EVERY == 0;
            if challenged {
                for subject in &mut subjects {
                    subject.client.challenge().await?;
                }
            }
            round += 1;
            order.shuffle(&mut rand::rng());
            for &at in &order {
                took[at] = subjects[at].client.operate(counts && !challenged).await?.took_ns();
            }
            if counts && !challenged {
                note(&mut subjects, &took);
            }
        }
    }
    Ok(subjects.into_iter().map(Subject::measured).collect())
}

/// Notes the floors of a round.
fn note(subjects: &mut [Subject], took: &[u64]) {
    let names: Vec<_> = subjects.iter().map(|subject| subject.name).collect();
    let of = |store: &&str| names.iter().position(|name| name == store).map_or(0, |at| took[at]);
    for subject in subjects.iter_mut().filter(|subject| !subject.stores.is_empty()) {
        subject.floor.record(subject.stores.iter().map(of).sum());
    }
}

/// Lets a client of each rung contend for names that move meanwhile.
pub(crate) async fn contend(bench: &Bench, rungs: &[Locks]) -> Outcome<Vec<Event>> {
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
        let wait = async {
            sleep(held).await;
            Ok(())
        };
        hold_through(&mutex, &mut log, wait).await?;
    }
    Ok(log.into_events())
}

/// Moves many names one after the other, then goes all the way back.
pub(crate) async fn move_and_return(
    bench: &Bench,
    count: usize,
    stores: &Stores,
    measured: &mut Measured,
) -> Outcome<()> {
    let names: Vec<String> = (0..count).map(|at| bench.lock(&format!("fleet-{at}"))).collect();
    let operator = stores.operator().await?;
    operator.set(Rung::Move, "*").await?;
    let fleet = stores.process(&MOVING, None).await?;
    let moving = tokio::spawn(move_all(fleet.clone(), names.clone()));
    let (last, move_all) = AbortOnDropHandle::new(moving).await??;
    let mut moves = Latency::new();
    last.iter().for_each(|hold| moves.record(hold.took_ns()));

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
    measured.rows.extend([
        Row::of("moving_p50", moves.quantile_us(0.5)),
        Row::of("moving_p99", moves.quantile_us(0.99)),
        Row::of("move_all", move_all.as_secs_f64()),
        Row::of("clean_all", (first + second).as_secs_f64()),
        Row::of("left_at_interrupt", left as f64),
        Row::of("left_after_clean", after as f64),
    ]);

    // Clients of the old store alone go on with larger tokens.
    for (at, (name, moved)) in names.iter().zip(&last).enumerate() {
        let mut log = EventLog::new(0, 0, name);
        log.hold(moved);
        if at % SAMPLED_EVERY == 0 {
            log.hold(&hold_once(&old.mutex(&**name)).await?);
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
        holds.push(hold_once(&fleet.mutex(name)).await?);
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
pub(crate) const MIXED_NAMES: usize = 30;
const MIXED_TURNS: usize = 3;
/// A lock that is held for more than 10 ms has a shadow.
const MIXED_HOLDS: [Duration; 3] =
    [Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(12)];
/// Of so many names one is acquired on the old store alone, after the way back.
const SAMPLED_EVERY: usize = 100;
/// How long sessions may take to see the way back.
const PATIENCE: Duration = Duration::from_secs(20);
