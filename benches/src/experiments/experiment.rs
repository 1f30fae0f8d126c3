//! An experiment as a value: what it measures, what its metrics are called and have to reach, and the claim about its figures.
//!
//! Rounds of repeats, the check of the history, rows, labels, the console and the report are not its business: see
//! [`runner`](super::runner).

use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};

use super::bench::{Bench, Measured};
use super::claim::{Claim, Measuring};
use super::target::Target as OurTarget;
use crate::data::{BackendName, ExperimentResult, MetricResult, Outcome, Plan};
use crate::rig::Target;

/// An experiment. Its file has nothing but this value and how it measures; what several share is in `parts`.
pub(crate) struct Experiment {
    /// Its name in the results, and on the command line if it has rows.
    pub(crate) name: &'static str,
    /// One line for the report.
    pub(crate) about: &'static str,
    /// Whether it belongs to a quick run.
    pub(crate) in_quick: bool,
    /// Whether clients want the same lock, so that the runner checks their history.
    pub(crate) has_rivals: bool,
    /// Whether it stops servers, which it must not where they are not ours.
    pub(crate) stops_servers: bool,
    pub(crate) fits: fn(BackendName) -> bool,
    /// How it was measured, a line for each part: `name: text`.
    pub(crate) settings: fn(&Plan) -> String,
    /// In the order of the results. `overlaps`, `inversions` and `token_errors` come from the history.
    pub(crate) metrics: &'static [Metric],
    /// About how long it takes on one backend, for the time left.
    pub(crate) takes: fn(&Plan) -> Duration,
    /// How many times the patience of the plan it may take.
    pub(crate) parts: fn(&Plan, BackendName) -> usize,
    /// Measures rows, with the peers of the backend where it has them. Broken exclusion is no error: it shows in the events. When
    /// the future is dropped, its processes are killed and its tasks end.
    pub(crate) rows: Option<MeasureRows>,
    /// Measures figures, for the claim. A part that fails is left out: see [`Measuring::part`].
    pub(crate) figures: Option<MeasureFigures>,
    /// What people say about it, and the rule that judges the figures.
    pub(crate) claim: Option<Claim>,
}

pub(crate) type MeasureRows = for<'a> fn(&'a Bench, &'a Target) -> BoxFuture<'a, Outcome<Vec<Measured>>>;
pub(crate) type MeasureFigures = for<'a, 'b> fn(&'a mut Measuring<'b>) -> LocalBoxFuture<'a, ()>;

/// An experiment that measures nothing, to begin with.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "",
    about: "",
    in_quick: false,
    has_rivals: true,
    stops_servers: false,
    fits: |_| true,
    settings: |_| String::new(),
    metrics: &[],
    takes: |_| Duration::ZERO,
    parts: |_, _| 1,
    rows: None,
    figures: None,
    claim: None,
};

/// A number that an experiment measures.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    title: &'static str,
    meaning: &'static str,
    floor: [&'static str; 2],
    pub(crate) targets: &'static [OurTarget],
}

/// A number with its name in the results, its unit, and its name for people.
pub(crate) const fn metric(name: &'static str, unit: &'static str, title: &'static str) -> Metric {
    Metric { name, unit, title, meaning: "", floor: ["floor"; 2], targets: &[] }
}

impl Metric {
    /// What the number is compared with: the head of its column, and what it is.
    pub(crate) const fn floor(self, name: &'static str, meaning: &'static str) -> Self {
        Self { floor: [name, meaning], ..self }
    }

    /// How to read it, where that is not obvious.
    pub(crate) const fn meaning(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    /// What it has to reach.
    pub(crate) const fn targets(self, targets: &'static [OurTarget]) -> Self {
        Self { targets, ..self }
    }
}

impl Experiment {
    /// The number with this name.
    pub(crate) fn metric(&self, name: &str) -> Option<&'static Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// The settings by their names in the results.
    pub(crate) fn settings(&self, plan: &Plan) -> Vec<(String, String)> {
        let text = (self.settings)(plan);
        let of = |line: &str| {
            let (name, value) = line.trim().split_once(": ")?;
            Some((format!("{}.{name}", self.name), value.to_owned()))
        };
        text.lines().filter_map(of).collect()
    }

    /// What a reader of the results needs to know.
    pub(crate) fn described(&self) -> ExperimentResult {
        let metric = |metric: &Metric| {
            let [floor_name, floor_meaning] = metric.floor.map(str::to_owned);
            let [name, title, meaning] = [metric.name, metric.title, metric.meaning].map(str::to_owned);
            MetricResult { name, title, meaning, floor_name, floor_meaning }
        };
        ExperimentResult {
            name: self.name.to_owned(),
            about: self.about.to_owned(),
            has_rivals: self.has_rivals,
            metrics: self.metrics.iter().map(metric).collect(),
        }
    }
}
