//! Claim 8: ZooKeeper is not absolutely safe either.

use crate::experiments::faults::Trial;
use crate::experiments::parts::trials::{
    OVERLAPS, STALE_WRITES, TWO_VALID, UNFENCED, VALID_OVERLAPS, add_trials, broken,
};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
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
        pictures: || {
            vec![
                bars("Holds that overlap by wall time", OVERLAPS),
                bars("Late writes that a store without tokens accepts", UNFENCED),
            ]
        },
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
        let of = |metric| figures.get(subject, metric);
        let (overlaps, valid, unfenced, stale) =
            (of(OVERLAPS)?, of(VALID_OVERLAPS)?, of(UNFENCED)?, of(STALE_WRITES)?);
        if overlaps > 0.0 || unfenced > 0.0 {
            harmed.push(subject);
        }
        texts.push(format!(
            "{subject} {overlaps:.0} overlaps, {valid:.0} of valid guards, {unfenced:.0} late writes without tokens and {stale:.0} with them"
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
    let stale =
        || broken(figures, SUBJECTS, STALE_WRITES, "a store that compares tokens accepted a late write");
    broken(figures, SUBJECTS, VALID_OVERLAPS, TWO_VALID).or_else(stale)
}

const SUBJECTS: [&str; 3] = ["redis", "redlock", "zk"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;
    use crate::experiments::parts::trials::figures_of;

    #[test]
    fn overlaps_decide_and_tokens_must_help() {
        let by = |zk: [f64; 4]| {
            let paused = [1.0, 0.0, 0.0, 3.0];
            let all = [("redis", paused), ("redlock", paused), ("zk", zk)].into_iter();
            judged(&THIS, all.flat_map(|(subject, counted)| figures_of(subject, counted)))
        };
        assert_eq!(by([1.0, 0.0, 0.0, 3.0]), (Verdict::Holds, true));
        assert_eq!(by([0.0; 4]), (Verdict::DoesNotHold, true));
        assert!(!by([1.0, 1.0, 0.0, 3.0]).1, "two guards were valid");
        assert!(!by([1.0, 0.0, 2.0, 3.0]).1, "a store that compares tokens took a late write");
    }
}
