//! `peers`: as `contended`, with the locks of other libraries, in turn with ours on the same server; and each of them
//! alone.

use lock_testkit::history::Event;

use crate::experiments::parts::contention::HOLD;
use crate::experiments::parts::fight::{Fight, Times, alone, contended};
use crate::experiments::prelude::*;
use crate::rig::peers::{JVM_FLAGS, missing};

pub(crate) static THIS: Experiment = Experiment {
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
            at_least(ETCD, 1.0, "hand-off p50 against ours").of("etcd-lock"),
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
    at_least(REDIS, 20.0, what).of(peer).at(|plan| unless(plan.processes >= 20, plan.processes, "processes"))
}

/// A client of ZooKeeper's recipe: ours takes at most 0.7 of its time.
const fn slower_hand_off(peer: &'static str) -> OurTarget {
    at_least(ZK, 1.0 / 0.7, "hand-off p50 against ours").of(peer)
}

const fn not_faster(peer: &'static str) -> OurTarget {
    at_least(ZK, 1.0, "acquire + release p50 against ours").of(peer)
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
    let ours = ours(bench, target, first).await?;
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
        let ours = ours(bench, target, processes).await?;
        events.extend(ours.contention.events);
        Ok::<_, Failure>(ours.times)
    };
    if last.processes != processes {
        *last = measure_ours().await?;
    }
    let before = *last;
    let theirs = Fight::watch(bench, target.url(), Some(peer), processes).await?;
    if !theirs.contention.is_starved() {
        *last = measure_ours().await?;
    }
    Ok(theirs.measured(peer.as_str(), before.mean(*last)))
}

/// Measures our own lock, of which a starved process would be a failure.
async fn ours(bench: &Bench, target: &Target, processes: u32) -> Outcome<Fight> {
    let ours = Fight::watch(bench, target.url(), None, processes).await?;
    match ours.contention.grants() {
        few if ours.contention.is_starved() => Err(Failure::new(format!("{few} grants"))),
        _ => Ok(ours),
    }
}

fn about(peer: Peer, plan: &Plan) -> String {
    let processes = processes(plan, peer);
    let fewer = if processes < plan.processes { format!(" ({processes} processes)") } else { String::new() };
    format!("{}{fewer}", peer.waiting())
}

fn processes(plan: &Plan, peer: Peer) -> u32 {
    plan.processes.min(peer.most_processes())
}

const OURS: &str = "median of our lock right before and after";
