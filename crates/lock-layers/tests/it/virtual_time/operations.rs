//! The dashboard and the alerts of docs/operations show the metrics that exist, by the labels that they have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Stage, next_of};
use lock_core::{Locks, LossReason};
use lock_layers::MetricsLayer;
use lock_testkit::{give_back, take};
use metrics_util::debugging::DebuggingRecorder;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// The labels of each metric.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// The label of the buckets of a histogram.
const BUCKET: &str = "le";
/// What Prometheus appends to the name of a histogram.
const OF_HISTOGRAM: [&str; 3] = ["_bucket", "_count", "_sum"];

#[test]
fn the_page_lists_the_metrics_that_exist() {
    let recorded = recorded();
    assert_eq!(recorded.len(), 11, "{recorded:?}");
    assert_eq!(listed(), recorded);
}

#[test]
fn every_metric_is_on_the_dashboard_and_no_other() {
    let dashboard = read("docs/operations/dashboard.json");
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
    let queries = dashboard.replace("\\\"", "\"");
    let used = used(&queries);
    assert_eq!(used.keys().collect::<Vec<_>>(), recorded().keys().collect::<Vec<_>>());
    assert_known(&used, &queries);
}

#[test]
fn the_alerts_are_on_metrics_that_exist() {
    let alerts = read("docs/operations/alerts.yml");
    let used = used(&alerts);
    assert!(used.len() >= 4, "{used:?}");
    assert_known(&used, &alerts);
    let page = read("docs/OPERATIONS.md");
    let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(names.len(), 6);
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "the page does not say what to do at {name}");
    }
}

#[test]
fn what_is_not_there_is_found() {
    let of = |text: &str| used(text).into_iter().next().unwrap();
    let (name, labels) = of(r#"sum by (backend, where) (rate(polylock_held_seconds_bucket{mode!="x"}[5m]))"#);
    assert_eq!(name, "polylock_held_seconds");
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), ["backend", "mode", "where"]);
    assert_eq!(values(r#"{reason=~"gone|removed", backend=~"$backend"}"#), ["gone", "removed"]);
}

fn assert_known(used: &Metrics, text: &str) {
    let (listed, sources) = (listed(), sources());
    for (name, labels) in used {
        let known = listed.get(name).unwrap_or_else(|| panic!("there is no metric {name}"));
        for label in labels.iter().filter(|label| *label != BUCKET) {
            assert!(known.contains(label), "{name} has no label {label}, but {known:?}");
        }
    }
    for value in values(text) {
        assert!(sources.contains(&format!("\"{value}\"")), "no label has the value {value:?}");
    }
}

/// All that the layer records.
fn recorded() -> Metrics {
    let recorder = DebuggingRecorder::new();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(record_all()));
    let mut metrics = Metrics::new();
    for (key, ..) in recorder.snapshotter().snapshot().into_vec() {
        let labels = key.key().labels().map(|label| label.key().to_owned());
        metrics.entry(key.key().name().to_owned()).or_default().extend(labels);
    }
    metrics
}

async fn record_all() {
    let stage = Stage::new();
    let last = stage.last.clone();
    let locks = Locks::new(stage).layer(MetricsLayer::new());
    let first = take(&locks, "handed over").await;
    give_back(next_of(&locks, "handed over", first).await).await;
    let lost = take(&locks, "lost").await;
    let lease = last.get();
    lease.cell.suspect();
    sleep(Duration::from_secs(1)).await;
    lease.cell.lose(LossReason::Removed);
    sleep(Duration::from_secs(1)).await;
    drop(lost);
    assert!(locks.mutex("busy").try_acquire().await.unwrap().is_none());
    assert!(locks.mutex("down").acquire().await.is_err());
    assert!(timeout(Duration::from_secs(1), locks.mutex("never").acquire()).await.is_err());
}

/// The table of docs/LAYERS.md.
fn listed() -> Metrics {
    let page = read("docs/LAYERS.md");
    let rows = page.lines().filter(|line| line.starts_with("| `polylock_"));
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').collect();
        (quoted(cells[1]).remove(0), quoted(cells[3]).into_iter().collect())
    };
    rows.map(row).collect()
}

/// The metrics of PromQL that is somewhere in this text, with the labels by which they are chosen and grouped.
fn used(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines() {
        let grouped = within(line, "by (", ")").flat_map(|labels| labels.split(", "));
        let grouped: BTreeSet<_> = grouped.map(str::to_owned).collect();
        for (at, _) in line.match_indices("polylock_") {
            let end = line[at..].find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
            let (name, rest) = line[at..].split_at(end.unwrap_or(line.len() - at));
            let name = OF_HISTOGRAM.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            let labels = metrics.entry(name.to_owned()).or_default();
            labels.extend(grouped.iter().cloned());
            if let Some(matchers) = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()) {
                labels.extend(
                    matchers
                        .split(',')
                        .filter_map(|matcher| Some(matcher.split(['=', '!']).next()?.trim().to_owned())),
                );
            }
        }
    }
    metrics
}

/// The values by which metrics are chosen, but for the variables of the dashboard.
fn values(text: &str) -> Vec<&str> {
    let matchers = within(text, "{", "}").flat_map(|matchers| matchers.split(','));
    let quoted = matchers.filter_map(|matcher| matcher.split_once(['=', '~'])?.1.split('"').nth(1));
    quoted.flat_map(|values| values.split('|')).filter(|value| !value.starts_with('$')).collect()
}

/// What stands between two marks, each time.
fn within<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0))
}

/// The code of all crates: codes of errors are in any of them.
fn sources() -> String {
    fn add(folder: PathBuf, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => add(path, text),
                false if path.extension().is_some_and(|kind| kind == "rs") => {
                    text.push_str(&fs::read_to_string(path).unwrap());
                }
                false => {}
            }
        }
    }
    let mut text = String::new();
    for crate_name in
        ["lock-core", "lock-layers", "lock-postgres", "lock-redis", "lock-redlock", "lock-zk", "redis-link"]
    {
        add(root().join("crates").join(crate_name).join("src"), &mut text);
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
