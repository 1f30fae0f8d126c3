//! The results of a run: rows (a number, its floor and their ratio), and the verdict on mutual exclusion.

mod claim;
mod fault;
pub(crate) mod labels;
mod meta;
mod promise_result;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use self::claim::{ClaimResult, Figure, Lane, Picture, Span, SpanKind, Verdict};
pub(crate) use self::fault::{FaultResult, FaultVerdict};
pub(crate) use self::meta::{Meta, Mode};
pub(crate) use self::promise_result::{Bound, Part, PromiseResult};

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
    /// The promises, and what was measured of them.
    pub(crate) promises: Vec<PromiseResult>,
    /// The measured numbers, in the order of measurement.
    pub(crate) rows: Vec<Row>,
}

impl Results {
    /// Results without rows.
    pub(crate) fn new(meta: Meta) -> Self {
        Self {
            schema: SCHEMA,
            meta,
            claims: Vec::new(),
            faults: Vec::new(),
            promises: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a measured number.
    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The rows by scenario: the known ones first, then any other in the order of their first row.
    pub(crate) fn scenarios(&self) -> Vec<Scenario<'_>> {
        let names = ordered(self.rows.iter().map(|row| row.scenario.as_str()), SCENARIOS);
        names
            .into_iter()
            .map(|name| Scenario {
                name,
                rows: self.rows.iter().filter(|row| row.scenario == name).collect(),
            })
            .collect()
    }

    /// The promises of this backend.
    pub(crate) fn promises_of(&self, backend: &str) -> impl Iterator<Item = &PromiseResult> {
        self.promises.iter().filter(move |result| result.by == backend)
    }

    /// The backends of all scenarios: the known ones first.
    pub(crate) fn backends(&self) -> Vec<&str> {
        ordered(self.rows.iter().map(|row| row.backend.as_str()), BACKENDS)
    }

    /// The verdict on all scenarios: broken if any part is, and held only if every part was checked.
    pub(crate) fn verdict(&self) -> ExclusionVerdict {
        ExclusionVerdict::of_all(self.scenarios().iter().flat_map(|scenario| {
            scenario.backends().into_iter().map(|backend| scenario.verdict(backend)).collect::<Vec<_>>()
        }))
    }

    /// Writes `results.json` into `folder`, which is created if necessary, and returns the path.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        write_file(folder, "results.json", &json)
    }
}

/// A measured number, its floor and their ratio.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    /// `uncontended`, `contended`, `crash` or any other.
    pub(crate) scenario: String,
    /// `memory`, `redis`, `redlock`, `zk` or any other.
    pub(crate) backend: String,
    /// The metric, such as `p50`.
    pub(crate) metric: String,
    /// The unit of `value` and `floor`, such as `us`; empty for a bare number.
    pub(crate) unit: String,
    /// The number. What could not be measured has no row.
    pub(crate) value: f64,
    /// The number to compare with, such as the time of the bare commands.
    pub(crate) floor: Option<f64>,
    /// `value / floor`.
    pub(crate) ratio: Option<f64>,
}

impl Row {
    /// A number without a floor.
    pub(crate) fn new(scenario: &str, backend: &str, metric: &str, unit: &str, value: f64) -> Self {
        let [scenario, backend, metric, unit] = [scenario, backend, metric, unit].map(str::to_owned);
        Self { scenario, backend, metric, unit, value, floor: None, ratio: None }
    }

    /// The number of overlapping holds: the verdict of a scenario on a backend.
    pub(crate) fn overlaps(scenario: &str, backend: &str, overlaps: u64) -> Self {
        Self::new(scenario, backend, OVERLAPS, "", overlaps as f64)
    }

    /// Sets the floor, in the same unit, and the ratio.
    pub(crate) fn with_floor(self, floor: f64) -> Self {
        // Four decimals are more than a run can resolve.
        let ratio = (self.value / floor * 1e4).round() / 1e4;
        Self { floor: Some(floor), ratio: ratio.is_finite().then_some(ratio), ..self }
    }
}

/// The rows of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario<'a> {
    /// Its name in the rows.
    pub(crate) name: &'a str,
    rows: Vec<&'a Row>,
}

