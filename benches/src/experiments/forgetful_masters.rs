//! Claim 10: clock jumps and restarts break Redlock.

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::trials::{OVERLAPS, add_trial, counted, two_valid};
use crate::data::{BackendName, Defect, Failure, Fault, Figures, Outcome, Verdict};
use crate::experiments::faults::Trial;

pub(super) static THIS: Experiment = Experiment {
    name: "forgetful-masters",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 10,
        says: "Clock jumps and restarts break Redlock.",
        how: "A process holds a lock over five masters, and others try to acquire it. The key ends early, as after a jump of the clock, \
              on two masters and on three; a master that was needed for the majority is killed and restarted without \
              its data, with polylock's quarantine (it does not vote for the longest ttl) and without. Counted are \
              overlapping holds, and those of two valid guards.",
        rule: "Holds when two guards are valid at once after a jump on a majority and after a restart, the quarantine \
               notwithstanding; does not hold when they never are; otherwise it depends on how many clocks jump and on \
               the quarantine. Two valid guards after a jump on a minority, or in spite of the quarantine, break what \
               polylock promises.",
        pictures: &[Draw::Bars("Holds that overlap by wall time", OVERLAPS)],
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    if run.target_of("redlock").is_none() {
        return;
    }
    let trial = |fault| Trial::of(BackendName::Redlock, fault);
    let unguarded = trial(Fault::RestartWithoutData).broken_by(Defect::NoQuarantine);
    for (subject, trial) in [
        (MINORITY, trial(Fault::KeyEndedOnMinority)),
        (MAJORITY, trial(Fault::KeyEnded)),
        (QUARANTINE, trial(Fault::RestartWithoutData)),
        (UNGUARDED, unguarded),
    ] {
        add_trial(run, subject, trial).await;
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let valid = |subject| Ok::<_, Failure>(counted(figures, subject)?.valid);
    let [minority, majority] = [valid(MINORITY)?, valid(MAJORITY)?];
    let [quarantine, unguarded] = [valid(QUARANTINE)?, valid(UNGUARDED)?];
    let verdict = match [minority, majority, quarantine, unguarded].map(|count| count > 0.0) {
        [_, true, true, _] => Verdict::Holds,
        [false, false, false, false] => Verdict::DoesNotHold,
        _ => Verdict::DependsOn("how many clocks jump, and on the quarantine".into()),
    };
    let because = format!(
        "times that two guards were valid: {minority:.0} when the key ended on two masters, {majority:.0} on three, \
         {unguarded:.0} after a restart without data, {quarantine:.0} with the quarantine"
    );
    Ok(Judgement::new(verdict, because))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    two_valid(figures, [MINORITY, QUARANTINE])
}

const MINORITY: &str = "redlock, key ended on two masters";
const MAJORITY: &str = "redlock, key ended on three masters";
const QUARANTINE: &str = "redlock, restart with quarantine";
const UNGUARDED: &str = "redlock, restart without quarantine";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::parts::trials::figures_of;

    /// The verdict, and whether polylock kept its promise.
    fn judged([minority, majority, quarantine, unguarded]: [f64; 4]) -> (Verdict, bool) {
        let all =
            [(MINORITY, minority), (MAJORITY, majority), (QUARANTINE, quarantine), (UNGUARDED, unguarded)];
        let figures = all.iter().flat_map(|(subject, valid)| figures_of(subject, [*valid, *valid, 0.0, 0.0]));
        let figures = Figures::from(figures.collect::<Vec<_>>());
        let is_kept = broken_promise(&figures).is_none();
        (judge(&figures).unwrap().verdict, is_kept)
    }

    #[test]
    fn the_quarantine_and_the_majority_decide() {
        let depends = Verdict::DependsOn("how many clocks jump, and on the quarantine".into());
        assert_eq!(judged([0.0, 1.0, 0.0, 1.0]), (depends.clone(), true));
        assert_eq!(judged([0.0; 4]).0, Verdict::DoesNotHold);
        assert_eq!(judged([1.0, 0.0, 0.0, 0.0]).0, depends);
        assert_eq!(judged([0.0, 1.0, 1.0, 1.0]).0, Verdict::Holds);
        assert!(!judged([0.0, 1.0, 1.0, 1.0]).1, "the quarantine did not help");
        assert!(!judged([1.0, 1.0, 0.0, 1.0]).1, "a minority was enough");
    }
}
