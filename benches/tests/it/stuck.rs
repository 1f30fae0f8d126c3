//! A lock that a holder never releases: the run fails, and names the folder with the logs of its processes.

use std::path::Path;

use super::{harness_into, text};

#[test]
fn processes_that_wait_for_ever_say_so_in_their_logs() {
    let out = tempfile::tempdir().unwrap();
    let args = "--quick --scenario contended --processes 3 --break never-releases --backend redis";
    let output = harness_into(out.path(), args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let folder = out.path().join("worker-logs");
    assert!(text(&output).contains(&folder.display().to_string()), "{}", text(&output));
    assert_eq!(logs_of_waiters(out.path()), 2, "all but the holder");
}

#[test]
fn a_fault_after_which_a_client_keeps_the_lock_differs() {
    let out = tempfile::tempdir().unwrap();
    let args = "--faults --fault connections-reset --backend redis --break never-releases";
    let output = harness_into(out.path(), args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("a client never got the lock after the fault"), "{}", text(&output));
    // One of the three keeps it, and one polls.
    assert!(logs_of_waiters(out.path()) >= 1, "{}", text(&output));
}

fn logs_of_waiters(out: &Path) -> usize {
    let files = std::fs::read_dir(out.join("worker-logs")).unwrap();
    let logs = files.map(|log| std::fs::read_to_string(log.unwrap().path()).unwrap());
    logs.filter(|log| log.contains("still waits for the lock")).count()
}
