//! Faults of the fault table as figures of a claim.

use std::time::Duration;

use crate::data::timeline::timeline;
use crate::experiments::faults::{Happened, Trial, happen};
use crate::experiments::prelude::*;

/// Runs faults at the same time, and adds what happened as figures of their subjects. Each has servers of its own, and
/// waits most of the time.
pub(crate) async fn add_trials(run: &mut Measuring<'_>, trials: &[(&str, Trial)]) {
    let broken = run.bench.broken;
    let all = trials.iter().map(|(subject, trial)| {
        let trial = broken.map_or(*trial, |defect| trial.or_broken_by(defect));
        (*subject, happen(trial))
    });
    for (subject, happened) in run.parts(PATIENCE, all).await {
        add(run, subject, &happened);
    }
}

/// Runs one fault, and adds what happened as figures of this subject.
pub(crate) async fn add_trial(run: &mut Measuring<'_>, subject: &str, trial: Trial) {
    add_trials(run, &[(subject, trial)]).await;
}

fn add(run: &mut Measuring<'_>, subject: &str, happened: &Happened) {
    let result = &happened.result;
    let figures = [
        (OVERLAPS, "", result.l1 as f64),
        (VALID_OVERLAPS, "", result.l2 as f64),
        (STALE_WRITES, "", result.l3 as f64),
        (UNFENCED, "", result.unfenced as f64),
        (OUTAGE, "ms", result.outage_ms),
    ];
    for (metric, unit, value) in figures {
        run.add(Figure::new(subject, metric, unit, value));
    }
    let (from_ns, until_ns) = (happened.from_ns.saturating_sub(BEFORE_NS), happened.end_ns);
    run.draw(timeline(subject, happened.history.events(), from_ns, until_ns));
}

/// The subject of which anything was counted by this metric, and what that is.
pub(crate) fn broken<'a>(
    figures: &Figures,
    subjects: impl IntoIterator<Item = &'a str>,
    metric: &str,
    what: &str,
) -> Option<String> {
    let is_broken = |subject: &&str| figures.get(subject, metric).is_ok_and(|count| count > 0.0);
    Some(format!("{}: {what}", subjects.into_iter().find(is_broken)?))
}

/// Figures of a subject, for tests of claims: overlaps, those of valid guards, and stale writes with and without tokens.
#[cfg(test)]
pub(crate) fn figures_of(subject: &str, [l1, l2, l3, unfenced]: [f64; 4]) -> Vec<Figure> {
    let numbers = [(OVERLAPS, l1), (VALID_OVERLAPS, l2), (STALE_WRITES, l3), (UNFENCED, unfenced)];
    numbers.into_iter().map(|(metric, value)| Figure::new(subject, metric, "", value)).collect()
}

/// Holds that overlapped by wall time.
pub(crate) const OVERLAPS: &str = "overlaps";
/// Of these, where both guards were valid.
pub(crate) const VALID_OVERLAPS: &str = "valid_overlaps";
/// Writes of an earlier holder that a store which compares tokens accepted.
pub(crate) const STALE_WRITES: &str = "stale_writes";
/// And one that does not.
pub(crate) const UNFENCED: &str = "stale_writes_without_tokens";
pub(crate) const TWO_VALID: &str = "two guards were valid at once";
pub(crate) const OUTAGE: &str = "outage";
/// How much of the time before the fault is drawn.
const BEFORE_NS: u64 = 500_000_000;
const PATIENCE: Duration = Duration::from_secs(90);
