//! Claim 6: the failure of a server.

use async_trait::async_trait;

use super::trials::{OUTAGE, OVERLAPS, add_trial, counted, two_valid};
use super::{About, Claim, Figures, Judgement, Measuring};
use crate::failure::Outcome;
use crate::faults::{FaultName, Trial};
use crate::options::BackendName;
use crate::results::{Picture, Verdict};

/// The claim.
#[derive(Debug)]
pub(super) struct Failover;

#[async_trait(?Send)]
impl Claim for Failover {
    fn about(&self) -> About {
        About {
            id: 6,
            says: "One Redis is a single point of failure; with a replica a failover gives the lock to two.",
            how: "A process holds the lock and others try to acquire it. One Redis server is stopped for longer than a lease; a Redis \
                  master is killed, and sentinels promote a replica that has not received the lock; the leader of three \
                  ZooKeeper servers is killed, and cut off from the other two while its clients still reach it; one of five \
                  Redlock masters is killed and restarted, with and without its data. Counted are overlapping holds, those \
                  of two valid guards, and the longest time in which nobody could get the lock.",
            rule: "Holds when the stopped Redis server is an outage of at least a second, the failover to the replica gives two \
                   valid guards, and neither ZooKeeper nor Redlock does; does not hold when the failover gives no two guards; \
                   otherwise it depends on the backend. Two valid guards on ZooKeeper or Redlock break what polylock promises.",
            needs: &[],
            in_quick: false,
        }
    }

    async fn measure(&self, run: &mut Measuring<'_>) {
        for (subject, backend, fault) in TRIALS {
            if run.target_of(backend.as_str()).is_some() {
                add_trial(run, subject, Trial::of(backend, fault)).await;
            }
        }
        for (title, metric) in
            [("Holds that overlap by wall time", OVERLAPS), ("The longest time without a holder", OUTAGE)]
        {
            run.draw(Picture::Bars { title: title.into(), metric: metric.into() });
        }
    }

    fn judge(&self, figures: &Figures) -> Outcome<Judgement> {
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
        let promoted = counted(figures, PROMOTED)?.valid;
        let verdict = match (promoted > 0.0, others > 0.0) {
            (false, _) => Verdict::DoesNotHold,
            (true, false) if figures.get(STOPPED, OUTAGE)? >= LONG_MS => Verdict::Holds,
            (true, _) => Verdict::DependsOn("the backend".into()),
        };
        Ok(Judgement::new(verdict, texts.join("; ")))
    }

    fn broken_promise(&self, figures: &Figures) -> Option<String> {
        two_valid(
            figures,
            TRIALS.map(|(subject, ..)| subject).into_iter().filter(|subject| *subject != PROMOTED),
        )
    }
}

const STOPPED: &str = "redis stopped";
const PROMOTED: &str = "redis failover";
const TRIALS: [(&str, BackendName, FaultName); 6] = [
    (STOPPED, BackendName::Redis, FaultName::ServerPaused),
    (PROMOTED, BackendName::Redis, FaultName::Failover),
    ("zk leader killed", BackendName::Zk, FaultName::Failover),
    ("zk leader cut off", BackendName::Zk, FaultName::LeaderCutOff),
    ("redlock master restarted with data", BackendName::Redlock, FaultName::RestartWithData),
    ("redlock master restarted without data", BackendName::Redlock, FaultName::RestartWithoutData),
];
/// A shorter time without a holder is not counted as an outage.
const LONG_MS: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::super::trials::figures_of;
    use super::*;
    use crate::results::Figure;

    /// The verdict, and whether polylock kept its promise.
    fn judged(promoted: f64, leader: f64) -> (Verdict, bool) {
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
        let figures = Figures::from(figures);
        (Failover.judge(&figures).unwrap().verdict, Failover.broken_promise(&figures).is_none())
    }

    #[test]
    fn a_failover_that_forgets_decides() {
        assert_eq!(judged(1.0, 0.0), (Verdict::Holds, true));
        assert_eq!(judged(0.0, 0.0), (Verdict::DoesNotHold, true));
        assert_eq!(judged(1.0, 1.0), (Verdict::DependsOn("the backend".into()), false));
    }
}
