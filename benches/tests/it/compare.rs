//! The harness as a program: exit codes, results, and what it leaves behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{harness_into, results, text};

#[test]
fn a_run_writes_its_results() {
    let out = tempfile::tempdir().unwrap();
    let results = measured(out.path(), "--quick --backend memory");
    let rows = results["rows"].as_array().unwrap();
    let names: Vec<String> =
        rows.iter().map(|row| format!("{}.{}", row["scenario"], row["metric"])).collect();
    for (scenario, metrics) in [
        ("uncontended", "p50 p90 p99 ops overlaps"),
        (
            "contended",
            "grants_per_s handoff_p50 handoff_p95 handoff_p99 longest_wait jain requests_per_grant overlaps",
        ),
        ("tasks", "pairs_per_s overlaps"),
    ] {
        for metric in metrics.split(' ') {
            let name = format!("\"{scenario}\".\"{metric}\"");
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }
    let page = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("Mutual exclusion held"), "{page}");
}

#[test]
fn a_lock_that_does_not_exclude_fails_the_run() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --backend memory --scenario contended --without-exclusion";
    let output = harness_into(out.path(), args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("FAILED: contended on memory: mutual exclusion was BROKEN"),
        "{}",
        text(&output)
    );
}

#[test]
fn targets_are_judged_and_servers_are_watched() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --backend redis --scenario contended --scenario tasks --scenario held \
                --processes 2 --locks 300 --watch 1s --verbose";
    let output = harness_into(out.path(), args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("targets of redis"), "{}", text(&output));

    let results = results(out.path());
    let targets = results["targets"].as_array().unwrap();
    let seen = |metric: &str| {
        let found = targets.iter().filter(|target| target["metric"] == metric && target["seen"].is_number());
        found.count()
    };
    for metric in "requests_per_grant handoff_p50 handoff_p95 longest_wait jain pairs_per_s bytes_per_lock \
                   both_cpu_percent lost"
        .split_whitespace()
    {
        assert_eq!(seen(metric), 1, "{metric} in {targets:?}");
    }
    assert_eq!(seen("p99"), 0, "{targets:?}");
}

#[test]
fn the_way_from_redis_to_zookeeper_is_measured_and_judged() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --backend zk --scenario migration --claim 12";
    let results = measured(out.path(), args);
    let claim = &results["claims"][11];
    let verdict = claim["verdict"].as_str().unwrap();
    // How much a rung costs is not for a busy machine to say.
    assert!(verdict == "holds" || verdict.starts_with("depends on the rung"), "{claim}");
    let rows = results["rows"].as_array().unwrap();
    let value = |metric: &str| {
        rows.iter().find(|row| row["backend"] == "migrate" && row["metric"] == metric).unwrap()["value"]
            .as_f64()
            .unwrap()
    };
    assert!(value("left_at_interrupt") > 0.0 && value("left_after_clean") < 1.0, "{rows:?}");
    assert_eq!(rows.iter().filter(|row| row["metric"] == "p50" && row["ratio"].is_number()).count(), 6);
}

#[test]
fn a_store_that_swaps_is_measured_beside_its_bare_swaps() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --backend sqlite --claim 15 --processes 2";
    let results = measured(out.path(), args);
    let targets = results["targets"].as_array().unwrap();
    let seen = |target: &&Value| target["by"] == "sqlite" && target["seen"].is_number();
    assert_eq!(targets.iter().filter(seen).count(), 1, "{targets:?}");
    let claim = &results["claims"][14];
    let figures = claim["figures"].as_array().unwrap();
    let metrics: Vec<_> = figures.iter().map(|figure| figure["metric"].as_str().unwrap()).collect();
    assert_eq!(metrics, ["p50", "handoff_p50", "overlaps"], "{claim}");
    assert_ne!(claim["verdict"], "not judged", "{claim}");
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let (out, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = harness_into(out.path(), "--quick --backend redis --scenario contended");
    command.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("contended on redis (")), "it never began");
    // Into the middle of it: the workers are there by then, or about to be.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let place = temporary.path().to_str().unwrap();
    assert!(processes_with(place).len() > 1, "no server and no worker");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(130));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!out.path().join("results.json").exists());
    assert_eq!(processes_with(place), Vec::<String>::new());
}

#[test]
fn an_interrupted_run_reports_what_was_done() {
    let out = tempfile::tempdir().unwrap();
    let args = "--backend memory --scenario tasks --scenario held --locks 100 --watch 1h";
    let mut child =
        harness_into(out.path(), args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("held on memory (2 of 2, about ")), "it never began");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(130));
    let results = results(out.path());
    assert_eq!(results["meta"]["interrupted"], "after 1 of 2 parts, during held on memory");
    let rows = results["rows"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["scenario"] == "tasks"), "{rows:?}");
    for report in ["report.html", "report.md"] {
        let text = std::fs::read_to_string(out.path().join(report)).unwrap();
        assert!(text.contains("The run was interrupted after 1 of 2 parts"), "{text}");
    }
}

