//! The results of a run, in the shape of `results.json`.

mod claim;
mod exclusion_verdict;
mod experiment;
mod fault;
mod meta;
pub(crate) mod numbers;
mod row;
mod scenario;
mod target;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use self::claim::{ClaimResult, Figure, Lane, Picture, Span, SpanKind, Verdict};
pub(crate) use self::exclusion_verdict::ExclusionVerdict;
pub(crate) use self::experiment::{ExperimentResult, MetricResult};
pub(crate) use self::fault::{FaultResult, FaultVerdict};
pub(crate) use self::meta::{Meta, Mode};
pub(crate) use self::row::Row;
use self::row::is_overlaps;
pub(crate) use self::scenario::{Scenario, distinct};
use self::scenario::{backends, ordered};
pub(crate) use self::target::{Bound, Part, TargetResult};

/// The results of a run, in the shape of `results.json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Results {
    /// The version of this shape: it changes when a field goes or means something else.
    pub(crate) schema: u32,
    /// Where, when and how it was made.
    pub(crate) meta: Meta,
    /// The claims, and the verdicts.
    pub(crate) claims: Vec<ClaimResult>,
    /// The faults, and whether what happened was promised.
    pub(crate) faults: Vec<FaultResult>,
    /// Our targets, and what was measured of them.
    #[serde(alias = "promises")]
    pub(crate) targets: Vec<TargetResult>,
    /// What the experiments are whose rows follow.
    #[serde(default)]
    pub(crate) experiments: Vec<ExperimentResult>,
    /// The measured numbers, in the order of measurement.
    pub(crate) rows: Vec<Row>,
    /// The parts of the run that failed. Their rows may be missing.
    #[serde(default)]
    pub(crate) failures: Vec<PartFailure>,
}

/// A part of the run that failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct PartFailure {
    /// The part, such as `contended on redis`.
    pub(crate) part: String,
    /// The reason.
    pub(crate) why: String,
}

impl fmt::Display for PartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.part, self.why)
    }
}

impl Results {
    /// Results without rows.
    pub(crate) fn new(meta: Meta) -> Self {
        Self {
            schema: SCHEMA,
            meta,
            claims: Vec::new(),
            faults: Vec::new(),
            targets: Vec::new(),
            experiments: Vec::new(),
            rows: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Makes results of an earlier version, which describe no experiments, those of this one.
    pub(crate) fn upgrade(&mut self, experiments: impl IntoIterator<Item = ExperimentResult>) {
        if self.schema < SCHEMA {
            (self.schema, self.experiments) = (SCHEMA, experiments.into_iter().collect());
        }
    }

    /// Adds a part that failed.
    pub(crate) fn fail(&mut self, part: &str, why: impl fmt::Display) {
        self.failures.push(PartFailure { part: part.to_owned(), why: why.to_string() });
    }

    /// Whether any claim was measured, or should have been.
    pub(crate) fn has_claims(&self) -> bool {
        let was_run = |claim: &ClaimResult| {
            claim.verdict != Verdict::NotJudged || !claim.missing.is_empty() || !claim.figures.is_empty()
        };
        self.claims.iter().any(was_run)
    }

    /// Joins the rows of repeats, which begin at these indices, the last one up to the end: a row has the median of all, and
    /// the sum of the overlaps.
    pub(crate) fn join_repeats(&mut self, starts: &[usize]) {
        let (Some(&first), true) = (starts.first(), starts.len() > 1) else { return };
        let rows = self.rows.split_off(first);
        let ends = starts.iter().skip(1).map(|start| start - first).chain([rows.len()]);
        let repeats: Vec<&[Row]> = starts
            .iter()
            .map(|start| start - first)
            .zip(ends)
            .map(|(from, until)| &rows[from..until])
            .collect();
        for row in &rows {
            if self.rows[first..].iter().any(|other| other.is_about_the_same(row)) {
                continue;
            }
            let found =
                |repeat: &&'_ [Row]| repeat.iter().rev().find(|other| other.is_about_the_same(row)).cloned();
            let found: Vec<Row> = repeats.iter().filter_map(found).collect();
            let joined = if is_overlaps(row) {
                let all = rows.iter().filter(|other| other.is_about_the_same(row));
                Row { value: all.map(|row| row.value).sum(), ..row.clone() }
            } else {
                Row::joined(&found).unwrap_or_else(|| row.clone())
            };
            self.rows.push(joined);
        }
    }

    /// A number of a scenario; the last one when it was measured more than once.
    pub(crate) fn row(&self, scenario: &str, backend: &str, metric: &str) -> Option<&Row> {
        let mut rows = self.rows.iter().rev();
        rows.find(|row| row.scenario == scenario && row.backend == backend && row.metric == metric)
    }

    /// Adds a measured number.
    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The rows by scenario.
    pub(crate) fn scenarios(&self) -> Vec<Scenario<'_>> {
        self.scenarios_from(0)
    }

    /// The rows from this one on, by scenario.
    pub(crate) fn scenarios_from(&self, first: usize) -> Vec<Scenario<'_>> {
        Scenario::all_in(&self.experiments, &self.rows[first..])
    }

