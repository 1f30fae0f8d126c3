//! Claim 6: the failure of a server.

use std::time::Duration;

use lock_testkit::RedisSentinel;
use polylock::Locks;
use tokio::time::timeout;

use crate::experiments::faults::{Trial, cut_off_replica};
use crate::experiments::parts::trials::{OUTAGE, OVERLAPS, TWO_VALID, VALID_OVERLAPS, add_trials, broken};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
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
        pictures: || {
            vec![
                bars("Holds that overlap by wall time", OVERLAPS),
                bars("The longest time without a holder", OUTAGE),
            ]
        },
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let measured = |backend: BackendName| run.target_of(backend.as_str()).is_some();
    let trials = TRIALS.into_iter().filter(|(_, backend, _)| measured(*backend));
    let trials: Vec<_> =
        trials.map(|(subject, backend, fault)| (subject, Trial::of(backend, fault))).collect();
    add_trials(run, &trials).await;
    if run.target_of("redis").is_some() {
        for subject in GUARDED {
            if let Some(granted) = run.part(subject, PATIENCE, is_granted_alone(subject)).await {
                run.add(Figure::new(subject, GRANTED, "", f64::from(u8::from(granted))));
            }
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (mut texts, mut others) = (Vec::new(), 0.0);
    for (subject, ..) in TRIALS {
        let (valid, outage) = (figures.get(subject, VALID_OVERLAPS)?, figures.get(subject, OUTAGE)?);
        if !subject.starts_with("redis ") {
            others += valid;
        }
        texts.push(format!(
            "{subject}: {valid:.0} times two valid guards, {:.1} s without a holder",
            outage / 1e3
        ));
    }
    for subject in GUARDED {
        let granted = if figures.get(subject, GRANTED)? > 0.0 { "granted" } else { "not granted" };
        texts.push(format!("{subject}: {granted} without the replica"));
    }
    let promoted = figures.get(PROMOTED, VALID_OVERLAPS)?;
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
    broken(figures, subjects, VALID_OVERLAPS, TWO_VALID).or_else(granted_alone)
}

/// Whether a lock is granted that the replica does not receive, with this guard against it: an option of the URL, or a setting of the
/// master.
async fn is_granted_alone(guard: &str) -> Outcome<bool> {
    let sentinel = RedisSentinel::start().await?;
    let mut url = sentinel.url();
    if guard == WAITING {
        // On a busy machine a sound replica may take longer than the default of 100 ms.
        for (name, value) in [("wait_replicas", "1"), ("wait_replicas_timeout", "1s")] {
            url = url::with_option(&url, name, value);
        }
    } else {
        sentinel.servers()[0].command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await?;
    }
    let locks = Locks::connect(&url).await?;
    let mutex = locks.mutex("failover");
    // The servers grant it while the replica is there.
    mutex.acquire().await?.release().await?;
    cut_off_replica(&sentinel).await?;
    // An error and a wait without end are both no grant.
    let asked = mutex.try_acquire_for(ASK).await;
    let granted = matches!(asked, Ok(Some(_)));
    drop(asked);
    // While the servers refuse writes an orderly end takes long.
    let _ = timeout(ASK, locks.close()).await;
    Ok(granted)
}

/// What is to keep a master from granting a lock that its replica does not receive.
const GUARDED: [&str; 2] = [WAITING, "redis min-replicas-to-write=1"];
const WAITING: &str = "redis wait_replicas=1";
const ASK: Duration = Duration::from_secs(3);
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
    use crate::experiments::claim::judged;
    use crate::experiments::parts::trials::figures_of;

    fn by(promoted: f64, leader: f64, alone: f64) -> (Verdict, bool) {
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
        let granted = GUARDED.into_iter().zip([alone, 0.0]);
        figures.extend(granted.map(|(subject, granted)| Figure::new(subject, GRANTED, "", granted)));
        judged(&THIS, figures)
    }

    #[test]
    fn a_failover_that_forgets_decides() {
        assert_eq!(by(1.0, 0.0, 0.0), (Verdict::Holds, true));
        assert_eq!(by(0.0, 0.0, 0.0), (Verdict::DoesNotHold, true));
        assert_eq!(by(1.0, 1.0, 0.0), (Verdict::DependsOn("the backend".into()), false));
    }

    #[test]
    fn wait_replicas_must_not_grant_a_lock_alone() {
        assert_eq!(by(1.0, 0.0, 1.0), (Verdict::Holds, false));
    }
}
