//! `contended`: processes contend for one lock, each holds it for a moment.
//!
//! Every process records its events on a clock that all processes share. One more process measures empty round trips to
//! the server at the same time, on a connection of its own. A short second pass counts requests through a proxy, so that
//! the counting does not disturb the timing.

use crate::experiments::parts::contention::{Contention, HOLD, jobs, let_contend, ramp};
use crate::experiments::parts::hand_over::{BareRing, HandOffs, Pinger, contend_inside, votes};
use crate::experiments::parts::request_count::count_requests;
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "contended",
    about: "separate processes contend for one lock, each holds it for a moment",
    in_quick: true,
    fits: BackendName::bears_load,
    settings,
    metrics: &[
        metric("grants_per_s", "1/s", "grants").meaning("more is better"),
        metric("handoff_p50", "us", "hand-off p50").floor("ping", PING).targets(&[
            at_most(REDIS, 3.0, "hand-off p50 against PING p50").at(TWENTY),
            at_most(REDLOCK, 6.0, "hand-off p50 of 8 processes against PING p50").at(EIGHT),
        ]),
        metric("handoff_p95", "us", "hand-off p95").floor("ping", PING).targets(&[at_most(
            REDIS,
            6.0,
            "hand-off p95 against PING p50",
        )
        .at(TWENTY)]),
        // The rarest hand-offs have no target.
        metric("handoff_p99", "us", "hand-off p99"),
        metric("handoff_p50_bare", "us", "p50 against bare").floor("bare", PING).targets(&[
            at_most(ZK, 1.15, "hand-off p50 against the bare watch"),
            at_most(POSTGRES, 1.25, "hand-off p50 of 8 processes against the bare hand-over").at(EIGHT),
            at_most(ETCD, 1.3, "hand-off p50 against a bare watch and two swaps"),
        ]),
        metric("handoff_p95_bare", "us", "p95 against bare").floor("bare", PING),
        metric("waiter_p50", "us", "to a waiter p50"),
        metric("longest_wait", "us", "longest wait")
            .floor("ideal", "ideal rotation, in which all take turns")
            .targets(&[at_most(REDIS, 2.0, "longest wait against the ideal rotation").at(TWENTY)]),
        metric("jain", "", "Jain index")
            .meaning("1 is fair")
            .targets(&[at_least(REDIS, 0.99, "Jain index").value().at(TWENTY)]),
        metric("inversions", "", "inversions").meaning(
            "pairs of grants in the opposite order of their calls, per grant; 0 is first come, first served",
        ),
        metric("requests_per_grant", "", "requests/grant")
            .meaning("those of waiters included, and no calls inside a script")
            .targets(&[at_most(REDIS, 4.2, "requests per grant").value().at(TWENTY)]),
        metric("first_try", "%", "at first try").targets(&[at_least(
            REDLOCK,
            95.0,
            "a free lock is acquired at first try",
        )
        .value()
        .at(TWENTY)]),
        metric("split_votes", "", "split votes"),
    ],
    takes: |plan| plan.warm_up + plan.contended * 2 + plan.counted,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let Plan { processes, rounds, .. } = plan;
    let [hold, span, warm_up, counted] = [HOLD, plan.contended, plan.warm_up, plan.counted].map(time);
    format!(
        "processes: {processes}; memory: as many tasks of one process
         hold: {hold}, a sleep on tokio's timer, which rounds up to the next millisecond
         duration: {span} in {rounds} rounds (mysql, sqlite: three times as long), each in turn with the bare hand-over, after {warm_up} of warm-up
         interval: of the ratios of the rounds, of at least 90 %
         runtime: current_thread in every process; memory: multi_thread with 2 workers
         hand-off: from the call of release to the return of the next acquire, in whatever process
         to_a_waiter: the same, until a process that waited at the time of the release has the lock
         bare: the same processes hand over by the bare requests, for {counted}: SET to wait, SET + PUBLISH, SET; zk: create, \
         delete, a watch; postgres: INSERT to wait, UPDATE + NOTIFY, UPDATE; etcd: swap, a watch, swap
         ping: the median of empty round trips (PING; zk: exists; postgres: three empty queries, and two commits of the floor; etcd, mysql, sqlite: two swaps) in a \
         process of their own, at the same time, every 2 to 5 ms
         ideal: the number of processes x (median hold + median hand-off)
         requests: commands that arrive at the servers, counted by a proxy in a pass of {counted}"
    )
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let (plan, backend, lock) = (&bench.plan, target.backend(), bench.lock("contended"));
    if backend == BackendName::Memory {
        let names = (0..plan.processes).map(|process| bench.lock_of(&lock, process));
        let spans = [plan.contended, plan.warm_up];
        let (events, window) = contend_inside(target.url(), &lock, names, spans).await?;
        let contention = Contention::of(events, window, plan.processes)?;
        let mut measured = HandOffs::default().measured(contention, target.name());
        // The memory backend sends no requests.
        measured.rows.push(Row::of("requests_per_grant", 0.0));
        return Ok(vec![measured]);
    }
    let workers = WorkerHandle::start_all(jobs(bench, target.url(), &lock)).await?;
    let mut pinger = Pinger::start(target, &lock, plan.processes).await;
    let mut contention = Contention::new(plan.processes);
    // No message of a single master can hand over a quorum, and waiters of MySQL and SQLite look now and then.
    let hands_over = !matches!(backend, BackendName::Redlock | BackendName::Mysql | BackendName::Sqlite);
    let mut bare = hands_over.then(BareRing::default);
    // Where waiters look now and then, and each hand-over waits for a disk, a short round has hardly any.
    let patience = if matches!(backend, BackendName::Mysql | BackendName::Sqlite) { 3 } else { 1 };
    let (mut handoffs, mut complaints) = (HandOffs::default(), Complaints::default());
    for round in 0..plan.rounds {
        let span = plan.contended * patience / plan.rounds;
        let window = Window::after(span, if round == 0 { plan.warm_up } else { ramp(span) });
        pinger.begin(window).await;
        let events = let_contend(&workers, window).await.map_err(|failure| failure.during("contention"))?;
        handoffs.ours.push(contention.add(events, window)?);
        // A failure of what it is compared with costs no other number.
        pinger.end().await;
        if let Some(ring) = bare.take() {
            bare = complaints.note("the bare hand-over", ring.turn(bench, target).await);
        }
    }
    handoffs.pings = complaints.note("pings", pinger.pings());
    handoffs.bare = bare.map(|ring| ring.handoffs);
    let votes = if backend == BackendName::Redlock { Some(votes(&workers).await) } else { None };
    let votes = votes.and_then(|votes| complaints.note("votes", votes));
    drop(workers);
    let mut measured = handoffs.measured(contention, target.name());
    measured.rows.extend(votes.into_iter().flatten());
    // No proxy knows the requests of etcd, and a file has none.
    if !matches!(backend, BackendName::Etcd | BackendName::Sqlite) {
        let counted = count_requests(bench, backend, target.url(), &bench.lock("counted")).await;
        if let Some(counted) = complaints.note("counting requests", counted) {
            measured.rows.push(Row::of("requests_per_grant", counted.requests));
            measured.events.extend(counted.events);
        }
    }
    measured.complaints = complaints.0;
    Ok(vec![measured])
}

/// What cost some numbers.
#[derive(Default)]
struct Complaints(Vec<String>);

impl Complaints {
    fn note<T>(&mut self, what: &str, tried: Outcome<T>) -> Option<T> {
        tried.map_err(|failure| self.0.push(failure.during(what).to_string())).ok()
    }
}

const PING: &str = "median of empty round trips at the same time; postgres: of three, and two commits; etcd, mysql, sqlite: two swaps";
const TWENTY: Size = |plan| unless(plan.processes >= 20, plan.processes, "processes");
/// Hand-offs take longer with more.
const EIGHT: Size = |plan| unless(plan.processes == 8, plan.processes, "processes");
