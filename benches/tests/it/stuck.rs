//! A lock that a holder never releases: the run fails, and names the folder with what is known about the lock.

use std::path::{Path, PathBuf};

use super::{harness_into, text};

#[test]
fn a_stuck_lock_on_redis_is_saved() {
    let (_out, folder) = stuck("redis");
    let server = read(&folder, "server.txt");
    for part in ["## inspect", "(string, pttl ", "CLIENT LIST\n", "addr=127.0.0.1:"] {
        assert!(server.contains(part), "{part} is not in {server}");
    }
}

#[test]
fn a_stuck_lock_on_zookeeper_is_saved() {
    let (_out, folder) = stuck("zk");
    let server = read(&folder, "server.txt");
    for part in ["## inspect", "## nodes", "session 0x", "Zookeeper version"] {
        assert!(server.contains(part), "{part} is not in {server}");
    }
}

#[test]
fn a_fault_after_which_a_client_keeps_the_lock_is_saved() {
    let out = tempfile::tempdir().unwrap();
    let args = "--faults --fault client-killed --backend redis --break never-releases";
    let output = harness_into(out.path(), args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let folder = out.path().join("stuck/client-killed-on-redis");
    assert!(text(&output).contains(&folder.display().to_string()), "{}", text(&output));
    let history = read(&folder, "history.jsonl");
    assert!(history.contains("\"died\"") && history.contains("\"acquired\""), "{history}");
    let steps = read(&folder, "steps.txt");
    assert!(steps.contains("Acquired") && steps.contains("no answer: it has ended"), "{steps}");
}

/// Processes contend for a lock that the first of them never releases.
fn stuck(backend: &str) -> (tempfile::TempDir, PathBuf) {
    let out = tempfile::tempdir().unwrap();
    let args =
        format!("--quick --scenario contended --processes 3 --break never-releases --backend {backend}");
    let output = harness_into(out.path(), &args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let folder = out.path().join("stuck").join(format!("contended-on-{backend}"));
    let named = text(&output).matches(&folder.display().to_string()).count();
    assert!(named > 0, "{}", text(&output));

    // The process that has the lock, by its own steps and by the server.
    let steps = read(&folder, "steps.txt");
    let mut processes = steps.split("process ").skip(1);
    let holder = processes.find(|process| process.trim_end().ends_with("  acquired")).expect(&steps);
    let pid = holder.split("(pid ").nth(1).and_then(|rest| rest.split(')').next()).expect(holder);
    let server = read(&folder, "server.txt");
    let inspected = server.split("## ").nth(1).expect(&server);
    assert!(inspected.contains(&format!("pid {pid} on ")), "{pid} is not in {inspected}");
    assert!(inspected.contains("waiters: 2"), "{inspected}");
    assert_eq!(steps.matches("  acquire\n").count(), steps.matches("  acquired\n").count() + 2, "{steps}");
    let history = read(&folder, "history.jsonl");
    for process in 0..3 {
        let called = format!("\"process\":{process},");
        assert!(history.lines().any(|line| line.contains(&called)), "{process} is not in {history}");
    }
    (out, folder)
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
