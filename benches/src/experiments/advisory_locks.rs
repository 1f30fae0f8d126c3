//! Claim 14: advisory locks are enough. The one of sqlx beside ours, in what befalls services.

use std::time::Duration;

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::advisory::{Site, Subject, Trial};
use crate::data::{Failure, Figure, Figures, Outcome, Verdict};

pub(super) static THIS: Experiment = Experiment {
    name: "advisory-locks",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 14,
        says: "Advisory locks are enough.",
        how: "PgAdvisoryLock of sqlx and polylock on one PostgreSQL server with 100 connections, in several rounds (one in a \
              quick run). Behind PgBouncer in transaction mode, with one session, where sqlx is tried again after an \
              error, up to 100 times: two clients try to acquire a lock at once, and a client ends with a lock, for which \
              another one waits past the pooler. Cancelled: a client drops the future of its acquisition, the holder releases, and a third one waits. Restart: the server is killed and \
              restarted while a client holds a lock that it does not know to be lost, and another one waits. Connections: one \
              client acquires 500 locks.",
        rule: "Behind the pooler the lock must not be granted twice, and must be free within 3 s of the end of its client (the \
               ttl is 1 s); after the cancellation it must be granted within 3 s; after the restart it must not be granted for 1 s \
               to another client (the ttl is 30 s); and all 500 locks must be granted. Holds when advisory locks do all of \
               that in every round; does not hold when they fail in everything; otherwise it depends on what happens.",
        pictures: &[
            Draw::Bars(Trial::ALL[0].title(), Trial::ALL[0].metric()),
            Draw::Bars(Trial::ALL[1].title(), Trial::ALL[1].metric()),
            Draw::Bars(Trial::ALL[2].title(), Trial::ALL[2].metric()),
            Draw::Bars(Trial::ALL[3].title(), Trial::ALL[3].metric()),
            Draw::Bars(Trial::ALL[4].title(), Trial::ALL[4].metric()),
        ],
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    if run.target_of("postgres").is_none() {
        return;
    }
    let rounds = run.mode.pick(1, 5);
    let measuring = async {
        let site = Site::start().await?;
        let mut figures = Vec::new();
        for subject in [Subject::Sqlx, Subject::Ours] {
            for trial in Trial::ALL {
                figures.push((subject, trial, trial.share_of_failures(&site, subject, rounds).await?));
            }
        }
        Ok(figures)
    };
    let tried = Box::pin(run.part("advisory locks", PATIENCE, measuring)).await;
    for (subject, trial, share) in tried.into_iter().flatten() {
        run.add(Figure::new(subject.name(), trial.metric(), "%", share));
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (mut failed, mut texts) = (0, Vec::new());
    for trial in Trial::ALL {
        let [theirs, ours] = [Subject::Sqlx, Subject::Ours].map(|of| figures.get(of.name(), trial.metric()));
        let (theirs, ours) = (theirs?, ours?);
        failed += usize::from(theirs > 0.0);
        texts.push(format!("{}: {theirs:.0}% and {ours:.0}%", trial.title()));
    }
    let all = Trial::ALL.len();
    let verdict =
        Verdict::of(all - failed, all, "what happens").ok_or_else(|| Failure::new("nothing was tried"))?;
    Ok(Judgement::new(verdict, format!("failures of sqlx and of polylock: {}", texts.join("; "))))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let fails =
        |trial: &Trial| figures.get(Subject::Ours.name(), trial.metric()).is_ok_and(|share| share > 0.0);
    Some(Trial::ALL.into_iter().find(fails)?.title().to_owned())
}

const PATIENCE: Duration = Duration::from_secs(180);

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(theirs: [f64; 5], ours: [f64; 5]) -> (Verdict, Option<String>) {
        let mut figures = Vec::new();
        for (subject, shares) in [(Subject::Sqlx, theirs), (Subject::Ours, ours)] {
            for (trial, share) in Trial::ALL.into_iter().zip(shares) {
                figures.push(Figure::new(subject.name(), trial.metric(), "%", share));
            }
        }
        let figures = Figures::from(figures);
        (judge(&figures).unwrap().verdict, broken_promise(&figures))
    }

    #[test]
    fn every_failure_counts() {
        assert_eq!(judged([0.0; 5], [0.0; 5]), (Verdict::Holds, None));
        assert_eq!(judged([100.0, 20.0, 100.0, 80.0, 100.0], [0.0; 5]), (Verdict::DoesNotHold, None));
        let (verdict, broken) = judged([100.0, 0.0, 0.0, 80.0, 100.0], [0.0, 0.0, 20.0, 0.0, 0.0]);
        assert_eq!(verdict, Verdict::DependsOn("what happens".into()));
        assert_eq!(broken.as_deref(), Some(Trial::Cancelled.title()));
    }
}
