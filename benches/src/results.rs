//! What a run measured: the rows, where and how they were measured, and the verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::promises::Judged;

/// Everything that one run of the harness has to say; this is also the shape of `results.json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Results {
    /// Where, when and how.
    pub(crate) meta: Meta,
    /// What was promised, and what was seen of it.
    pub(crate) promises: Vec<Judged>,
    /// One measured number each, in the order in which they were measured.
    pub(crate) rows: Vec<Row>,
}

impl Results {
    /// No rows yet.
    pub(crate) fn new(meta: Meta) -> Self {
        Self { meta, promises: Vec::new(), rows: Vec::new() }
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

    /// What this backend promises.
    pub(crate) fn promises_of(&self, backend: &str) -> impl Iterator<Item = &Judged> {
        self.promises.iter().filter(move |judged| judged.by == backend)
    }

    /// Every backend of any scenario: the known ones first.
    pub(crate) fn backends(&self) -> Vec<&str> {
        ordered(self.rows.iter().map(|row| row.backend.as_str()), BACKENDS)
    }

    /// The verdict over everything: broken if any part is, and held only if every part was checked.
    pub(crate) fn verdict(&self) -> Verdict {
        Verdict::of_all(self.scenarios().iter().flat_map(|scenario| {
            scenario.backends().into_iter().map(|backend| scenario.verdict(backend)).collect::<Vec<_>>()
        }))
    }

    /// Writes `results.json` into `folder`, which is created if need be, and returns its path.
    ///
    /// # Errors
    ///
    /// When the folder or the file cannot be written; the message names the path.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        write_file(folder, "results.json", &json)
    }
}

/// One measured number.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    /// `uncontended`, `contended`, `crash` or any other.
    pub(crate) scenario: String,
    /// `memory`, `redis`, `redlock`, `zk` or any other.
    pub(crate) backend: String,
    /// What was measured, such as `p50`.
    pub(crate) metric: String,
    /// The unit of `value` and `floor`, such as `us`; empty for a bare number.
    pub(crate) unit: String,
    /// The number. One that could not be measured has no row.
    pub(crate) value: f64,
    /// What `value` is to be compared with: the bare commands, the ttl.
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

    /// The verdict of one scenario over one backend, as a row.
    pub(crate) fn overlaps(scenario: &str, backend: &str, overlaps: u64) -> Self {
        Self::new(scenario, backend, OVERLAPS, "", overlaps as f64)
    }

    /// Sets the floor, in the same unit, and with it the ratio.
    pub(crate) fn with_floor(self, floor: f64) -> Self {
        // Four digits after the point are more than any run can tell.
        let ratio = (self.value / floor * 1e4).round() / 1e4;
        Self { floor: Some(floor), ratio: ratio.is_finite().then_some(ratio), ..self }
    }
}

/// Where, when and how a run was made.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Meta {
    /// When the run started, in UTC, as RFC 3339.
    pub(crate) date: String,
    /// The version of polylock.
    pub(crate) version: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// The model of the processor.
    pub(crate) cpu: String,
    /// The operating system's kernel and its release.
    pub(crate) kernel: String,
    /// The version of the Redis servers, if any took part.
    pub(crate) redis: Option<String>,
    /// The version of the ZooKeeper servers, if any took part.
    pub(crate) zookeeper: Option<String>,
    /// How long the scenarios ran.
    pub(crate) mode: Mode,
    /// The command line, without passwords.
    pub(crate) command: String,
    /// How long everything took, in seconds.
    pub(crate) duration_s: f64,
    /// What the scenarios were set to, by name: `contended.processes`, `crash.ttl` and so on.
    pub(crate) settings: BTreeMap<String, String>,
    /// What to bear in mind when reading the numbers.
    pub(crate) note: String,
}

impl Meta {
    /// All that is known at the start; the servers, the settings and the duration are filled in later.
    pub(crate) fn of_this_run(mode: Mode) -> Self {
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            cpu: cpu_model(),
            kernel: kernel(),
            redis: None,
            zookeeper: None,
            mode,
            command: command_line(std::env::args().skip(1)),
            duration_s: 0.0,
            settings: BTreeMap::new(),
            note: NOTE.to_owned(),
        }
    }
}