impl<'a> Scenario<'a> {
    /// The backends: the known ones first.
    pub(crate) fn backends(&self) -> Vec<&'a str> {
        ordered(self.rows.iter().map(|row| row.backend.as_str()), BACKENDS)
    }

    /// The metrics, the known ones first, without the overlaps, which are the verdict.
    pub(crate) fn metrics(&self) -> Vec<&'a str> {
        let measured = self.rows.iter().map(|row| row.metric.as_str()).filter(|name| *name != OVERLAPS);
        ordered(measured, METRICS)
    }

    /// The row of a metric; the last one when it was measured more than once.
    pub(crate) fn row(&self, backend: &str, metric: &str) -> Option<&'a Row> {
        self.rows.iter().rev().find(|row| row.backend == backend && row.metric == metric).copied()
    }

    /// The unit of a metric.
    pub(crate) fn unit(&self, metric: &str) -> &'a str {
        self.rows.iter().find(|row| row.metric == metric).map_or("", |row| &row.unit)
    }

    /// The verdict on a backend.
    pub(crate) fn verdict(&self, backend: &str) -> ExclusionVerdict {
        let counts = self.rows.iter().filter(|row| row.backend == backend && row.metric == OVERLAPS);
        ExclusionVerdict::of_all(counts.map(|row| match row.value {
            0.0 => ExclusionVerdict::Held,
            some if some > 0.0 => ExclusionVerdict::Broken(some as u64),
            _ => ExclusionVerdict::Unchecked,
        }))
    }
}

/// Whether mutual exclusion held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExclusionVerdict {
    /// Checked, and no two holds overlapped.
    Held,
    /// This many holds overlapped another one.
    Broken(u64),
    /// Some numbers have no checked history.
    Unchecked,
}

impl ExclusionVerdict {
    /// Joins verdicts; without any the result is `Unchecked`.
    fn of_all(parts: impl IntoIterator<Item = Self>) -> Self {
        parts
            .into_iter()
            .reduce(|one, other| match (one, other) {
                (Self::Broken(one), Self::Broken(other)) => Self::Broken(one + other),
                (Self::Broken(some), _) | (_, Self::Broken(some)) => Self::Broken(some),
                (Self::Unchecked, _) | (_, Self::Unchecked) => Self::Unchecked,
                (Self::Held, Self::Held) => Self::Held,
            })
            .unwrap_or(Self::Unchecked)
    }
}

impl fmt::Display for ExclusionVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.pad("held (0 overlaps)"),
            Self::Broken(overlaps) => f.pad(&format!("BROKEN ({overlaps})")),
            Self::Unchecked => f.pad("not checked"),
        }
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

/// The distinct `names`: first those of `known`, in its order, then the others in theirs.
fn ordered<'a>(names: impl Iterator<Item = &'a str>, known: &[&str]) -> Vec<&'a str> {
    let mut distinct: Vec<&str> = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct.sort_by_key(|name| known.iter().position(|other| other == name).unwrap_or(known.len()));
    distinct
}

/// The version of the shape of `results.json`.
const SCHEMA: u32 = 1;
/// The metric behind the verdict.
const OVERLAPS: &str = "overlaps";
const SCENARIOS: &[&str] =
    &["uncontended", "contended", "tasks", "crash", "peers", "herd", "held", "degraded"];
