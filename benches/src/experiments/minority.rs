//! Claim 7: Redlock survives the loss of a minority of its masters.

use std::time::Duration;

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::trouble::{OURS, Trouble, attempts_in};
use crate::data::{Figure, Figures, Latency, Outcome, Verdict};

pub(super) static THIS: Experiment = Experiment {
    name: "minority",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 7,
        says: "Redlock survives the loss of a minority of its masters.",
        how: "One client acquires and releases a free lock over five masters, while so many of them are lost (connections \
              end, and new ones are refused), hang (nothing is answered), are slow (each message takes 20 ms longer), or \
              have just reset all connections. Counted are the attempts that succeed within a second, and their time.",
        rule: "Holds when at least 95 % of the attempts succeed with up to two masters in trouble of every kind, and none \
               with three that are lost or hang; does not hold when they do for no kind; otherwise it depends on the fault. A lock that is granted while \
               three or more are lost or hang breaks what polylock promises.",
        pictures: &[
            Draw::Curve(
                "Attempts that succeed, in percent: masters that are lost",
                Trouble::Lost.metric(),
                "masters",
            ),
            Draw::Curve(
                "Attempts that succeed, in percent: masters that hang",
                Trouble::Hung.metric(),
                "masters",
            ),
            Draw::Curve(
                "Attempts that succeed, in percent: masters that are slow",
                Trouble::Slow.metric(),
                "masters",
            ),
            Draw::Curve(
                "Attempts that succeed, in percent: masters that reset connections",
                Trouble::Reset.metric(),
                "masters",
            ),
        ],
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let Some(url) = run.url("redlock") else { return };
    let attempts = run.mode.pick(5, 12);
    for trouble in Trouble::ALL {
        for masters in 0..=5 {
            for subject in [OURS, PEER] {
                // Names of their own: a lock that could not be released lasts for its ttl.
                let lock = run.bench.lock(&format!("minority-{}-{masters}-{subject}", trouble.metric()));
                let name = format!("{subject}, {masters} masters {trouble}");
                let part = attempts_in(&url, &lock, trouble, masters, attempts, subject);
                let measured = match subject {
                    OURS => run.part(&name, PATIENCE, part).await,
                    _ => run.part_of_a_peer(&name, PATIENCE, part).await,
                };
                if let Some((share, latency)) = measured {
                    add(run, subject, trouble, masters as u32, share, &latency);
                }
            }
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (mut survives, mut texts) = (0, Vec::new());
    for trouble in Trouble::ALL {
        let share = |masters: u32| figures.at(OURS, trouble.metric(), f64::from(masters));
        let minority = share(1)?.min(share(2)?);
        let majority = share(3)?;
        texts.push(format!("{minority:.0} % with up to two that {trouble} and {majority:.0} % with three"));
        let is_expected = minority >= ENOUGH && (!trouble.is_a_loss() || majority < 1e-9);
        survives += usize::from(is_expected);
    }
    let verdict = Verdict::of(survives, Trouble::ALL.len(), "the fault").unwrap_or(Verdict::NotJudged);
    Ok(Judgement::new(verdict, format!("attempts that succeed: {}", texts.join(", "))))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let losses = Trouble::ALL.into_iter().filter(|trouble| trouble.is_a_loss());
    let mut majorities = losses.flat_map(|trouble| (3..=5_u32).map(move |masters| (trouble, masters)));
    let granted = |trouble: Trouble, masters| {
        figures.at(OURS, trouble.metric(), f64::from(masters)).is_ok_and(|share| share > 0.0)
    };
    let (trouble, masters) = majorities.find(|(trouble, masters)| granted(*trouble, *masters))?;
    Some(format!("a lock was granted while {masters} of five masters {trouble}"))
}

fn add(
    run: &mut Measuring<'_>,
    subject: &str,
    trouble: Trouble,
    masters: u32,
    share: f64,
    latency: &Latency,
) {
    run.add(Figure::new(subject, trouble.metric(), "%", share).at(masters));
    if latency.len() > 0 {
        let metric = trouble.metric().replace("success", "p50");
        run.add(Figure::new(subject, &metric, "us", latency.quantile_us(0.5)).at(masters));
    }
}

const PEER: &str = "rslock";
/// In percent.
const ENOUGH: f64 = 95.0;
const PATIENCE: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict, and whether polylock kept its promise.
    fn judged(share: impl Fn(Trouble, u32) -> f64) -> (Verdict, bool) {
        let mut figures = Vec::new();
        for trouble in Trouble::ALL {
            for masters in 0..=5 {
                let share = share(trouble, masters);
                figures.push(Figure::new(OURS, trouble.metric(), "%", share).at(masters));
            }
        }
        let figures = Figures::from(figures);
        (judge(&figures).unwrap().verdict, broken_promise(&figures).is_none())
    }

    #[test]
    fn a_minority_must_not_matter_and_a_majority_must() {
        let sound = |trouble: Trouble, masters| if trouble.is_a_loss() && masters > 2 { 0.0 } else { 100.0 };
        assert_eq!(judged(sound), (Verdict::Holds, true));
        assert_eq!(judged(|_, _| 0.0), (Verdict::DoesNotHold, true));
        let hung = |trouble, masters| if trouble == Trouble::Hung { 0.0 } else { sound(trouble, masters) };
        assert_eq!(judged(hung), (Verdict::DependsOn("the fault".into()), true));
        // A lock by two of five excludes nobody.
        assert_eq!(judged(|_, _| 100.0), (Verdict::DependsOn("the fault".into()), false));
        let four = |trouble, masters| if masters == 4 { 3.0 } else { sound(trouble, masters) };
        assert_eq!(judged(four), (Verdict::Holds, false));
    }
}