/// How long the scenarios run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Seconds: enough to see that all works.
    Quick,
    /// Minutes: enough to compare.
    Full,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quick => "quick",
            Self::Full => "full",
        })
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
    /// What it does, in one line; empty for one that is not known here.
    pub(crate) fn about(&self) -> &'static str {
        match self.name {
            "uncontended" => "acquire + release in a loop, one client, nobody else wants the lock",
            "contended" => "separate processes fight for one lock, each holds it for a moment",
            "tasks" => "many tasks of one process fight for one lock, and release it at once",
            "crash" => "the holder is killed with SIGKILL; the time until the next process holds the lock",
            "peers" => "the same fight with the locks of other libraries, one after the other on one server",
            "herd" => {
                "many processes wait for one lock; what each grant costs the servers, and whom a release wakes"
            }
            "held" => "one process holds many locks at once; what they cost it while nobody wants them",
            "degraded" => "acquire + release in a loop while one of the masters does not answer",
            _ => "",
        }
    }

    /// What the floors of this metric are.
    pub(crate) fn floor_name(&self, metric: &str) -> &'static str {
        match (self.name, metric) {
            (_, "longest_wait") => "ideal",
            ("contended", "handoff_p50_bare" | "handoff_p95_bare") => "bare",
            ("uncontended", "p50_one_server") => "one server",
            ("uncontended", "p50_with_tokens" | "acquire_with_tokens") => "with tokens",
            ("contended", _) => "ping",
            ("peers", _) => "ours",
            ("crash", _) => "ttl",
            ("degraded", _) => "healthy",
            _ => "floor",
        }
    }

    /// The backends that took part: the known ones first.
    pub(crate) fn backends(&self) -> Vec<&'a str> {
        ordered(self.rows.iter().map(|row| row.backend.as_str()), BACKENDS)
    }

    /// The metrics, the known ones first, without the overlaps: those are the verdict.
    pub(crate) fn metrics(&self) -> Vec<&'a str> {
        let measured = self.rows.iter().map(|row| row.metric.as_str()).filter(|name| *name != OVERLAPS);
        ordered(measured, METRICS)
    }

    /// One number. When it was measured more than once, the last one.
    pub(crate) fn row(&self, backend: &str, metric: &str) -> Option<&'a Row> {
        self.rows.iter().rev().find(|row| row.backend == backend && row.metric == metric).copied()
    }

    /// The unit of a metric.
    pub(crate) fn unit(&self, metric: &str) -> &'a str {
        self.rows.iter().find(|row| row.metric == metric).map_or("", |row| &row.unit)
    }

    /// Did the lock exclude?
    pub(crate) fn verdict(&self, backend: &str) -> Verdict {
        let counts = self.rows.iter().filter(|row| row.backend == backend && row.metric == OVERLAPS);
        Verdict::of_all(counts.map(|row| match row.value {
            0.0 => Verdict::Held,
            some if some > 0.0 => Verdict::Broken(some as u64),
            _ => Verdict::Unchecked,
        }))
    }
}

/// Whether mutual exclusion held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Checked, and no two holds overlapped.
    Held,
    /// This many holds overlapped another one.
    Broken(u64),
    /// Something was measured whose history nobody checked.
    Unchecked,
}

impl Verdict {
    /// Of nothing: unchecked.
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.pad("held (0 overlaps)"),
            Self::Broken(overlaps) => f.pad(&format!("BROKEN ({overlaps})")),
            Self::Unchecked => f.pad("not checked"),
        }
    }
}

/// A metric's name for people.
pub(crate) fn title(metric: &str) -> String {
    match metric {
        "ops" => "operations".into(),
        "grants_per_s" => "grants".into(),
        "handoff" => "hand-off".into(),
        "handoff_p50" => "hand-off p50".into(),
        "handoff_p95" => "hand-off p95".into(),
        "handoff_p50_bare" => "p50 against bare".into(),
        "handoff_p95_bare" => "p95 against bare".into(),
        "acquire_p50" => "acquire p50".into(),
        "p50_one_server" => "p50 against one server".into(),
        "p50_with_tokens" => "p50 against tokens".into(),
        "acquire_with_tokens" => "acquire p50 against tokens".into(),
        "alone_p50" => "acquire + release p50".into(),
        "notifications" => "notifications/release".into(),
        "first_try" => "at the first try".into(),
        "split_votes" => "split votes".into(),
        "waiter" => "hand-off to a waiter".into(),
        "waiter_p50" => "to a waiter p50".into(),
        "handoff_p99" => "hand-off p99".into(),
        "pairs_per_s" => "acquire + release".into(),
        "jain" => "Jain index".into(),
        "requests_per_grant" => "requests/grant".into(),
        "takeover" => "take-over".into(),
        "bytes_per_lock" => "memory/lock".into(),
        "renew_cpu_percent" => "renewal, client".into(),
        "server_cpu_percent" => "server".into(),
        "both_cpu_percent" => "both, one core".into(),
        other => other.replace('_', " "),
    }
}

