//! `throughput`: many tasks acquire and release locks with names of their own, as fast as they can; in one process, and in
//! several.
//!
//! Ours, the bare commands and the locks of other libraries take turns in slices of time, each in processes of its own, which
//! are idle meanwhile.

use std::time::Duration;

use rand::seq::SliceRandom;

use crate::experiments::parts::contention::ramp;
use crate::experiments::parts::teams::{
    CLIENT_CPU, PAIRS, SERVER_CPU, Team, label, middle, rows, subjects, use_locks,
};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "throughput",
    about: "tasks acquire and release locks with names of their own, as fast as they can; 8 x 64 tasks: in 8 processes",
    in_quick: true,
    has_rivals: false,
    // A lock of its own in the memory of a process takes no time worth a load.
    fits: |backend| backend != BackendName::Memory && backend.bears_load(),
    settings,
    metrics: &[
        metric("p50", "us", "p50").targets(&[
            at_most(REDIS, 1.08, "p50 against the bare commands").of("redis 1 task"),
            at_most(POSTGRES, 1.15, "p50 against the bare statements").of("postgres 1 task"),
        ]),
        metric("p99", "us", "p99"),
        metric(PAIRS, "1/s", "acquire + release").meaning(MORE).targets(&[
            at_least(REDLOCK, 0.7, "pairs/s against fan-outs to a quorum").of("redlock 256 tasks"),
            at_least(REDLOCK, 0.85, "pairs/s of 8 processes").of("redlock 8 x 64 tasks"),
            at_least(ZK, 1.0, "pairs/s against the bare requests").of("zk 256 tasks"),
            at_least(POSTGRES, 1.0, "pairs/s against the bare statements").of("postgres 256 tasks"),
        ]),
        metric("pairs_per_s_minting", "1/s", "pairs against tokens")
            .meaning(MORE)
            .floor("with tokens", "bare commands of a lock with fencing tokens")
            .targets(&[
                at_least(REDIS, 0.95, "pairs/s against bare commands with tokens").of("redis 256 tasks")
            ]),
        metric("pairs_per_s_rslock", "1/s", "pairs against rslock")
            .meaning(MORE)
            .floor("rslock", "lock of rslock")
            .targets(&[
                at_least(REDIS, 0.9, "pairs/s against rslock, 16 tasks").of("redis 16 tasks"),
                at_least(REDIS, 1.0, "pairs/s against rslock, 256 tasks").of("redis 256 tasks"),
                at_least(REDIS, 1.0, "pairs/s against rslock, 1024 tasks").of("redis 1024 tasks"),
                at_least(REDLOCK, 1.0, "pairs/s against rslock").of("redlock 256 tasks"),
            ]),
        metric("pairs_per_s_sqlx", "1/s", "pairs against sqlx")
            .meaning(MORE)
            .floor("sqlx", "advisory lock of sqlx"),
        metric(CLIENT_CPU, "us", "client CPU/pair").targets(&[
            at_most(REDIS, 1.6, "client CPU/pair against the bare commands").of("redis 256 tasks"),
            at_most(ZK, 1.15, "client CPU/pair against the bare requests").of("zk 256 tasks"),
            at_most(POSTGRES, 1.4, "client CPU/pair against the bare statements").of("postgres 256 tasks"),
        ]),
        metric(SERVER_CPU, "us", "server CPU/pair").targets(&[
            at_most(REDIS, 1.6, "server CPU/pair against the bare commands").of("redis 256 tasks"),
            at_most(POSTGRES, 1.5, "server CPU/pair against the bare statements").of("postgres 256 tasks"),
        ]),
    ],
    takes: |plan| {
        let loads = loads(plan, BackendName::Redis).len() as u32;
        (slice(plan) + ramp(slice(plan))) * plan.rounds * loads * SUBJECTS + START * loads
    },
    parts: |plan, backend| loads(plan, backend).len(),
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let (rounds, [slice, ramp]) = (plan.rounds, [slice(plan), ramp(slice(plan))].map(time));
    format!(
        "duration: medians of {rounds} slices of {slice} each (postgres: twice as long), in turn, in an order by chance, after {ramp} of \
         warm-up in every slice
         interval: of the ratios of the slices of one round, of at least 90 %
         tasks: one lock each, with a name of its own; released as soon as it is acquired
         clients: one for each process and library: one connection, or session, for all tasks; a pool on postgres
         runtime: multi_thread with 2 workers, in every process
         pair: from the call of acquire to the return of release
         client_cpu: of all client processes, for a pair
         server_cpu: of all servers, for a pair
         floor: redis: SET NX PX + EVALSHA compare-and-delete; redlock: the same on every master in parallel, until a majority has \
         answered; zk: create ephemeral sequential + get children at once, then delete; postgres: INSERT .. ON CONFLICT DO UPDATE WHERE \
         expired, then DELETE, prepared, on as many sessions as ours has, each commit on the disk
         minting_floor: with a fencing token. redis: SET NX PX + INCR of a counter of the lock in one write, as INCR takes less than half \
         of the server's time for ZADD GT CH; redlock: SET NX PX + ZADD GT CH of the local clock in one write, as counters of masters \
         differ; zk: the floor has a token already
         verdict: none, as no two tasks want the same lock; fencing tokens must grow, and no lock may be lost"
    )
}

