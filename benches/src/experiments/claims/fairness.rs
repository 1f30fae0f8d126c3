//! Claim 4: ZooKeeper locks are fair.

use std::time::Duration;

use clap::ValueEnum;
use lock_testkit::history::{Event, History};

use crate::experiments::parts::hand_over::contend_inside;
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "fairness",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 4,
        says: "ZooKeeper locks are fair.",
        how: "Clients contend for one lock, each holds it for a millisecond and tries to acquire it again at once: the default recipes and \
              the peers as processes in `contended` and `peers`, other recipes as tasks with connections of their own. \
              Inversions are pairs of grants in the opposite order of their calls, per grant; Jain's index is 1 when all \
              clients have equally many grants.",
        rule: "A lock is fair when it has fewer than one inversion per grant and Jain's index is at least 0.95. Holds when \
               all locks over ZooKeeper are fair, does not hold when none is; otherwise it depends on the recipe.",
        needs: &["contended", "peers"],
        in_quick: true,
        pictures: || {
            vec![
                bars("Pairs of grants in the opposite order of their calls, per grant", INVERSIONS),
                bars("Jain's index: 1 is fair", JAIN),
                bars("The longest wait", LONGEST_WAIT),
            ]
        },
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let backends = BackendName::value_variants().iter().filter(|backend| backend.bears_load());
    let backends = backends.map(|backend| ("contended", backend.as_str()));
    let peers = Peer::all().iter().map(|peer| ("peers", peer.as_str()));
    for (scenario, name) in backends.chain(peers) {
        for metric in [INVERSIONS, JAIN, LONGEST_WAIT] {
            run.add_row(scenario, name, metric);
        }
    }
    for &subject in OTHER_RECIPES {
        let Some(url) = run.url(subject) else { continue };
        let lock = run.bench.lock(&format!("fair-{}", subject.replace([' ', '='], "-")));
        let span = run.mode.pick(Duration::from_millis(700), Duration::from_secs(5));
        let names = (0..CLIENTS).map(|_| lock.clone());
        let contention = contend_inside(&url, &lock, names, [span, Duration::ZERO]);
        if let Some((events, _)) = run.part(subject, PATIENCE, contention).await {
            add(run, subject, events);
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut parts = Vec::new();
    for subject in figures.subjects(INVERSIONS).into_iter().filter(|name| is_zookeeper(name)) {
        let (inversions, jain) = (figures.get(subject, INVERSIONS)?, figures.get(subject, JAIN)?);
        let is_fair = inversions < MOST_INVERSIONS && jain >= LEAST_JAIN;
        let word = if is_fair { "fair" } else { "not fair" };
        parts.push((is_fair, format!("{subject} {inversions:.2} and {jain:.3} ({word})")));
    }
    let none = "no lock over ZooKeeper was measured";
    Judgement::of_parts(parts, "the recipe", "inversions per grant and Jain's index", none)
}

fn add(run: &mut Measuring<'_>, subject: &str, events: Vec<Event>) {
    let report = lock_testkit::check(&History::new(events));
    if report.l1.count > 0 {
        return run.leave_out(subject, format!("mutual exclusion was BROKEN: {} overlaps", report.l1.count));
    }
    for lock in report.locks.values() {
        let inversions = lock.fifo_inversions as f64 / report.holds.max(1) as f64;
        run.add(Figure::new(subject, INVERSIONS, "", inversions));
        run.add(Figure::new(subject, JAIN, "", lock.jain));
        run.add(Figure::new(subject, LONGEST_WAIT, "us", lock.longest_wait_ns as f64 / 1e3));
    }
}

fn is_zookeeper(subject: &str) -> bool {
    subject.starts_with("zk") || Peer::named(subject).is_some_and(Peer::is_on_zookeeper)
}

const OTHER_RECIPES: &[&str] =
    &["redis wait=poll", "redis wait=notify", "redis recipe=setnx-timestamp", "zk recipe=ephemeral"];
const CLIENTS: usize = 8;
const INVERSIONS: &str = "inversions";
const JAIN: &str = "jain";
const LONGEST_WAIT: &str = "longest_wait";
const MOST_INVERSIONS: f64 = 1.0;
const LEAST_JAIN: f64 = 0.95;
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn only_locks_over_zookeeper_decide() {
        let by = |locks: &[(&str, f64, f64)]| {
            let of = |&(subject, inversions, jain): &(&str, f64, f64)| {
                [Figure::new(subject, INVERSIONS, "", inversions), Figure::new(subject, JAIN, "", jain)]
            };
            judged(&THIS, locks.iter().flat_map(of)).0
        };
        let (queue, herd) = (("zk", 0.1, 1.0), ("zk recipe=ephemeral", 3.0, 0.9));
        let (redis, etcd) = (("redis wait=poll", 9.0, 0.3), ("etcd-lock", 9.0, 0.3));
        assert_eq!(by(&[queue, redis, etcd]), Verdict::Holds);
        assert_eq!(by(&[queue, herd]), Verdict::DependsOn("the recipe".into()));
        assert_eq!(by(&[herd]), Verdict::DoesNotHold);
        assert_eq!(by(&[redis]), Verdict::NotJudged);
    }
}