#[test]
fn a_report_is_written_again() {
    let (old, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = "--quick --backend memory --scenario uncontended --repeat 5";
    assert!(harness_into(old.path(), args).output().unwrap().status.success());
    let file = old.path().join("results.json");
    let output = harness_into(out.path(), &format!("--from {}", file.display())).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(
        (results(out.path()), &results(old.path())["meta"]["repeats"]),
        (results(old.path()), &5.into())
    );

    // One of version 1.
    let mut first = results(old.path());
    let fields = first.as_object_mut().unwrap();
    let targets = fields.remove("targets").unwrap();
    fields.extend([("schema".into(), 1.into()), ("promises".into(), targets)]);
    fields.remove("experiments");
    std::fs::write(&file, first.to_string()).unwrap();
    let output = harness_into(out.path(), &format!("--from {}", file.display())).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let upgraded = results(out.path());
    assert_eq!(upgraded["schema"], 2);
    assert!(upgraded["experiments"].as_array().is_some_and(|all| !all.is_empty()), "{upgraded}");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --scenario uncontended --backend redis --url redis=redis://127.0.0.1:1";
    let output = harness_into(out.path(), args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("FAILED: uncontended on redis: redis: "), "{}", text(&output));
}

#[test]
fn a_server_that_does_not_start_costs_its_own_rows() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --scenario uncontended --backend memory --backend zk";
    let mut command = harness_into(out.path(), args);
    let output = command.env("ZOOKEEPER_CLASSPATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("FAILED: the servers of zk: "), "{}", text(&output));
    let results = results(out.path());
    let rows = results["rows"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["backend"] == "memory"), "{rows:?}");
    assert_eq!(results["failures"].as_array().unwrap().len(), 1, "{}", results["failures"]);
}

/// The results of a run that succeeds.
fn measured(out: &Path, args: &str) -> Value {
    let output = harness_into(out, args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    results(out)
}

/// Processes with this text in their environment, which children inherit and orphans keep.
fn processes_with(environment: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    processes
        .filter(|process| {
            let bytes = std::fs::read(process.join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(environment)
        })
        .map(|process| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default())
        .collect()
}

/// What runs at night.
mod deep {
    use super::*;

    #[test]
    #[ignore = "deep: the run of CI measures it as well"]
    fn locks_under_load_are_measured_beside_their_floors() {
        let out = tempfile::tempdir().unwrap();
        // CI measures every backend so, and fails when one has no floor.
        let args = "--quick --scenario throughput --backend redis --backend postgres";
        let results = measured(out.path(), args);
        let rows = results["rows"].as_array().unwrap();
        for backend in ["redis", "postgres"] {
            for metric in ["pairs_per_s", "p50", "p99", "client_cpu", "server_cpu"] {
                let of = |backend: &str, metric: &str| {
                    let row = rows.iter().find(|row| row["backend"] == backend && row["metric"] == metric);
                    row.unwrap_or_else(|| panic!("{metric} of {backend} is not in {rows:?}")).clone()
                };
                let (ours, floor) = (
                    of(&format!("{backend} 256 tasks"), metric),
                    of(&format!("{backend} floor 256 tasks"), metric),
                );
                assert_eq!(
                    (&ours["floor"], &floor["floor"]),
                    (&floor["value"], &Value::Null),
                    "{ours} {floor}"
                );
                assert!(ours["value"].as_f64() > Some(0.0), "{ours}");
            }
        }
        let targets = results["targets"].as_array().unwrap();
        let is_of_load = |target: &&Value| target["scenario"] == "throughput" && target["seen"].is_number();
        let of_load = targets.iter().filter(is_of_load);
        assert!(of_load.clone().count() >= 5, "{targets:?}");
        // Whether they are kept is not for a busy machine to say.
        assert!(of_load.clone().all(|target| target["met"].is_boolean()), "{targets:?}");
        let page = std::fs::read_to_string(out.path().join("report.html")).unwrap();
        assert!(
            page.contains("scenario-throughput") && page.contains("redis minting floor 256 tasks"),
            "{page}"
        );
    }

    #[test]
    #[ignore = "deep: the run of CI measures it as well"]
    fn advisory_locks_fail_where_ours_do_not() {
        let out = tempfile::tempdir().unwrap();
        let results = measured(out.path(), "--quick --claim 14 --backend postgres");
        let claim = results["claims"].as_array().unwrap().iter().find(|claim| claim["id"] == 14).unwrap();
        assert_eq!(claim["verdict"], "does not hold", "{claim}");
        assert!(claim["broken_promise"].is_null(), "{claim}");
    }

    #[test]
    #[ignore = "deep: a minute and more"]
    fn peers_take_part() {
        let out = tempfile::tempdir().unwrap();
        let args = "--quick --backend redis --backend redlock --backend zk --backend postgres --backend etcd --backend mysql \
                    --scenario peers --processes 2";
        let results = measured(out.path(), args);
        let missing = results["meta"]["settings"]["peers.missing"].as_str().unwrap_or_default();
        for peer in "redis rslock rlock async-redis-lock distkit redis-py redisson redisson-fair redsync redlock pottery node-redlock \
                     redsync-five zk lock-client curator kazoo postgres sqlx etcd etcd-lock etcd-concurrency mysql get-lock"
            .split_whitespace()
        {
            let found =
                results["rows"].as_array().unwrap().iter().find(|row| {
                    row["backend"] == peer && row["metric"] == "waiter_p50" && row["ratio"].is_number()
                });
            // Go and Maven may not be installed.
            let excused = ["redsync", "redsync-five", "etcd-concurrency", "redisson", "redisson-fair"].contains(&peer)
                && missing.contains(&format!("without {peer}: "));
            assert!(found.is_some() || excused, "{peer} is not in {results}");
        }
    }
}
