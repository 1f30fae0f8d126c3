//! `migration`: what each rung of a migration from Redis to ZooKeeper costs, and what the moves cost; and claim 12, which judges it.
//!
//! The scenario has servers of its own: the record of a migration, its tombstones and thousands of moved names are no company
//! for other measurements.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_testkit::history::Event;
use lock_testkit::{RedisServer, ZooKeeper};
use polylock::migrate::{self, Gate, MigrationConfig, Operator, Phase, Progress, Record, Rung};
use polylock::{Locks, Mutex, backend};
use rand::seq::SliceRandom;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::bench::{Bench, Measured, time};
use super::claim::{About, Claim, Judgement, Measuring};
use super::side_by_side::MeasuredClient;
use crate::data::names::rung::{DUAL, DUAL_BESIDE_MOVE, MIGRATE, MOVE, NEW, OLD, REDIS, SHADOW, ZK};
use crate::data::results::labels::quantity;
use crate::data::{
    EventLog, Failure, Figure, Figures, Latency, Outcome, Picture, Plan, Row, ScenarioName, TimedHold,
    Verdict,
};
use crate::rig::measured_lock::hold_once;
use crate::rig::url;

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

struct Subject {
    name: &'static str,
    client: MeasuredClient,
    floor: Latency,
}

impl Subject {
    fn new(bench: &Bench, name: &'static str, locks: &Locks, rival: &Locks) -> Self {
        let lock = bench.lock(&format!("migration-{}", name.replace(' ', "-")));
        Self { name, client: MeasuredClient::new(locks, rival, bench, &lock), floor: Latency::new() }
    }

