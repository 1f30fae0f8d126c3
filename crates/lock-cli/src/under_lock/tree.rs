//! The processes around this one: what a command has started, also outside of its process group, and who has started this one.
//!
//! A daemon, or what `timeout` runs, leaves the process group. It cannot leave its ancestors: the kernel gives an orphan to the
//! nearest ancestor that is a child subreaper, as the [watchdog](crate::under_lock::run) and `polylock run` are.
//!
//! Source: proc(5), `PR_SET_CHILD_SUBREAPER` in prctl(2).

use std::collections::BTreeMap;
use std::{fs, io, iter, process};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

/// The descendants of a process.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Pid,
    /// Children of it, with all that descends from them, that do not belong to it.
    others: Vec<(Pid, Process)>,
}

/// A process as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: i32,
    group: i32,
    session: i32,
    /// In ticks since the boot: together with the process id it names one process.
    started: u64,
    /// Whether it has ended, all of its threads, and its parent has not noticed.
    is_zombie: bool,
}

impl Tree {
    pub(crate) const fn of(root: Pid) -> Self {
        Self { root, others: Vec::new() }
    }

    /// What descends from this process from now on, without the children that it has already.
    pub(crate) fn from_now_on(root: Pid) -> Self {
        let children = processes().unwrap_or_default();
        let is_child = |(_, process): &(Pid, Process)| process.parent == root.as_raw_nonzero().get();
        Self { root, others: children.into_iter().filter(is_child).collect() }
    }

    /// Sends a signal to every process but those of a process group. Returns whether some may be left that may get it.
    pub(crate) fn signal(&self, but: Option<Pid>, signal: Signal) -> bool {
        let Ok(descendants) = self.descendants() else { return true };
        let is_meant =
            |process: &Process| but.is_none_or(|group| group.as_raw_nonzero().get() != process.group);
        let mut may_get = false;
        for (pid, process) in descendants {
            if is_meant(&process) {
                may_get |= signal_one(pid, process, signal) != Err(Errno::PERM);
            }
        }
        may_get
    }

    /// The processes that may not be signalled: those of other users.
    pub(crate) fn refused(&self) -> Vec<Pid> {
        let living = self.descendants().unwrap_or_default().into_iter().map(|(pid, _)| pid);
        living.filter(|pid| test_kill_process(*pid) == Err(Errno::PERM)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.descendants().is_ok_and(|descendants| descendants.is_empty())
    }

    fn descendants(&self) -> io::Result<Vec<(Pid, Process)>> {
        let mut children = BTreeMap::<i32, Vec<(Pid, Process)>>::new();
        for (pid, process) in processes()? {
            children.entry(process.parent).or_default().push((pid, process));
        }
        let is_other = |(pid, process): &(Pid, Process)| {
            self.others.iter().any(|(other, then)| other == pid && then.started == process.started)
        };
        let mut found = Vec::new();
        let mut parents = vec![self.root];
        while let Some(parent) = parents.pop() {
            let mut of_parent = children.remove(&parent.as_raw_nonzero().get()).unwrap_or_default();
            of_parent.retain(|child| !is_other(child));
            parents.extend(of_parent.iter().map(|(pid, _)| *pid));
            found.extend(of_parent.into_iter().filter(|(_, process)| !process.is_zombie));
        }
        Ok(found)
    }
}

/// The children of this process that have ended.
pub(crate) fn zombies() -> Vec<Pid> {
    let own = own_pid();
    let all = processes().unwrap_or_default().into_iter();
    all.filter(|(_, process)| process.is_zombie && process.parent == own).map(|(pid, _)| pid).collect()
}

/// The process ids of the ancestors of this process, the nearest first.
pub(crate) fn ancestors() -> Vec<i32> {
    let parent = |pid: &i32| {
        Process::of(Pid::from_raw(*pid)?).map(|process| process.parent).filter(|parent| *parent > 0)
    };
    let first = Some(own_pid()).filter(|_| names_own_processes()).as_ref().and_then(parent);
    iter::successors(first, parent).collect()
}

/// Whether the process group of this process is orphaned: no member has a parent in another group of the session, which could
/// continue it. The kernel does not stop such a group for its use of the terminal.
pub(crate) fn is_orphaned() -> bool {
    let all = by_pid();
    let Some(own) = all.get(&own_pid()) else { return false };
    let has_shell = |member: &Process| {
        let parent = all.get(&member.parent);
        parent.is_some_and(|parent| parent.group != own.group && parent.session == own.session)
    };
    !all.values().any(|member| member.group == own.group && !member.is_zombie && has_shell(member))
}

fn by_pid() -> BTreeMap<i32, Process> {
    let all = processes().unwrap_or_default().into_iter();
    all.map(|(pid, process)| (pid.as_raw_nonzero().get(), process)).collect()
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
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

/// None where the numbers of `/proc` name other processes.
fn processes() -> io::Result<Vec<(Pid, Process)>> {
    if !names_own_processes() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir("/proc")?.flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    Ok(pids.filter_map(|pid| Some((pid, Process::of(pid)?))).collect())
}

/// Whether `/proc` is that of this process namespace.
fn names_own_processes() -> bool {
    let own = fs::read_link("/proc/self").unwrap_or_default();
    own.as_os_str() == &*process::id().to_string()
}

impl Process {
    fn of(pid: Pid) -> Option<Self> {
        Self::read(&fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
    }

    fn read(stat: &[u8]) -> Option<Self> {
        // The name of the program is in parentheses, may have some itself, and need not be UTF-8: the kernel cuts it after 15 bytes.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let fields: Vec<_> = str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().collect();
        Some(Self {
            // The main thread may have ended before others.
            is_zombie: ["Z", "X"].contains(fields.first()?) && fields.get(17)?.parse::<u32>().ok()? <= 1,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let rest = "1 2 0 -1 4194560 16 17 18 19 20 21 22 23 20 0 THREADS 0 777 0 0";
        let text =
            |name, state, threads| format!("42 ({name}) {state} 7 {}", rest.replace("THREADS", threads));
        let read = |name, state| Process::read(text(name, state, "1").as_bytes()).unwrap();
        let process = Process { parent: 7, group: 1, session: 2, started: 777, is_zombie: false };
        assert_eq!(read("sh", "S"), process);
        assert_eq!(read("a) Z 1 (b", "R"), process);
        let of_two_threads = text("sh", "Z", "2");
        assert!(read("sh", "Z").is_zombie && !Process::read(of_two_threads.as_bytes()).unwrap().is_zombie);
        let cut = [b"42 (\xc3) S 7 ", rest.replace("THREADS", "1").as_bytes()].concat();
        assert_eq!(Process::read(&cut), Some(process));
        assert_eq!(Process::read(b"42 (sh) S 7"), None);
    }
}
