//! The command that runs under the lock, with all that it has started, and its [watchdog](super::watchdog).

use std::ffi::OsString;
use std::io::{self, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{self, Stdio};
use std::thread;
use std::time::Duration;

use polylock::{BootInstant, Guard};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::helper::Helper;
use super::reap;
use super::wire::{Ending, Order, Report, Wire, send_files};
use crate::connect;
use crate::tree::Tree;

/// A command in a process group of its own, below its watchdog. All of it is killed when this is dropped before the end.
pub(super) struct Child {
    watchdog: process::Child,
    /// `None` once it was closed.
    wire: Option<Wire>,
    group: Pid,
    /// What descends from its watchdog, and what this process inherits should that be killed.
    trees: [Tree; 2],
    deadline: Option<BootInstant>,
    ended: Option<Ending>,
    /// Whether its watchdog lives: else this process has inherited the command.
    is_watched: bool,
    is_over: bool,
}

/// A change of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Ended(Ending),
    /// By this signal.
    Stopped(i32),
    /// Its watchdog was killed, and the kernel kills it as well.
    Unwatched,
}

impl Child {
    /// Starts the command; it waits to be [continued](Self::go_on). Only the main thread may call it: see
    /// [`launch`](super::launch).
    pub(super) async fn start(command: &[OsString], keep_url: bool, guard: &Guard) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        // A process that began with this signal ignored gets no exit code of a child.
        let _children = signal(SignalKind::child())?;
        let inherited = Tree::from_now_on(getpid());
        let (ours, theirs) = UnixStream::pair()?;
        let mut watchdog = Helper::Watchdog.command();
        if !keep_url {
            for name in connect::VARIABLES {
                watchdog.env_remove(name);
            }
        }
        let watchdog = watchdog
            .args(command)
            .env("POLYLOCK_NAME", guard.name().as_str())
            .env(connect::TOKEN_VARIABLE, guard.token().to_string())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let file = guard.locked_file();
        let (stdin, stdout, stderr) = (stdin(), stdout(), stderr());
        let mut files = vec![stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        files.extend(file.as_ref().map(AsFd::as_fd));
        send_files(&ours, &files)?;
        let mut wire = Wire::new(ours)?;
        let id = i32::try_from(watchdog.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("the watchdog has no process id"))?;
        let started = persistent(id, wire.next_report()).await;
        let Some(Report::Started(pid)) = started else {
            return Err(io::Error::other("the watchdog cannot start the command"));
        };
        let Some(group) = Pid::from_raw(pid) else {
            return Err(io::Error::other("the command has no process id"));
        };
        let trees = [Tree::of(id), inherited];
        let mut child = Self {
            watchdog,
            wire: Some(wire),
            group,
            trees,
            deadline: None,
            ended: None,
            is_watched: true,
            is_over: false,
        };
        // It has stopped itself. If it has ended, that is seen again.
        persistent(id, child.change()).await;
        Ok(child)
    }

    /// Continues the command that has just started, or was stopped.
    pub(super) fn go_on(&self) {
        let _ = kill_process_group(self.group, Signal::CONT);
    }

    pub(super) const fn group(&self) -> Pid {
        self.group
    }

    /// Whether the watchdog lives, as far as is known.
    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Waits until the command has ended or was stopped. It is cancel safe.
    ///
    /// A command that has ended is kept as a zombie, so that its group is no other one.
    pub(super) async fn change(&mut self) -> Change {
        let report = match (self.ended, &mut self.wire) {
            (Some(ending), _) => Some(Report::Ended(ending)),
            (None, Some(wire)) => wire.next_report().await,
            (None, None) => None,
        };
        match report {
            Some(Report::Ended(ending)) => {
                self.ended = Some(ending);
                Change::Ended(ending)
            }
            Some(Report::Stopped(signal)) => Change::Stopped(signal),
            Some(Report::Started(_)) | None => {
                self.is_watched = false;
                Change::Unwatched
            }
        }
    }

    /// Moves the time at which the watchdog kills.
    pub(super) fn set_deadline(&mut self, deadline: BootInstant) {
        if self.deadline != Some(deadline) {
            self.deadline = Some(deadline);
            self.order(Order::Deadline(deadline));
        }
    }

    /// Continues a watchdog that somebody has stopped, and removes children that were inherited.
    pub(super) fn look_after(&self) {
        let watchdog = Pid::from_raw(i32::try_from(self.watchdog.id()).unwrap_or_default());
        let _ = watchdog.map(|watchdog| kill_process(watchdog, Signal::CONT));
        reap::all_but(watchdog);
    }

    /// Passes a signal on to the process group.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Asks all processes to end. Returns whether some of them may be signalled.
    pub(super) fn terminate(&self) -> bool {
        let group = kill_process_group(self.group, Signal::TERM).is_ok();
        let others = self.tree().signal(Some(self.group), Signal::TERM);
        // One that is stopped would not notice.
        self.tree().signal(None, Signal::CONT);
        group || others
    }

    /// Kills all processes. Returns whether some of them may be signalled.
    pub(super) fn kill(&self) -> bool {
        self.order(Order::Kill);
        let group = kill_process_group(self.group, Signal::KILL).is_ok();
        self.tree().signal(None, Signal::KILL) || group
    }

    /// Kills what the command has left, and returns the processes that cannot be killed.
    pub(super) async fn kill_rest(&self) -> Vec<Pid> {
        let deadline = Instant::now() + PATIENCE;
        self.kill();
        while self.tree().signal(None, Signal::KILL) && Instant::now() < deadline {
            self.look_after();
            sleep(MOMENT).await;
        }
        let [_, inherited] = &self.trees;
        inherited.refused()
    }

    /// Whether no process is left.
    pub(super) fn is_empty(&self) -> bool {
        self.tree().is_empty()
    }

    /// Removes the command that has ended, and its watchdog. What the command has left runs on.
    pub(super) fn reap(mut self) -> io::Result<()> {
        self.is_over = true;
        self.watchdog.kill()?;
        let _ = self.watchdog.wait();
        reap::all_but(None);
        Ok(())
    }

    fn order(&self, order: Order) {
        self.wire.iter().for_each(|wire| wire.order(order));
    }

    fn tree(&self) -> &Tree {
        let [below, inherited] = &self.trees;
        if self.is_watched { below } else { inherited }
    }
}

/// Waits for the watchdog, and continues it should somebody stop it.
async fn persistent<T>(watchdog: Pid, report: impl Future<Output = T>) -> T {
    tokio::pin!(report);
    loop {
        match timeout(TICK, &mut report).await {
            Ok(report) => return report,
            Err(_) => drop(kill_process(watchdog, Signal::CONT)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.kill();
        // The watchdog kills what has been started meanwhile, and ends.
        self.wire = None;
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.watchdog.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(MOMENT);
        }
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
    }
}

/// For the end of processes that were killed.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(200);
const MOMENT: Duration = Duration::from_millis(5);