    /// The targets of this backend.
    pub(crate) fn targets_of(&self, backend: &str) -> impl Iterator<Item = &TargetResult> {
        self.targets.iter().filter(move |result| result.by == backend)
    }

    /// The name of a metric for people, by the first experiment that has it.
    pub(crate) fn title(&self, metric: &str) -> String {
        let mut all = self.experiments.iter().flat_map(|one| &one.metrics);
        let found = all.find(|described| described.name == metric);
        found.map_or_else(|| metric.replace('_', " "), |described| described.title.clone())
    }

    /// The backends of all scenarios: the known ones first. Those without rivals are about many subjects of a backend.
    pub(crate) fn backends(&self) -> Vec<&str> {
        let known = backends();
        let names = self.rows.iter().filter_map(|row| match row.backend.as_str() {
            name if self.has_rivals(&row.scenario) => Some(name),
            name => name.split_whitespace().next().filter(|first| known.contains(first)),
        });
        ordered(names, &known)
    }

    fn has_rivals(&self, scenario: &str) -> bool {
        self.experiments.iter().find(|one| one.name == scenario).is_none_or(|one| one.has_rivals)
    }

    /// The verdict on all scenarios: broken if any part is, and held only if every part was checked.
    pub(crate) fn verdict(&self) -> ExclusionVerdict {
        let scenarios = self.scenarios();
        let with_rivals = scenarios.iter().filter(|scenario| scenario.has_rivals());
        ExclusionVerdict::of_all(with_rivals.flat_map(|scenario| {
            scenario.backends().into_iter().map(|backend| scenario.verdict(backend)).collect::<Vec<_>>()
        }))
    }

    /// Reads a `results.json`.
    pub(crate) fn read(file: &Path) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot read {}: {error}", file.display()))
        };
        let text = std::fs::read_to_string(file).map_err(named)?;
        serde_json::from_str(&text).map_err(|error| named(error.into()))
    }

    /// Writes `results.json` into `folder`, which is created if necessary, and returns the path.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        write_file(folder, "results.json", &json)
    }
}

/// Writes a file; an error names it.
pub(crate) fn write_file(folder: &Path, name: &str, text: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    std::fs::create_dir_all(folder).map_err(named)?;
    std::fs::write(&path, text).map_err(named)?;
    Ok(path)
}

/// Realistic results, for the tests of everything that shows results.
#[cfg(test)]
pub(crate) fn sample() -> Results {
    serde_json::from_str(include_str!("results/sample.json")).expect("it was written by hand")
}

