//! The soak as a program: a sound lock passes, broken ones do not, and Ctrl-C has it judged early.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{harness_into, text};

#[test]
fn a_sound_lock_passes() {
    let out = tempfile::tempdir().unwrap();
    let faults = "--fault kill --fault pause --fault reset --fault restart --fault freeze";
    let output = soak(out.path(), &format!("--minutes 0.5 --seed 1 {faults}")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let again = format!("again: cargo xtask soak --minutes 0.5 --backend redis {faults} --seed 1");
    assert!(text(&output).contains(&again), "{}", text(&output));

    let folder = out.path().join("redis-1");
    let faults = std::fs::read_to_string(folder.join("faults.json")).unwrap();
    assert!(faults.matches("from_ns").count() >= 3, "{faults}");
    assert!(processes(&folder).len() >= 12, "twelve workers");
    let report = std::fs::read_to_string(folder.join("report.txt")).unwrap();
    for lock in ["mutex-0", "mutex-1", "mutex-2", "rw", "semaphore"] {
        assert!(report.contains(&format!("{lock}: grants by process")), "{report}");
    }
}

#[test]
fn a_lock_that_does_not_exclude_fails() {
    fails("every-process-alone", "two guards of one lock were valid at once");
}

#[test]
fn tokens_that_shrink_fail() {
    fails("tokens-shrink", "fencing tokens went backwards");
}

#[test]
fn a_lock_that_stays_away_fails() {
    let text = fails("never-releases", "a lock was not granted for");
    assert!(text.contains("has not ended: it asks"), "{text}");
}

#[test]
#[ignore = "full: a thread computes for eight seconds"]
fn a_lock_that_is_lost_while_a_thread_computes_fails() {
    let out = tempfile::tempdir().unwrap();
    let args = "--minutes 0.25 --seed 2 --fault busy-thread --broken never-renews";
    let output = soak(out.path(), args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("which takes no lock"), "{}", text(&output));
}

#[test]
#[ignore = "full: three faults, one after the other"]
fn full_memory_busy_threads_and_forks_take_no_locks() {
    let out = tempfile::tempdir().unwrap();
    let faults = "--fault full-memory --fault busy-thread --fault fork";
    let output = soak(out.path(), &format!("--minutes 0.6 --seed 1 {faults}")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for fault in ["full-memory of", "busy-thread of", "fork of"] {
        assert!(text(&output).contains(fault), "{}", text(&output));
    }
    // One of them was forked.
    assert!(processes(&out.path().join("redis-1")).len() > 12 + 1, "twelve workers, a parent with its child");
}

#[test]
#[ignore = "full: three faults, one after the other"]
fn a_new_password_a_busy_server_and_silent_connections_end_no_wait() {
    let out = tempfile::tempdir().unwrap();
    let faults = "--fault password --fault busy-script --fault silence";
    let output = soak(out.path(), &format!("--minutes 0.6 --seed 1 {faults}")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for fault in ["password of", "busy-script of", "silence of"] {
        assert!(text(&output).contains(fault), "{}", text(&output));
    }
}

#[test]
fn an_interrupted_soak_is_judged() {
    let (out, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = soak(out.path(), "--minutes 5 --seed 3 --fault kill");
    command.env("TMPDIR", temporary.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("kill of processes")), "it never began");
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let lines_left: Vec<String> = lines.map_while(Result::ok).collect();

    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{} {lines_left:?}", text(&output));
    assert!(text(&output).contains("redis: 1 kill"), "{}", text(&output));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

mod deep {
    use lock_testkit::{EtcdServer, MariadbServer};

    use super::*;

    #[test]
    #[ignore = "deep: two minutes of faults"]
    fn stores_that_swap_pass() {
        let faults = "--fault kill --fault pause --fault freeze --fault restart --fault reset --fault black-hole \
             --fault end-sessions --fault read-only";
        for (backend, is_missing) in
            [("etcd", EtcdServer::is_missing()), ("mysql", MariadbServer::is_missing())]
        {
            if !is_missing {
                let out = tempfile::tempdir().unwrap();
                let args = format!("soak --backend {backend} --minutes 1 --seed 1 {faults}");
                let output = harness_into(out.path(), &args).output().unwrap();
                assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            }
        }
    }

    #[test]
    #[ignore = "deep: a minute of faults"]
    fn postgres_passes() {
        let out = tempfile::tempdir().unwrap();
        let faults = "--fault kill --fault freeze --fault restart --fault black-hole --fault end-sessions";
        let args = format!("soak --backend postgres --minutes 1 --seed 1 {faults}");
        let output = harness_into(out.path(), &args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).contains("end-sessions of"), "{}", text(&output));
    }

    #[test]
    #[ignore = "deep: a minute of faults"]
    fn what_other_sessions_of_postgres_do_breaks_no_lock_and_no_fence() {
        let out = tempfile::tempdir().unwrap();
        let faults = [
            "table-lock",
            "cancelled-waits",
            "read-only",
            "isolation-level",
            "full-vacuum",
            "forged-notifications",
        ];
        let args: String = faults.iter().map(|fault| format!(" --fault {fault}")).collect();
        let args = format!("soak --backend postgres --minutes 1.1 --seed 1{args}");
        let output = harness_into(out.path(), &args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        for fault in faults {
            assert!(text(&output).contains(&format!("{fault} of")), "{}", text(&output));
        }
        let history = std::fs::read_to_string(out.path().join("postgres-1/history.jsonl")).unwrap();
        assert!(history.matches("\"accepted\":true").count() > 50, "commits");
    }
}

/// The processes that the history of a soak has events of.
fn processes(folder: &Path) -> BTreeSet<u64> {
    let history = std::fs::read_to_string(folder.join("history.jsonl")).unwrap();
    let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    history.lines().filter_map(|line| event(line)["process"].as_u64()).collect()
}

fn fails(defect: &str, why: &str) -> String {
    let out = tempfile::tempdir().unwrap();
    let args = format!("--minutes 0.15 --seed 2 --fault reset --broken {defect}");
    let output = soak(out.path(), &args).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("FAILED: redis: {why}")), "{text}");
    text
}

fn soak(out: &Path, args: &str) -> Command {
    harness_into(out, &format!("soak --backend redis {args}"))
}
