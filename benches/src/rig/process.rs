//! What the kernel says of processes. Those that a server has started belong to it: PostgreSQL has one for each session.

pub(crate) mod cpu_time;
pub(crate) mod memory;

use std::fs;

/// The running children of a process, unless another thread than its first has started them.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let pids = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// What `/proc/PID/stat` has behind the name of the program: the state first.
pub(super) fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}
