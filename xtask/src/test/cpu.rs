//! The processor time of a program and of all that it started: user and system, in seconds.
//!
//! Wall time says little on a machine that is shared. The kernel counts the children that a program has waited for with it;
//! servers that end with it by a signal are counted as they were seen last.
//!
//! Source: proc(5).

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A process as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Process {
    parent: u32,
    is_zombie: bool,
    /// In ticks, its own.
    own: u64,
    /// In ticks, of the children that it has waited for.
    of_children: u64,
}

/// Watches a child of this process until it has ended, and returns the time of its tree; `None` where `/proc` does not tell.
///
/// The child must not have been waited for: the kernel forgets what it knows of it then.
pub(super) fn of_tree(root: u32, closes: &Receiver<()>) -> Option<Duration> {
    let mut orphans = BTreeMap::new();
    while closes.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        orphans = descendants(root, &processes());
    }
    loop {
        let process = Process::of(root)?;
        if process.is_zombie {
            let orphans: u64 = orphans.values().sum();
            return Some(ticks(process.own + process.of_children + orphans));
        }
        thread::sleep(MOMENT);
    }
}

/// Whether other work takes more than half of the processors, while this program waits; `false` where `/proc` does not tell.
pub(super) fn others_are_busy() -> bool {
    let Some(before) = Load::now() else { return false };
    thread::sleep(SAMPLE);
    Load::now().is_some_and(|after| 2 * (after.idle - before.idle) < after.all - before.all)
}

/// The time of all processors since the start of the machine, in ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    all: u64,
    idle: u64,
}

impl Load {
    fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line: user, nice, system, idle, iowait, ...
    fn read(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let times: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { all: times.iter().sum(), idle: times.get(3)? + times.get(4)? })
    }
}

/// The time of each process that descends from this one, with the children that it has waited for.
fn descendants(root: u32, all: &BTreeMap<u32, Process>) -> BTreeMap<u32, u64> {
    let is_ours = |process: &Process| {
        let mut parent = process.parent;
        while parent != root {
            match all.get(&parent) {
                Some(next) => parent = next.parent,
                None => return false,
            }
        }
        true
    };
    let ours = all.iter().filter(|(_, process)| is_ours(process));
    ours.map(|(&pid, process)| (pid, process.own + process.of_children)).collect()
}

fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Process::of(pid)?))).collect()
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        Self::read(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name of the program comes first, in parentheses, and may contain anything.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            is_zombie: fields.first() == Some(&"Z"),
            parent: fields.get(1)?.parse().ok()?,
            own: number(11)? + number(12)?,
            of_children: number(13)? + number(14)?,
        })
    }
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Of Linux, on all processors that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;
/// Cheap enough not to count itself.
const INTERVAL: Duration = Duration::from_millis(500);
/// Long enough to tell a busy machine from a moment's work.
const SAMPLE: Duration = Duration::from_millis(500);
/// Between looks at a program that has closed its output, and ends now.
const MOMENT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read() {
        let line = "42 (a ) b) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 5 6 20 0 1 0 99 0 0";
        assert_eq!(
            Process::read(line),
            Some(Process { parent: 7, is_zombie: false, own: 120, of_children: 11 })
        );
        assert_eq!(Process::read("42 (a"), None);
    }

    #[test]
    fn idle_time_includes_waits_for_disks() {
        let stat = "cpu  10 1 5 100 7 0 2 0 0 0\ncpu0 1 1 1 1 1 0 0 0 0 0\n";
        assert_eq!(Load::read(stat), Some(Load { all: 125, idle: 107 }));
        assert_eq!(Load::read("intr 1"), None);
    }

    #[test]
    fn only_descendants_count() {
        let process = |parent, own| Process { parent, is_zombie: false, own, of_children: 0 };
        let all = [(1, process(0, 5)), (2, process(1, 10)), (3, process(2, 20)), (4, process(1, 40))].into();
        assert_eq!(descendants(2, &all), [(3, 20)].into());
        assert_eq!(descendants(1, &all).values().sum::<u64>(), 70);
    }
}