const BACKENDS: &[&str] = &["memory", "redis", "redlock", "zk"];
const METRICS: &[&str] = &[
    "p50",
    "p90",
    "p99",
    "acquire_p50",
    "p50_with_tokens",
    "acquire_with_tokens",
    "p50_one_server",
    "alone_p50",
    "ops",
    "grants_per_s",
    "pairs_per_s",
    "handoff_p50",
    "handoff_p95",
    "handoff_p99",
    "handoff_p50_bare",
    "handoff_p95_bare",
    "waiter_p50",
    "longest_wait",
    "jain",
    "inversions",
    "requests_per_grant",
    "notifications",
    "first_try",
    "split_votes",
    "takeover",
    "bytes_per_lock",
    "renew_cpu_percent",
    "server_cpu_percent",
    "both_cpu_percent",
    "lost",
    "acquire_all",
];
/// Realistic results, for the tests of everything that shows results.
#[cfg(test)]
pub(crate) fn sample() -> Results {
    let mut results = Results::new(Meta {
        date: "2026-11-20T20:15:00Z".into(),
        version: "0.1.0".into(),
        cores: 2,
        cpu: "Sample <CPU> & Co".into(),
        kernel: "Linux 6.1.0".into(),
        redis: Some("7.0.15".into()),
        zookeeper: Some("3.8.0".into()),
        mode: Mode::Quick,
        command: "cargo xtask compare --quick".into(),
        duration_s: 31.4,
        settings: std::collections::BTreeMap::from([
            ("contended.hold".into(), "1 ms".into()),
            ("contended.processes".into(), "8".into()),
            ("crash.ttl".into(), "2 s".into()),
        ]),
        note: "Machines are noisy.".into(),
    });
    let uncontended = [
        ("memory", [0.61, 0.74, 2.2], None, 1_420_113.0),
        ("redis", [88.2, 112.9, 241.0], Some([78.1, 97.4, 203.5]), 10_904.3),
        ("redlock", [214.8, 287.3, 611.7], Some([163.0, 228.6, 494.4]), 4_402.9),
        ("zk", [1_893.4, 2_604.0, 6_120.5], Some([1_771.2, 2_391.0, 5_689.3]), 498.2),
    ];
    for (backend, values, floors, ops) in uncontended {
        for (index, metric) in ["p50", "p90", "p99"].into_iter().enumerate() {
            let row = Row::new("uncontended", backend, metric, "us", values[index]);
            results.push(match floors {
                Some(floors) => row.with_floor(floors[index]),
                None => row,
            });
        }
        results.push(Row::new("uncontended", backend, "ops", "1/s", ops));
        results.push(Row::overlaps("uncontended", backend, 0));
    }
    let contended = [
        ("redis", [611.4, 702.5, 3_980.0, 61_200.0, 0.9931, 3.42]),
        ("redlock", [301.2, 2_204.0, 48_120.0, 410_000.0, 0.8713, 21.8]),
        ("zk", [288.7, 1_960.1, 5_400.0, 29_800.0, 0.9998, 4.01]),
    ];
    let metrics = [
        ("grants_per_s", "1/s"),
        ("handoff_p50", "us"),
        ("handoff_p99", "us"),
        ("longest_wait", "us"),
        ("jain", ""),
        ("requests_per_grant", ""),
    ];
    for (backend, values) in contended {
        for ((metric, unit), value) in metrics.into_iter().zip(values) {
            results.push(Row::new("contended", backend, metric, unit, value));
        }
        results.push(Row::overlaps("contended", backend, 0));
    }
    for (backend, takeover, ttl) in
        [("redis", 2_004.1, 2_000.0), ("redlock", 2_031.0, 2_000.0), ("zk", 1_604.9, 4_000.0)]
    {
        results.push(Row::new("crash", backend, "takeover", "ms", takeover).with_floor(ttl));
        results.push(Row::overlaps("crash", backend, 0));
    }
    results
}

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
            })
        );
        assert_eq!(json["rows"][0]["floor"], json!(null));
        assert_eq!(json["rows"][0]["ratio"], json!(null));
        let top: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(top, ["claims", "faults", "meta", "promises", "rows", "schema"]);
        let meta: Vec<&String> = json["meta"].as_object().unwrap().keys().collect();
        let mut expected = [
            "date",
            "version",
            "cores",
            "cpu",
            "kernel",
            "redis",
            "zookeeper",
            "mode",
            "command",
            "duration_s",
            "settings",
            "note",
        ];
        expected.sort_unstable();
        let mut meta: Vec<&str> = meta.into_iter().map(String::as_str).collect();
        meta.sort_unstable();
        assert_eq!(meta, expected);
        assert_eq!(json["meta"]["mode"], "quick");
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = sample().write(&folder.path().join("new/folder")).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), sample());
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = sample().write(&file).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("results.json"), "{error}");
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
            ["crash", "zeal_of_all"]
        );
        assert_eq!(scenarios[1].backends(), ["redis", "etcd", "aaa"]);
        assert_eq!(scenarios[1].metrics(), ["p50", "ops", "zeal"]);
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
    fn a_ratio_needs_a_floor_above_zero() {
        let row = Row::new("s", "b", "m", "us", 3.0);
        assert_eq!(row.clone().with_floor(2.0).ratio, Some(1.5));
        assert_eq!(row.with_floor(0.0).ratio, None);
    }
}
