//! Claim 8: ZooKeeper is not absolutely safe either.

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::trials::{OVERLAPS, UNFENCED, add_trials, counted, stale_writes, two_valid};
use crate::data::{Fault, Figures, Outcome, Verdict};
use crate::experiments::faults::Trial;

pub(super) static THIS: Experiment = Experiment {
    name: "paused-holder",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 8,
        says: "ZooKeeper is not absolutely safe either: a client that pauses for long acts on a lock that another one has.",
        how: "A process that holds a lock and writes under it is stopped by SIGSTOP until another one has the lock, and goes \
              on. Counted are holds that overlap by wall time, those in which both guards were valid, and the late \
              writes that a store accepts which compares fencing tokens, and one that does not.",
        rule: "Holds when holds overlap, or a store without tokens accepts late writes, on Redis, Redlock and ZooKeeper; does \
               not hold when neither happens on ZooKeeper; otherwise it depends on the backend. Two valid guards, or a late write past tokens, break what polylock \
               promises.",
        in_quick: true,
        pictures: &[
            Draw::Bars("Holds that overlap by wall time", OVERLAPS),
            Draw::Bars("Late writes that a store without tokens accepts", UNFENCED),
        ],
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let trial = |backend| Some(Trial::of(run.target_of(backend)?.backend(), Fault::ClientPaused));
    let trials: Vec<_> = SUBJECTS.into_iter().filter_map(|name| Some((name, trial(name)?))).collect();
    add_trials(run, &trials).await;
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (mut harmed, mut texts) = (Vec::new(), Vec::new());
    for subject in SUBJECTS {
        let counted = counted(figures, subject)?;
        if counted.overlaps > 0.0 || counted.stale_without_tokens > 0.0 {
            harmed.push(subject);
        }
        texts.push(format!(
            "{subject} {:.0} overlaps, {:.0} of valid guards, {:.0} late writes without tokens and {:.0} with them",
            counted.overlaps, counted.valid, counted.stale_without_tokens, counted.stale
        ));
    }
    let verdict = match (harmed.contains(&"zk"), harmed.len() == SUBJECTS.len()) {
        (true, true) => Verdict::Holds,
        (true, false) => Verdict::DependsOn("the backend".into()),
        (false, _) => Verdict::DoesNotHold,
    };
    Ok(Judgement::new(verdict, texts.join("; ")))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    two_valid(figures, SUBJECTS).or_else(|| stale_writes(figures, SUBJECTS))
}

const SUBJECTS: [&str; 3] = ["redis", "redlock", "zk"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::parts::trials::figures_of;

    /// The verdict, and whether polylock kept its promise.
    fn judged(zk: [f64; 4]) -> (Verdict, bool) {
        let paused = [1.0, 0.0, 0.0, 3.0];
        let all = [("redis", paused), ("redlock", paused), ("zk", zk)];
        let figures = all.iter().flat_map(|(subject, counted)| figures_of(subject, *counted));
        let figures = Figures::from(figures.collect::<Vec<_>>());
        (judge(&figures).unwrap().verdict, broken_promise(&figures).is_none())
    }

    #[test]
    fn overlaps_decide_and_tokens_must_help() {
        assert_eq!(judged([1.0, 0.0, 0.0, 3.0]), (Verdict::Holds, true));
        assert_eq!(judged([0.0; 4]), (Verdict::DoesNotHold, true));
        assert!(!judged([1.0, 1.0, 0.0, 3.0]).1, "two guards were valid");
        assert!(!judged([1.0, 0.0, 2.0, 3.0]).1, "a store that compares tokens took a late write");
    }
}
