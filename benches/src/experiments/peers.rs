//! `peers`: as `contended`, with the locks of other libraries, in turn with ours on the same server; and each of them
//! alone.

use std::time::Duration;

use lock_testkit::EtcdServer;
use lock_testkit::history::Event;

use super::bench::{Bench, Measured, time};
use super::experiment::{EXPERIMENT, Experiment, metric};
use super::parts::contention::{Contention, HOLD, grants, jobs, let_contend, rounds};
use super::target::{REDIS, Size, Target as OurTarget, ZK, ratio};
use crate::data::{Failure, Outcome, Peer, Plan, Row, Window};
use crate::rig::peers::{JVM_FLAGS, missing};
use crate::rig::{Job, Target, Task, WorkerHandle, stuck};

pub(super) static THIS: Experiment = Experiment {
    name: "peers",
    about: "as contended, with the locks of other libraries, one after the other on one server",
    fits: |backend| Peer::of(backend).next().is_some(),
    settings,
    metrics: &[
        metric("alone_p50", "us", "acquire + release p50").floor("ours", OURS).targets(&[
            not_faster("lock-client"),
            not_faster("curator"),
            not_faster("kazoo"),
        ]),
        metric("grants_per_s", "1/s", "grants").meaning("more is better"),
        metric("handoff_p50", "us", "hand-off p50"),
        metric("waiter_p50", "us", "to a waiter p50").floor("ours", OURS).targets(&[
            polling("rslock"),
            polling("rlock"),
            polling("async-redis-lock"),
            polling("distkit"),
            slower_hand_off("lock-client"),
            slower_hand_off("curator"),
            slower_hand_off("kazoo"),
        ]),
        metric("longest_wait", "us", "longest wait")
            .floor("ideal", "ideal rotation, in which all take turns"),
        metric("jain", "", "Jain index").meaning("1 is fair"),
        metric("inversions", "", "inversions").meaning(
            "pairs of grants in the opposite order of their calls, per grant; 0 is first come, first served",
        ),
    ],
    takes: |plan| (plan.warm_up + plan.contended) * 6,
    parts: |_, backend| 1 + Peer::of(backend).count(),
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

/// A Redis lock that polls.
const fn polling(peer: &'static str) -> OurTarget {
    // Not the hand-off to any process: a releaser that acquires the lock again at once is faster than any waiter.
    let what = "hand-off to a waiter p50 against ours";
    ratio(REDIS, what).of(peer).at_least(20.0).at(Size::Processes(20))
}

/// A client of ZooKeeper's recipe: ours takes at most 0.7 of its time.
const fn slower_hand_off(peer: &'static str) -> OurTarget {
    ratio(ZK, "hand-off p50 against ours").of(peer).at_least(1.0 / 0.7)
}

const fn not_faster(peer: &'static str) -> OurTarget {
    ratio(ZK, "acquire + release p50 against ours").of(peer).at_least(1.0)
}

fn settings(plan: &Plan) -> String {
    let [hold, alone, span, warm_up] = [HOLD, alone(plan), contended(plan), plan.warm_up].map(time);
    let (processes, java) = (plan.processes, JVM_FLAGS.join(" "));
    let peers = Peer::all().iter().map(|peer| format!("\n{}: {}", peer.as_str(), about(*peer, plan)));
    format!(
        "processes: {processes}, fewer for peers that need a runtime each; ours beside them as many
         hold: {hold}, as in contended
         to_a_waiter: from a release until a process that waited at that time has the lock, as in contended
         alone: one process that releases it at once, from one acquisition to the next, for {alone}
         duration: {span} each after {warm_up} of warm-up
         java: {java}, for all peers in Java
         floor: the mean of our times right before the peer and right after it
         options: the defaults of each library; where there is no default ttl: 10 s for rslock, 5 s for node-redlock{}",
        peers.collect::<String>()
    )
}

/// Measures one backend and its peers. A peer that fails is reported and left out; one that is not installed is noted.
async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let first =
        Peer::of(target.backend()).next().map_or(bench.plan.processes, |peer| processes(&bench.plan, peer));
    let ours = Library::of(Fight::watch(bench, target.url(), None, first).await?)?;
    let (floor, mut last) = (ours.times, ours.times);
    let mut all = vec![ours.measured(target.name(), floor)];
    for peer in Peer::of(target.backend()) {
        if let Some(why) = missing(peer) {
            all[0].notes.push(("missing", format!("without {}: {why}", peer.as_str())));
            continue;
        }
        let measuring = between_ours(bench, target, peer, &mut last, &mut all[0].events);
        match stuck::within(bench.plan.patience, measuring).await {
            Ok(theirs) => all.push(theirs),
            Err(failure) => all[0].complaints.push(failure.during(peer.as_str()).to_string()),
        }
    }
    Ok(all)
}

