//! Claim 6: the failure of a server.

use std::time::Duration;

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::replica::{ReplicaGuard, is_granted_alone};
use super::parts::trials::{OUTAGE, OVERLAPS, add_trial, counted, two_valid};
use crate::data::{BackendName, Fault, Figure, Figures, Outcome, Verdict};
use crate::experiments::faults::Trial;

pub(super) static THIS: Experiment = Experiment {
    name: "failover",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 6,
        says: "One Redis is a single point of failure; with a replica a failover gives the lock to two.",
        how: "A process holds the lock and others try to acquire it. One Redis server is stopped for longer than a lease; a Redis \
              master is killed, and sentinels promote a replica that has not received the lock; the leader of three \
              ZooKeeper servers is killed, and cut off from the other two while its clients still reach it; one of five \
              Redlock masters is killed and restarted, with and without its data. Counted are overlapping holds, those \
              of two valid guards, and the longest time in which nobody could get the lock. The replica that receives \
              nothing once more, with `wait_replicas=1` or the server's `min-replicas-to-write 1`: is the lock granted at \
              all, which a failover would then give to two? That is about the grant: that a replica misses later renewals, \
              `wait_replicas` does not see, and the server only after `min-replicas-max-lag`.",
        rule: "Holds when the stopped Redis server is an outage of at least a second, the failover to the replica gives two \
               valid guards, and neither ZooKeeper nor Redlock does; does not hold when the failover gives no two guards; \
               otherwise it depends on the backend. Two valid guards on ZooKeeper or Redlock break what polylock promises, and \
               so does a lock that is granted with `wait_replicas` although no replica has it.",
        pictures: &[
            Draw::Bars("Holds that overlap by wall time", OVERLAPS),
            Draw::Bars("The longest time without a holder", OUTAGE),
        ],
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    for (subject, backend, fault) in TRIALS {
        if run.target_of(backend.as_str()).is_some() {
            add_trial(run, subject, Trial::of(backend, fault)).await;
        }
    }
    if run.target_of("redis").is_some() {
        for (subject, guard) in GUARDED {
            if let Some(granted) = run.part(subject, PATIENCE, is_granted_alone(guard)).await {
                run.add(Figure::new(subject, GRANTED, "", f64::from(u8::from(granted))));
            }
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (mut texts, mut others) = (Vec::new(), 0.0);
    for (subject, ..) in TRIALS {
        let (valid, outage) = (counted(figures, subject)?.valid, figures.get(subject, OUTAGE)?);
        if !subject.starts_with("redis ") {
            others += valid;
        }
        texts.push(format!(
            "{subject}: {valid:.0} times two valid guards, {:.1} s without a holder",
            outage / 1e3
        ));
    }
    for (subject, _) in GUARDED {
        let granted = figures.get(subject, GRANTED)? > 0.0;
        texts.push(format!(
            "{subject}: {} without the replica",
            if granted { "granted" } else { "not granted" }
        ));
    }
    let promoted = counted(figures, PROMOTED)?.valid;
    let verdict = match (promoted > 0.0, others > 0.0) {
        (false, _) => Verdict::DoesNotHold,
        (true, false) if figures.get(STOPPED, OUTAGE)? >= LONG_MS => Verdict::Holds,
        (true, _) => Verdict::DependsOn("the backend".into()),
    };
    Ok(Judgement::new(verdict, texts.join("; ")))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let subjects = TRIALS.map(|(subject, ..)| subject).into_iter().filter(|subject| *subject != PROMOTED);
    let granted_alone = || {
        let granted = figures.get(WAITING, GRANTED).is_ok_and(|granted| granted > 0.0);
        granted.then(|| format!("{WAITING}: a lock was granted that no replica had"))
    };
    two_valid(figures, subjects).or_else(granted_alone)
}

const GUARDED: [(&str, ReplicaGuard); 2] =
    [(WAITING, ReplicaGuard::Wait), ("redis min-replicas-to-write=1", ReplicaGuard::MinReplicas)];
const WAITING: &str = "redis wait_replicas=1";
const GRANTED: &str = "granted_without_replica";
const PATIENCE: Duration = Duration::from_secs(60);

const STOPPED: &str = "redis stopped";
const PROMOTED: &str = "redis failover";
const TRIALS: [(&str, BackendName, Fault); 6] = [
    (STOPPED, BackendName::Redis, Fault::ServerPaused),
    (PROMOTED, BackendName::Redis, Fault::Failover),
    ("zk leader killed", BackendName::Zk, Fault::Failover),
    ("zk leader cut off", BackendName::Zk, Fault::LeaderCutOff),
    ("redlock master restarted with data", BackendName::Redlock, Fault::RestartWithData),
    ("redlock master restarted without data", BackendName::Redlock, Fault::RestartWithoutData),
];
/// A shorter time without a holder is not counted as an outage.
const LONG_MS: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::parts::trials::figures_of;

    /// The verdict, and whether polylock kept its promise.
    fn judged(promoted: f64, leader: f64, alone: f64) -> (Verdict, bool) {
        let mut figures = Vec::new();
        for (subject, ..) in TRIALS {
            let valid = match subject {
                PROMOTED => promoted,
                "zk leader killed" => leader,
                _ => 0.0,
            };
            figures.extend(figures_of(subject, [valid, valid, 0.0, 0.0]));
            figures.push(Figure::new(subject, OUTAGE, "ms", 2500.0));
        }
        figures.extend(
            [(WAITING, alone), (GUARDED[1].0, 0.0)]
                .map(|(subject, granted)| Figure::new(subject, GRANTED, "", granted)),
        );
        let figures = Figures::from(figures);
        (judge(&figures).unwrap().verdict, broken_promise(&figures).is_none())
    }

    #[test]
    fn a_failover_that_forgets_decides() {
        assert_eq!(judged(1.0, 0.0, 0.0), (Verdict::Holds, true));
        assert_eq!(judged(0.0, 0.0, 0.0), (Verdict::DoesNotHold, true));
        assert_eq!(judged(1.0, 1.0, 0.0), (Verdict::DependsOn("the backend".into()), false));
    }

    #[test]
    fn wait_replicas_must_not_grant_a_lock_alone() {
        assert_eq!(judged(1.0, 0.0, 1.0), (Verdict::Holds, false));
    }
}
