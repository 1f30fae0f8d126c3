//! Claim 9: the two classic mistakes of Redis locks.

use std::fmt;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::naive::{delete_whoever_holds, end_at_once, lose_expire, release_late};
use crate::data::{Defect, Failure, Figure, Figures, Outcome, Verdict};

pub(super) static THIS: Experiment = Experiment {
    name: "naive-recipes",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 9,
        says: "Deleting without looking at the value frees somebody else's lock, and SETNX with a later EXPIRE can lock for ever.",
        how: "By bare commands and by polylock, on one server, in several rounds. Late release: a client holds a lock beyond \
              its ttl, a second client acquires it, the first one releases, and a third one tries; counted are the rounds \
              in which it succeeds while the second one holds. Lost EXPIRE: a client acquires a lock and ends at once, \
              between SETNX and EXPIRE where there are two commands; counted are the rounds in which the lock is still \
              held after ten ttls.",
        rule: "Holds when each mistake breaks the lock in every round, and polylock never breaks; does not hold when neither \
               mistake ever does; otherwise it depends on the mistake.",
        in_quick: true,
        pictures: &[
            Draw::Bars("Rounds in which a late release let two clients hold the lock", LATE_RELEASE),
            Draw::Bars("Rounds in which the lock of a client that ended stayed held", LOST_EXPIRE),
        ],
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let Some(url) = run.url("redis") else { return };
    let rounds = run.mode.pick(3, 20);
    let lock = run.bench.lock("naive");
    let is_broken = run.bench.broken == Some(Defect::NaiveRelease);
    // Each round has a lock of its own, and sleeps most of the time: all run at the same time.
    let one_round = async |trial: Trial, round: u32| {
        let lock = format!("{lock}-{round}-{}", trial.to_string().replace(' ', "-"));
        match (trial.subject, trial.mistake) {
            (NAIVE, LATE_RELEASE) => delete_whoever_holds(&url, &lock).await,
            (NAIVE, _) => lose_expire(&url, &lock).await,
            (_, LATE_RELEASE) => release_late(&url, &lock, is_broken).await,
            _ => end_at_once(&url, &lock).await,
        }
    };
    let all_rounds = async |trial| {
        let broken = try_join_all((0..rounds).map(|round| one_round(trial, round))).await?;
        let broken = broken.into_iter().filter(|broken| *broken).count();
        Ok(broken as f64 / f64::from(rounds) * 100.0)
    };
    let parts = Trial::ALL.map(|trial| (trial, all_rounds(trial)));
    for (trial, share) in run.parts(PATIENCE, parts).await {
        run.add(Figure::new(trial.subject, trial.mistake, "%", share));
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let shares =
        |subject| Ok::<_, Failure>([figures.get(subject, LATE_RELEASE)?, figures.get(subject, LOST_EXPIRE)?]);
    let (naive, ours) = (shares(NAIVE)?, shares(OURS)?);
    let sound = ours.iter().all(|share| *share < 1e-9);
    let verdict = match naive {
        _ if naive.iter().all(|share| *share > 99.9) && sound => Verdict::Holds,
        _ if naive.iter().all(|share| *share < 1e-9) => Verdict::DoesNotHold,
        _ => Verdict::DependsOn("the mistake".into()),
    };
    let because = format!(
        "a late DEL broke the lock in {:.0}% of the rounds, a lost EXPIRE in {:.0}%; polylock broke in {:.0}% and {:.0}%",
        naive[0], naive[1], ours[0], ours[1]
    );
    Ok(Judgement::new(verdict, because))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let broke = |mistake: &&str| figures.get(OURS, mistake).is_ok_and(|share| share > 0.0);
    let mistake = [LATE_RELEASE, LOST_EXPIRE].into_iter().find(|mistake| broke(mistake))?;
    Some(format!("{mistake} broke a lock of polylock"))
}

/// A mistake, by bare commands or by polylock.
#[derive(Clone, Copy, Debug)]
struct Trial {
    subject: &'static str,
    mistake: &'static str,
}

impl Trial {
    const ALL: [Self; 4] = [
        Self { subject: NAIVE, mistake: LATE_RELEASE },
        Self { subject: OURS, mistake: LATE_RELEASE },
        Self { subject: NAIVE, mistake: LOST_EXPIRE },
        Self { subject: OURS, mistake: LOST_EXPIRE },
    ];
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.mistake, self.subject)
    }
}

const NAIVE: &str = "bare commands";
const OURS: &str = "polylock";
const LATE_RELEASE: &str = "late_release";
const LOST_EXPIRE: &str = "lost_expire";
const PATIENCE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict, and whether polylock kept its promise.
    fn judged(naive: [f64; 2], ours: [f64; 2]) -> (Verdict, bool) {
        let mut figures = Vec::new();
        for (subject, [late, lost]) in [(NAIVE, naive), (OURS, ours)] {
            figures.push(Figure::new(subject, LATE_RELEASE, "%", late));
            figures.push(Figure::new(subject, LOST_EXPIRE, "%", lost));
        }
        let figures = Figures::from(figures);
        (judge(&figures).unwrap().verdict, broken_promise(&figures).is_none())
    }

    #[test]
    fn both_mistakes_must_break_the_lock() {
        assert_eq!(judged([100.0; 2], [0.0; 2]).0, Verdict::Holds);
        assert_eq!(judged([0.0; 2], [0.0; 2]).0, Verdict::DoesNotHold);
        assert_eq!(judged([100.0, 0.0], [0.0; 2]).0, Verdict::DependsOn("the mistake".into()));
    }

    #[test]
    fn our_own_lock_must_not_break() {
        assert!(judged([100.0; 2], [0.0; 2]).1);
        assert!(!judged([100.0; 2], [5.0, 0.0]).1);
    }
}