/// How many clients there are at once: fewer loads where nothing is promised of the others.
pub(crate) fn loads(plan: &Plan, backend: BackendName) -> &'static [Load] {
    const ALL: &[Load] = &[of(1, 1), of(1, 16), of(1, 256), of(8, 64), of(1, 1024)];
    const fn of(processes: u32, tasks: u32) -> Load {
        Load { processes, tasks }
    }
    let full = match backend {
        BackendName::Redis => ALL.len(),
        BackendName::Redlock | BackendName::Zk | BackendName::Postgres => 4,
        _ => 3,
    };
    &ALL[..plan.by_mode(3, full)]
}

/// The libraries that take part.
pub(crate) fn peers(plan: &Plan) -> &'static [Peer] {
    use Peer::{AsyncRedisLock, Distkit, LockClient, Rlock, Rslock, Sqlx};
    plan.by_mode(&[Rslock, Sqlx], &[Rslock, Rlock, AsyncRedisLock, Distkit, LockClient, Sqlx])
}

/// How long each subject uses its locks before the next one does.
fn slice(plan: &Plan) -> Duration {
    plan.by_mode(Duration::from_millis(90), Duration::from_millis(200))
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let (plan, servers, backend) = (&bench.plan, target.processes(), target.backend());
    let (mut all, mut complaints) = (Vec::new(), Vec::new());
    // In databases hundreds of tasks wait for the disk, one commit after the other.
    let waits = matches!(backend, BackendName::Postgres | BackendName::Mysql | BackendName::Sqlite);
    let span = slice(plan) * if waits { 2 } else { 1 };
    for &load in loads(plan, backend) {
        let mut teams = Vec::new();
        for subject in subjects(backend, peers(plan)) {
            let lock = bench.lock(&format!("throughput-{}", label(subject, backend, load)));
            teams.push((subject, Team::start(target.url(), &lock.replace(' ', "-"), subject, load).await));
        }
        for _ in 0..plan.rounds {
            // By chance, so that none always comes after the same other one.
            let mut order: Vec<_> = teams.iter_mut().collect();
            order.shuffle(&mut rand::rng());
            for (_, team) in order {
                use_locks(team, span, &servers).await;
            }
        }
        let mut costs = Vec::new();
        for (subject, mut team) in teams {
            // Of hundreds of tasks on a busy machine: most slices may end before the first of them has its turn.
            if let Ok(running) = &mut team
                && middle(&running.rounds, |round| round.pairs_per_s) <= 0.0
            {
                running.rounds.clear();
                use_locks(&mut team, LONG_SLICE, &servers).await;
            }
            let ended = match team {
                Ok(team) => team.end().await,
                Err(failure) => Err(failure),
            };
            match ended {
                Ok(rounds) => costs.push((subject, rounds)),
                Err(failure) => complaints.push(failure.during(&label(subject, backend, load)).to_string()),
            }
        }
        let rows = costs.iter().map(|(subject, _)| (label(*subject, backend, load), rows(&costs, *subject)));
        all.extend(rows.map(|(label, rows)| Measured::of(&label, rows)));
    }
    all.push(Measured { complaints, ..Measured::default() });
    Ok(all)
}

const MORE: &str = "more is better";
/// The mean over the backends, for the time left.
const SUBJECTS: u32 = 4;
/// To start the processes of all subjects, for the time left.
const START: Duration = Duration::from_millis(1500);
const LONG_SLICE: Duration = Duration::from_secs(5);