/// Measures a peer between two measurements of ours: the noise of the machine changes from minute to minute.
async fn between_ours(
    bench: &Bench,
    target: &Target,
    peer: Peer,
    last: &mut Times,
    events: &mut Vec<Event>,
) -> Outcome<Measured> {
    let processes = processes(&bench.plan, peer);
    let mut measure_ours = async || {
        let ours = Library::of(Fight::watch(bench, target.url(), None, processes).await?)?;
        events.extend(ours.contention.into_measured(target.name()).events);
        Ok::<_, Failure>(ours.times)
    };
    if last.processes != processes {
        *last = measure_ours().await?;
    }
    let before = *last;
    let etcd = if peer == Peer::Etcd { Some(EtcdServer::start().await?) } else { None };
    let url = etcd.as_ref().map_or_else(|| target.url().to_owned(), |server| server.addr().to_string());
    let theirs = Fight::watch(bench, &url, Some(peer), processes).await?;
    drop(etcd);
    if theirs.is_starved() {
        return Ok(theirs.starved(peer.as_str()));
    }
    let theirs = Library::of(theirs)?;
    *last = measure_ours().await?;
    Ok(theirs.measured(peer.as_str(), before.mean(*last)))
}

/// The times of one library; ours are the floor of the others.
#[derive(Clone, Copy)]
struct Times {
    processes: u32,
    waiter_us: f64,
    /// Of one process without rivals.
    alone_us: f64,
}

impl Times {
    fn mean(self, other: Self) -> Self {
        Self {
            waiter_us: f64::midpoint(self.waiter_us, other.waiter_us),
            alone_us: f64::midpoint(self.alone_us, other.alone_us),
            ..self
        }
    }
}

/// The history of a library's processes.
struct Fight {
    processes: u32,
    /// The time of one process without rivals.
    alone_us: f64,
    events: Vec<Event>,
    window: Window,
}

impl Fight {
    async fn watch(bench: &Bench, url: &str, peer: Option<Peer>, processes: u32) -> Outcome<Self> {
        let of = |processes, contended| Bench {
            plan: Plan { processes, contended, ..bench.plan },
            ..bench.clone()
        };
        let (events, window) = contend_for(&of(1, alone(&bench.plan)), url, peer, Duration::ZERO).await?;
        let alone_us = rounds(&events, window).quantile_us(0.5);
        let (events, window) = contend_for(&of(processes, contended(&bench.plan)), url, peer, HOLD).await?;
        Ok(Self { processes, alone_us, events, window })
    }

    /// Whether the processes kept each other from the lock.
    fn is_starved(&self) -> bool {
        grants(&self.events).iter().filter(|grant| self.window.contains(grant.begin_ns)).count() < 2
    }

    /// That they did: a finding about a peer, not a failure of the run.
    fn starved(self, name: &str) -> Measured {
        let rows = vec![Row::of("grants_per_s", 0.0)];
        let notes =
            vec![("starved", format!("({} processes kept each other from the lock)", self.processes))];
        Measured { notes, events: self.events, ..Measured::of(name, rows) }
    }
}

struct Library {
    times: Times,
    contention: Contention,
}

impl Library {
    fn of(fight: Fight) -> Outcome<Self> {
        let Fight { processes, alone_us, events, window } = fight;
        let contention = Contention::of(events, window, processes)?;
        let waiter_us = contention.to_waiter.quantile_us(0.5);
        Ok(Self { times: Times { processes, waiter_us, alone_us }, contention })
    }

    /// The rows, with our times as the floor.
    fn measured(self, name: &str, ours: Times) -> Measured {
        let rows = [
            Row::of("alone_p50", self.times.alone_us).with_floor(ours.alone_us),
            Row::of("handoff_p50", self.contention.handoff.quantile_us(0.5)),
            Row::of("waiter_p50", self.times.waiter_us).with_floor(ours.waiter_us),
        ];
        let mut measured = self.contention.into_measured(name);
        measured.rows.extend(rows);
        measured
    }
}

async fn contend_for(
    bench: &Bench,
    url: &str,
    peer: Option<Peer>,
    hold: Duration,
) -> Outcome<(Vec<Event>, Window)> {
    let plan = &bench.plan;
    let lock = bench.lock(peer.map_or("peers", Peer::as_str));
    let jobs = jobs(bench, url, &lock).map(|job| Job { task: Task::Contend { hold, peer }, ..job });
    let workers = WorkerHandle::start_all(jobs).await?;
    let window = Window::after(plan.contended, plan.warm_up);
    Ok((let_contend(&workers, window).await?, window))
}

fn about(peer: Peer, plan: &Plan) -> String {
    let processes = processes(plan, peer);
    let fewer = if processes < plan.processes { format!(" ({processes} processes)") } else { String::new() };
    format!("{}{fewer}", peer.waiting())
}

fn processes(plan: &Plan, peer: Peer) -> u32 {
    plan.processes.min(peer.most_processes())
}

/// Shorter than in `contended`, as there are many peers.
fn contended(plan: &Plan) -> Duration {
    plan.contended.min(LONGEST)
}

fn alone(plan: &Plan) -> Duration {
    plan.counted.min(LONGEST_ALONE)
}

const LONGEST: Duration = Duration::from_secs(3);
const LONGEST_ALONE: Duration = Duration::from_millis(1500);
const OURS: &str = "median of our lock right before and after";