/// A number with about three digits that count, `-` for none.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if !size.is_finite() => return "-".into(),
        // Rounded first, so that 9.996 is not given the digits of a number below ten.
        size if size == size.trunc() && size < 1e15 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    let plain = format!("{value:.decimals$}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |digits| ("-", digits));
    if decimals > 0 {
        return plain;
    }
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Writes a file of the results, and names it when that fails.
pub(crate) fn write_file(folder: &Path, name: &str, text: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    std::fs::create_dir_all(folder).map_err(named)?;
    std::fs::write(&path, text).map_err(named)?;
    Ok(path)
}

/// The distinct `names`: those of `known` in its order, then the others in theirs.
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

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| matches!(key.trim(), "model name" | "Model" | "Hardware"))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned())
}

fn kernel() -> String {
    let part = |name: &str| std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok();
    match (part("ostype"), part("osrelease")) {
        (Some(name), Some(release)) => format!("{} {}", name.trim(), release.trim()),
        _ => std::env::consts::OS.to_owned(),
    }
}

fn command_line(args: impl Iterator<Item = String>) -> String {
    let words = args.map(|arg| {
        let arg = without_secrets(&arg);
        if arg.is_empty() || arg.contains(char::is_whitespace) { format!("'{arg}'") } else { arg }
    });
    ["cargo xtask compare".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// An argument that may be a URL, without what stands before an `@` and without the values of secret options.
///
/// Everything up to the last `@` goes, hosts of a list included: an odd password must not be able to stay behind.
fn without_secrets(arg: &str) -> String {
    let Some((scheme, rest)) = arg.split_once("://") else { return arg.to_owned() };
    let rest = rest.rsplit_once('@').map_or_else(|| rest.to_owned(), |(_, host)| format!("***@{host}"));
    let Some((place, query)) = rest.split_once('?') else { return format!("{scheme}://{rest}") };
    let options = query.split('&').map(|option| match option.split_once('=') {
        Some((name, _)) if SECRETS.iter().any(|word| name.to_lowercase().contains(word)) => {
            format!("{name}=***")
        }
        _ => option.to_owned(),
    });
    format!("{scheme}://{place}?{}", options.collect::<Vec<_>>().join("&"))
}

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
const SECRETS: &[&str] = &["auth", "digest", "pass", "secret", "token"];
const NOTE: &str = "Machines are noisy, shared ones above all. Compare numbers of one run with each other; \
                    the ratios to the floor, which is measured interleaved in the same run, travel best.";

/// A full set of results that looks real, for the tests of everything that shows results.
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
        settings: BTreeMap::from([
            ("contended.hold".into(), "1 ms".into()),
            ("contended.processes".into(), "8".into()),
            ("crash.ttl".into(), "2 s".into()),
        ]),
        note: NOTE.to_owned(),
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
        assert_eq!(top, ["meta", "promises", "rows"]);
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
        assert_eq!(results.verdict(), Verdict::Held);
        results.push(Row::new("contended", "etcd", "jain", "", 1.0));
        assert_eq!(results.verdict(), Verdict::Unchecked);
        results.push(Row::overlaps("crash", "zk", 2));
        results.push(Row::overlaps("contended", "zk", 1));
        assert_eq!(results.verdict(), Verdict::Broken(3));
        assert_eq!(Results::new(sample().meta).verdict(), Verdict::Unchecked);
    }

    #[test]
    fn a_ratio_needs_a_floor_above_zero() {
        let row = Row::new("s", "b", "m", "us", 3.0);
        assert_eq!(row.clone().with_floor(2.0).ratio, Some(1.5));
        assert_eq!(row.with_floor(0.0).ratio, None);
    }

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.0, 0.9931, 1.0, 1.1749, 9.996, 12.34, 99.96, 611.4, 1_420_113.4, -1234.5, f64::NAN]
            .map(number);
        let expected = ["0", "0.993", "1", "1.17", "10.0", "12.3", "100", "611", "1,420,113", "-1,234", "-"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_command_line_keeps_no_password() {
        let args = ["--url", "redis=redis://me:p@ss/w?rd@host:1/0", "--quick", "a b"].map(str::to_owned);
        let line = command_line(args.into_iter());
        assert_eq!(line, "cargo xtask compare --url redis=redis://***@host:1/0 --quick 'a b'");
        assert_eq!(without_secrets("zk://a:1,b:2/app?auth=me:secret&x=1"), "zk://a:1,b:2/app?auth=***&x=1");
        assert_eq!(without_secrets("redlock://:p1@a:1,:p2@b:2"), "redlock://***@b:2");
        assert_eq!(without_secrets("zk=zk://a:1/x"), "zk=zk://a:1/x");
    }

    #[test]
    fn this_run_knows_its_machine() {
        let meta = Meta::of_this_run(Mode::Full);
        assert!(meta.cores > 0 && !meta.cpu.is_empty() && !meta.kernel.is_empty());
        assert!(meta.date.ends_with('Z') && meta.date.len() == 20, "{}", meta.date);
        assert!(meta.command.starts_with("cargo xtask compare"), "{}", meta.command);
    }
}
