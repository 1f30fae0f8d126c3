//! Claim 10: clock jumps and restarts break Redlock.

use crate::experiments::faults::Trial;
use crate::experiments::parts::trials::{OVERLAPS, TWO_VALID, VALID_OVERLAPS, add_trial, broken};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "forgetful-masters",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 10,
        says: "Clock jumps and restarts break Redlock.",
        how: "A process holds a lock over five masters, and others try to acquire it. The key ends early, as after a jump of the clock, \
              on two masters, once all five have granted it, and on three; a master that was needed for the majority is \
              killed and restarted without its data, with polylock's quarantine (it does not vote for the longest ttl) and without. Counted are \
              overlapping holds, and those of two valid guards.",
        rule: "Holds when two guards are valid at once after a jump on a majority and after a restart, the quarantine \
               notwithstanding; does not hold when they never are; otherwise it depends on how many clocks jump and on \
               the quarantine. Two valid guards after a jump on a minority, or in spite of the quarantine, break what \
               polylock promises.",
        pictures: || vec![bars("Holds that overlap by wall time", OVERLAPS)],
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
    let mut valid = [0.0; 4];
    for (count, subject) in valid.iter_mut().zip([MINORITY, MAJORITY, QUARANTINE, UNGUARDED]) {
        *count = figures.get(subject, VALID_OVERLAPS)?;
    }
    let [minority, majority, quarantine, unguarded] = valid;
    let verdict = match valid.map(|count| count > 0.0) {
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
    broken(figures, [MINORITY, QUARANTINE], VALID_OVERLAPS, TWO_VALID)
}

const MINORITY: &str = "redlock, key ended on two masters";
const MAJORITY: &str = "redlock, key ended on three masters";
const QUARANTINE: &str = "redlock, restart with quarantine";
const UNGUARDED: &str = "redlock, restart without quarantine";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;
    use crate::experiments::parts::trials::figures_of;

    #[test]
    fn the_quarantine_and_the_majority_decide() {
        let by = |valid: [f64; 4]| {
            let all = [MINORITY, MAJORITY, QUARANTINE, UNGUARDED].into_iter().zip(valid);
            judged(&THIS, all.flat_map(|(subject, valid)| figures_of(subject, [valid, valid, 0.0, 0.0])))
        };
        let depends = Verdict::DependsOn("how many clocks jump, and on the quarantine".into());
        assert_eq!(by([0.0, 1.0, 0.0, 1.0]), (depends.clone(), true));
        assert_eq!(by([0.0; 4]).0, Verdict::DoesNotHold);
        assert_eq!(by([1.0, 0.0, 0.0, 0.0]).0, depends);
        assert_eq!(by([0.0, 1.0, 1.0, 1.0]), (Verdict::Holds, false), "the quarantine did not help");
        assert!(!by([1.0, 1.0, 0.0, 1.0]).1, "a minority was enough");
    }
}