const SCHEMA: u32 = 2;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_has_the_documented_shape() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(
            json["rows"][5],
            json!({
                "scenario": "uncontended",
                "backend": "redis",
                "metric": "p50",
                "unit": "us",
                "value": 88.2,
                "floor": 78.1,
                "ratio": 1.1293,
                "samples": [],
            })
        );
        assert_eq!(json["rows"][0]["floor"], json!(null));
        assert_eq!(json["rows"][0]["ratio"], json!(null));
        let top: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(top, ["claims", "experiments", "failures", "faults", "meta", "rows", "schema", "targets"]);
        let meta: Vec<&str> = json["meta"].as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "command cores cpu date duration_s interrupted kernel mode note others postgres redis repeats settings version zookeeper";
        assert_eq!(meta.join(" "), expected);
        assert_eq!(json["meta"]["mode"], "quick");
    }

    #[test]
    fn every_field_is_documented() {
        let document = include_str!("../../../docs/RESULTS.md");
        let mut names = std::collections::BTreeSet::new();
        let mut results = sample();
        results.fail("crash on zk", "stuck");
        collect(&serde_json::to_value(results).unwrap(), &mut names);
        assert!(names.len() > 60, "{names:?}");
        let undocumented: Vec<_> =
            names.into_iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
        assert_eq!(undocumented, Vec::<String>::new());
        assert!(document.contains(&format!("the version of this shape, {SCHEMA}.")));
    }

    fn collect(json: &serde_json::Value, names: &mut std::collections::BTreeSet<String>) {
        match json {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    names.insert(name.clone());
                    // The names of the settings are those of the scenarios.
                    if name != "settings" {
                        collect(value, names);
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, names)),
            _ => {}
        }
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = sample().write(&folder.path().join("new/folder")).unwrap();
        assert_eq!(Results::read(&path).unwrap(), sample());
    }

    #[test]
    fn known_names_come_first_and_unknown_ones_are_kept() {
        let mut results = Results::new(sample().meta);
        for (scenario, backend, metric) in [
            ("zeal_of_all", "etcd", "zeal"),
            ("crash", "zk", "takeover"),
            ("zeal_of_all", "redis", "p50"),
            ("zeal_of_all", "aaa", "ops"),
        ] {
            results.push(Row::new(scenario, backend, metric, "", 1.0));
        }
        let scenarios = results.scenarios();
        assert_eq!(
            scenarios.iter().map(|scenario| scenario.name).collect::<Vec<_>>(),
            ["zeal_of_all", "crash"]
        );
        assert_eq!(scenarios[0].backends(), ["redis", "etcd", "aaa"]);
        assert_eq!(scenarios[0].metrics(), ["zeal", "p50", "ops"]);
        assert_eq!(results.backends(), ["redis", "zk", "etcd", "aaa"]);
    }

    #[test]
    fn the_verdict_is_that_of_the_worst_part() {
        let mut results = sample();
        assert_eq!(results.verdict(), ExclusionVerdict::Held);
        results.push(Row::new("contended", "etcd", "jain", "", 1.0));
        assert_eq!(results.verdict(), ExclusionVerdict::Unchecked);
        results.push(Row::overlaps("crash", "zk", 2));
        results.push(Row::overlaps("contended", "zk", 1));
        assert_eq!(results.verdict(), ExclusionVerdict::Broken(3));
        assert_eq!(Results::new(sample().meta).verdict(), ExclusionVerdict::Unchecked);
    }

    #[test]
    fn repeats_are_joined_by_their_median_and_overlaps_by_their_sum() {
        let mut results = Results::new(sample().meta);
        results.push(Row::new("contended", "zk", "p50", "us", 1.0));
        let mut starts = Vec::new();
        for (value, overlaps) in [(3.0, 0), (1.0, 2), (2.0, 1)] {
            starts.push(results.rows.len());
            // Within a repeat the last one counts.
            results.push(Row::new("contended", "redis", "p50", "us", 99.0));
            results.push(Row::new("contended", "redis", "p50", "us", value).with_floor(1.0));
            results.push(Row::overlaps("contended", "redis", overlaps));
        }
        results.join_repeats(&starts);
        let joined = Row { samples: vec![3.0, 1.0, 2.0], ..Row::new("contended", "redis", "p50", "us", 2.0) };
        assert_eq!(results.rows[1..], [joined.with_floor(1.0), Row::overlaps("contended", "redis", 3)]);
        assert_eq!(results.rows.len(), 3);
    }
}