    fn measured(self) -> Measured {
        let row = |(metric, part)| {
            let row = Row::new(SCENARIO, self.name, metric, "us", self.client.times.both.quantile_us(part));
            if self.floor.len() == 0 { row } else { row.with_floor(self.floor.quantile_us(part)) }
        };
        let rows = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].into_iter().map(row).collect();
        Measured { backend: self.name, rows, events: self.client.into_events(), ..Measured::default() }
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
    let of = |name| NAMES.iter().position(|other| *other == name).map_or(0, |at| took[at]);
    for subject in subjects {
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

/// Claim 12: moving from Redis to ZooKeeper.
#[derive(Debug)]
pub(super) struct Migration;

#[async_trait(?Send)]
impl Claim for Migration {
    fn about(&self) -> About {
        About {
            id: 12,
            says: "A running fleet can move from Redis locks to ZooKeeper without a moment of double locking.",
            how: "The scenario `migration`: one client acquires and releases a free lock on each rung, in turn with plain redis and \
                  plain zk: dual in a fleet of which no name has moved, and once more in one whose other names have; move for a \
                  name that has moved before. Clients on other rungs challenge each while it holds the lock. Clients on old, shadow, dual and move contend for names that move meanwhile. A fleet moves many names one after \
                  the other, and goes all the way back; then clients of Redis alone acquire some of them. The histories of all \
                  are checked for overlapping holds, and for fencing tokens that were smaller than an earlier one.",
            rule: "Does not hold when two holds overlap anywhere, or a fencing token is smaller than an earlier one. Holds when also \
                   the median of every rung is at most what its stores take, with a margin: old 1.05 times redis, \
                   shadow 1.05 times old, dual 1.15 times redis and zk together, move of a moved name and new 1.03 times zk. \
                   Otherwise it depends on the rung. Dual beside moved names does not decide: tokens of ZooKeeper are ahead of \
                   those of Redis then, and each acquisition raises those, which takes one more request.",
            needs: &[ScenarioName::Migration],
            in_quick: false,
        }
    }

    async fn measure(&self, run: &mut Measuring<'_>) {
        for subject in [REDIS, ZK, DUAL_BESIDE_MOVE].into_iter().chain(RUNGS.map(|rung| rung.name)) {
            for metric in [P50, "p99"] {
                add(run, subject, metric);
            }
        }
        for subject in SUBJECTS {
            add(run, subject, OVERLAPS);
            add(run, subject, TOKEN_ERRORS);
        }
        for metric in MOVES {
            add(run, MIGRATE, metric);
        }
        let [metric, steps] = [P50.to_owned(), "Acquire + release on each rung, median".to_owned()];
        run.draw(Picture::Steps {
            title: steps,
            metric,
            steps: RUNGS.map(|rung| rung.name.to_owned()).to_vec(),
            lines: [REDIS, ZK, BOTH].map(str::to_owned).to_vec(),
        });
    }

    fn judge(&self, figures: &Figures) -> Outcome<Judgement> {
        let (mut dear, mut texts) = (Vec::new(), Vec::new());
        for Limit { name, most, of } in RUNGS {
            let (median, ratio) = (figures.get(name, P50)?, figures.get(name, RATIO)?);
            let short = name.strip_prefix("migrate ").unwrap_or(name);
            texts.push(format!("{short} takes {}, {ratio:.2} times {of}", quantity(median, "us")));
            if ratio > most {
                dear.push(short);
            }
        }
        let [move_all, clean_all] = [figures.get(MIGRATE, MOVES[0])?, figures.get(MIGRATE, MOVES[1])?];
        texts.push(format!("all names moved in {move_all:.1} s, and back in {clean_all:.1} s"));
        let faults = faults(figures)?;
        let (verdict, first) = match (&faults[..], &dear[..]) {
            ([], []) => (Verdict::Holds, "no overlap and no smaller token".to_owned()),
            ([], dear) => {
                let dear = dear.join(", ");
                (
                    Verdict::DependsOn(format!("the rung: {dear}")),
                    "no overlap and no smaller token".to_owned(),
                )
            }
            (faults, _) => (Verdict::DoesNotHold, faults.join(", ")),
        };
        texts.insert(0, first);
        Ok(Judgement::new(verdict, texts.join("; ")))
    }

    fn broken_promise(&self, figures: &Figures) -> Option<String> {
        faults(figures).ok().filter(|faults| !faults.is_empty()).map(|faults| faults.join(", "))
    }
}

/// Adds a number of a row of the scenario, and what its rung costs against its stores.
fn add(run: &mut Measuring<'_>, subject: &str, metric: &str) {
    let found = |row: &&Row| row.scenario == SCENARIO && row.backend == subject && row.metric == metric;
    let Some(row) = run.rows.rows.iter().rev().find(found).cloned() else {
        return run.leave_out(&format!("{metric} of {subject}"), "`migration` did not measure it");
    };
    run.add(Figure::new(subject, metric, &row.unit, row.value));
    if let (P50, Some(ratio)) = (metric, row.ratio) {
        run.add(Figure::new(subject, RATIO, "", ratio));
    }
    if let (P50, DUAL, Some(both)) = (metric, subject, row.floor) {
        run.add(Figure::new(BOTH, P50, &row.unit, both));
    }
}

/// Overlaps and smaller tokens, in words.
fn faults(figures: &Figures) -> Outcome<Vec<String>> {
    let mut faults = Vec::new();
    for subject in SUBJECTS {
        for (metric, what) in [(OVERLAPS, "overlapping holds"), (TOKEN_ERRORS, "smaller or equal tokens")] {
            let count = figures.get(subject, metric)?;
            if count > 0.0 {
                faults.push(format!("{count:.0} {what} of {subject}"));
            }
        }
    }
    Ok(faults)
}

/// What a rung may cost.
#[derive(Clone, Copy)]
struct Limit {
    name: &'static str,
    /// How many times the median of its stores.
    most: f64,
    of: &'static str,
}

const RUNGS: [Limit; 5] = [
    Limit { name: OLD, most: 1.05, of: "redis" },
    Limit { name: SHADOW, most: 1.05, of: "old" },
    Limit { name: DUAL, most: 1.15, of: "both stores" },
    Limit { name: MOVE, most: 1.03, of: "zk" },
    Limit { name: NEW, most: 1.03, of: "zk" },
];
/// The histories that count: those of the rungs, and that of the whole way.
const SUBJECTS: [&str; 7] = [OLD, SHADOW, DUAL, DUAL_BESIDE_MOVE, MOVE, NEW, MIGRATE];
const MOVES: [&str; 3] = ["move_all", "clean_all", "left_after_clean"];
const BOTH: &str = "redis + zk";
const P50: &str = "p50";
const RATIO: &str = "ratio";
const OVERLAPS: &str = "overlaps";
const TOKEN_ERRORS: &str = "token_errors";
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict when the rungs cost this much more or less than they may, with so many overlaps and smaller tokens.
    fn judged(over: f64, [overlaps, tokens]: [f64; 2]) -> (Verdict, bool) {
        let mut figures: Vec<_> = MOVES.map(|metric| Figure::new(MIGRATE, metric, "s", 9.0)).to_vec();
        for subject in SUBJECTS {
            let of = |count| if subject == MIGRATE { count } else { 0.0 };
            figures.push(Figure::new(subject, OVERLAPS, "", of(overlaps)));
            figures.push(Figure::new(subject, TOKEN_ERRORS, "", of(tokens)));
        }
        for Limit { name, most, .. } in RUNGS {
            let ratio = if name == DUAL { most + over } else { 1.0 };
            figures.push(Figure::new(name, P50, "us", 400.0 * ratio));
            figures.push(Figure::new(name, RATIO, "", ratio));
        }
        let figures = Figures::from(figures);
        (Migration.judge(&figures).unwrap().verdict, Migration.broken_promise(&figures).is_none())
    }

    #[test]
    fn a_rung_that_costs_more_than_its_stores_is_named() {
        assert_eq!(judged(0.0, [0.0; 2]), (Verdict::Holds, true));
        assert_eq!(judged(0.01, [0.0; 2]), (Verdict::DependsOn("the rung: dual".into()), true));
    }

    #[test]
    fn an_overlap_or_a_smaller_token_decides() {
        assert_eq!(judged(0.0, [1.0, 0.0]), (Verdict::DoesNotHold, false));
        assert_eq!(judged(0.01, [0.0, 2.0]), (Verdict::DoesNotHold, false));
    }

    #[test]
    fn there_is_no_verdict_without_a_rung() {
        let figures = Figures::from(vec![Figure::new(OLD, P50, "us", 90.0)]);
        assert!(Migration.judge(&figures).is_err());
    }
}
