//! Runs experiments: what all of them need, and none does itself.

use lock_testkit::history::History;

use super::bench::{Bench, Measured};
use super::claim::Measuring;
use super::experiment::{Experiment, MeasureRows};
use crate::data::exclusion::Findings;
use crate::data::{ClaimResult, Peer, Results, Row};
use crate::rig::{Target, stuck};

/// Measures the rows of an experiment on one backend, so many times, and adds them to the results. Returns what went wrong.
pub(crate) async fn add_rows(
    experiment: &Experiment,
    measure: MeasureRows,
    bench: &Bench,
    target: &Target,
    repeats: u32,
    results: &mut Results,
) -> Vec<String> {
    let (mut starts, mut complaints) = (Vec::new(), Vec::new());
    let patience = bench.plan.patience * (experiment.parts)(&bench.plan, target.backend()) as u32;
    for _ in 0..repeats {
        starts.push(results.rows.len());
        match stuck::within(patience, measure(bench, target)).await {
            Ok(all) => {
                for measured in all {
                    complaints.extend(add(experiment, measured, results).await);
                }
            }
            Err(failure) => complaints.push(failure.to_string()),
        }
    }
    results.join_repeats(&starts);
    complaints
}

/// Measures the figures of an experiment, and judges them by its claim.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
pub(crate) async fn judge(
    experiment: &Experiment,
    bench: &Bench,
    targets: &[Target],
    rows: &Results,
) -> Option<ClaimResult> {
    let claim = experiment.claim.as_ref()?;
    let mut run = Measuring::new(bench, targets, rows);
    if let Some(figures) = experiment.figures {
        figures(&mut run).await;
    }
    Some(run.judged(claim))
}

/// Adds what was measured to the results, checks the history, and returns what went wrong.
async fn add(experiment: &Experiment, measured: Measured, results: &mut Results) -> Vec<String> {
    let Measured { backend, rows, events, notes, mut complaints } = measured;
    let name = experiment.name;
    let mut push = |row: Row| match experiment.metric(&row.metric) {
        Some(metric) => results.push(Row {
            scenario: name.to_owned(),
            backend: backend.clone(),
            unit: metric.unit.to_owned(),
            ..row
        }),
        None => complaints.push(format!("`{}` is no metric of {name}", row.metric)),
    };
    rows.into_iter().for_each(&mut push);
    if experiment.has_rivals {
        // A long history takes long to check: not on a thread of the runtime.
        let checked = match tokio::task::spawn_blocking(move || Findings::of(&History::new(events))).await {
            Ok(checked) => checked,
            Err(error) => return vec![format!("the history could not be checked: {error}")],
        };
        for (metric, value) in
            [("inversions", checked.inversions()), ("token_errors", checked.token_errors() as f64)]
        {
            if experiment.metric(metric).is_some() {
                push(Row::of(metric, value));
            }
        }
        results.push(Row::overlaps(name, &backend, checked.l1.count as u64));
        if Peer::named(&backend).is_some() && checked.l1.count > 0 {
            // A finding about another library, not a failure of the run.
            let finding = format!("{backend}: {}", checked.of_scenario().join("\n"));
            note(results, &format!("{name}.broken"), "; ", &finding);
        } else {
            complaints.extend(checked.of_scenario());
        }
    }
    for (what, value) in notes {
        note(results, &format!("{name}.{what}"), ", ", &format!("{backend} {value}"));
    }
    complaints
}

/// Adds to a setting of the report.
fn note(results: &mut Results, name: &str, between: &str, text: &str) {
    let setting = results.meta.settings.entry(name.to_owned()).or_default();
    if !setting.is_empty() {
        setting.push_str(between);
    }
    setting.push_str(text);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum;

    use super::*;
    use crate::data::{BackendName, Meta, Mode, Plan};
    use crate::experiments::experiment::{EXPERIMENT, metric};
    use crate::experiments::list::EXPERIMENTS;

    #[test]
    fn experiments_are_whole() {
        let names: BTreeSet<_> = EXPERIMENTS.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), EXPERIMENTS.len(), "a name twice");
        for one in EXPERIMENTS {
            assert!(!one.name.is_empty() && one.name == one.name.to_lowercase(), "{}", one.name);
            assert!(one.rows.is_some() || one.figures.is_some(), "{} measures nothing", one.name);
            assert_eq!(one.figures.is_some(), one.claim.is_some(), "{}: figures without a claim", one.name);
            let fits = BackendName::value_variants().iter().any(|backend| (one.fits)(*backend));
            assert!(
                one.rows.is_none() || !one.about.is_empty() && !one.metrics.is_empty() && fits,
                "{}",
                one.name
            );
            for plan in [Mode::Quick, Mode::Full].map(Plan::new) {
                let text = (one.settings)(&plan);
                assert_eq!(text.trim().lines().count(), one.settings(&plan).len(), "{text}");
            }
        }
    }

    #[tokio::test]
    async fn a_metric_that_is_not_declared_is_a_failure() {
        const METRICS: &[crate::experiments::experiment::Metric] = &[metric("p50", "us", "p50")];
        let one = Experiment { name: "one", has_rivals: false, metrics: METRICS, ..EXPERIMENT };
        let mut results = Results::new(Meta::of_this_run(Mode::Quick));
        let rows = vec![Row::of("p50", 7.0), Row::of("p51", 8.0)];
        let complaints = add(&one, Measured::of("redis", rows), &mut results).await;
        assert_eq!(complaints, ["`p51` is no metric of one"]);
        assert_eq!(results.rows, [Row::new("one", "redis", "p50", "us", 7.0)]);
    }
}
