//! The processes that descend from one process: what a command has started, also outside of its process group.
//!
//! A daemon, or what `timeout` runs, leaves the process group. It cannot leave its ancestors: the kernel gives an orphan to the
//! nearest ancestor that is a child subreaper, as the [watchdog](super::watchdog) and `polylock run` are.
//!
//! Source: proc(5), `PR_SET_CHILD_SUBREAPER` in prctl(2).

use std::collections::BTreeMap;
use std::{fs, process};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

/// A process as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: i32,
    group: i32,
    /// In ticks since the boot: together with the process id it names one process.
    started: u64,
    /// Whether it has ended, and its parent has not noticed.
    is_zombie: bool,
}

/// Sends a signal to every process that descends from this one, except those of a process group. Returns whether some are left
/// that may get it.
pub(super) fn signal(root: Pid, but: Option<Pid>, signal: Signal) -> bool {
    let mut may_get = false;
    for (pid, process) in descendants(root) {
        if but.is_none_or(|group| group.as_raw_nonzero().get() != process.group) {
            may_get |= signal_one(pid, process, signal) != Err(Errno::PERM);
        }
    }
    may_get
}

/// The descendants that this process may send no signal: those of other users.
pub(super) fn refused(root: Pid) -> Vec<Pid> {
    let living = descendants(root).into_iter().map(|(pid, _)| pid);
    living.filter(|pid| test_kill_process(*pid) == Err(Errno::PERM)).collect()
}

/// Whether no process descends from this one.
pub(super) fn is_empty(root: Pid) -> bool {
    descendants(root).is_empty()
}

/// Signals this very process, and none that has got its id since.
fn signal_one(pid: Pid, process: Process, signal: Signal) -> Result<(), Errno> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(file) if Process::of(pid).is_some_and(|now| now.started == process.started) => {
            pidfd_send_signal(file, signal)
        }
        // Before Linux 5.3, or where a filter of system calls forbids it.
        Err(Errno::NOSYS | Errno::PERM) => kill_process(pid, signal),
        _ => Err(Errno::SRCH),
    }
}

fn descendants(root: Pid) -> Vec<(Pid, Process)> {
    let mut children = BTreeMap::<i32, Vec<(Pid, Process)>>::new();
    for (pid, process) in processes() {
        children.entry(process.parent).or_default().push((pid, process));
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let of_parent = children.remove(&parent.as_raw_nonzero().get()).unwrap_or_default();
        parents.extend(of_parent.iter().map(|(pid, _)| *pid));
        found.extend(of_parent.into_iter().filter(|(_, process)| !process.is_zombie));
    }
    found
}

/// None where `/proc` is not that of this process namespace: its numbers name other processes.
fn processes() -> impl Iterator<Item = (Pid, Process)> {
    let own = fs::read_link("/proc/self").ok().filter(|own| own.as_os_str() == &*process::id().to_string());
    let entries = own.and_then(|_| fs::read_dir("/proc").ok()).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter_map(|pid| Some((pid, Process::of(pid)?)))
}

impl Process {
    fn of(pid: Pid) -> Option<Self> {
        Self::read(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name of the program is in parentheses, and may have some itself.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        Some(Self {
            is_zombie: ["Z", "X"].contains(fields.first()?),
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let rest = "1 1 0 -1 4194560 16 17 18 19 20 21 22 23 20 0 1 0 777 0 0";
        let read = |name, state| Process::read(&format!("42 ({name}) {state} 7 {rest}")).unwrap();
        let process = Process { parent: 7, group: 1, started: 777, is_zombie: false };
        assert_eq!(read("sh", "S"), process);
        assert_eq!(read("a) Z 1 (b", "R"), process);
        assert!(read("sh", "Z").is_zombie);
        assert_eq!(Process::read("42 (sh) S 7"), None);
    }
}
