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
use crate::failure::{Exit, Failure, MORE_PROCESSES};
use crate::under_lock::tree::Tree;

/// A command in a process group of its own, below its watchdog. All of it is killed when this is dropped before the end.
pub(super) struct Child {
    watchdog: Watchdog,
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
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the watchdog is killed, and the command never begins.
    pub(super) async fn start(command: &[OsString], keep_url: bool, guard: &Guard) -> Result<Self, Failure> {
        let started = timeout(START_LIMIT, Self::report_of(command, keep_url, guard)).await;
        started.unwrap_or_else(|_| Err(cannot_start(&format!("it has not begun within {START_LIMIT:?}"))))
    }

    async fn report_of(command: &[OsString], keep_url: bool, guard: &Guard) -> Result<Self, Failure> {
        let refused = |error: io::Error| cannot_start(&error.to_string());
        set_child_subreaper(Some(getpid())).map_err(|error| refused(error.into()))?;
        // A process that began with this signal ignored gets no exit code of a child.
        let _children = signal(SignalKind::child()).map_err(refused)?;
        let inherited = Tree::from_now_on(getpid());
        let (ours, theirs) = UnixStream::pair().map_err(refused)?;
        let watchdog = Watchdog::spawn(command, keep_url, guard, theirs).map_err(refused)?;
        let file = guard.locked_file();
        let (stdin, stdout, stderr) = (stdin(), stdout(), stderr());
        let mut files = vec![stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        files.extend(file.as_ref().map(AsFd::as_fd));
        match send_files(&ours, &files) {
            // The watchdog has ended: its report says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(refused)?,
        }
        let mut wire = Wire::new(ours).map_err(refused)?;
        let id = watchdog.id().ok_or_else(|| cannot_start("its watchdog has no process id"))?;
        let group = match persistent(id, wire.next_report()).await {
            Some(Report::Started(pid)) => Pid::from_raw(pid),
            Some(Report::Failed(number)) => return Err(refused(io::Error::from_raw_os_error(number))),
            _ => return Err(cannot_start("its watchdog has ended")),
        };
        let mut child = Self {
            watchdog,
            wire: Some(wire),
            group: group.ok_or_else(|| cannot_start("it has no process id"))?,
            trees: [Tree::of(id), inherited],
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
            Some(Report::Started(_) | Report::Failed(_)) | None => {
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
        let watchdog = self.watchdog.id();
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
    pub(super) fn reap(mut self) {
        self.is_over = true;
        self.watchdog.end();
        reap::all_but(None);
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
        while !self.watchdog.has_ended() && Instant::now() < deadline {
            thread::sleep(MOMENT);
        }
    }
}

/// The process of the watchdog, which is killed when this is dropped. A command that has not begun never does then.
struct Watchdog(process::Child);

impl Watchdog {
    /// Starts it. This process keeps no copy of its end of the connection, by whose end a watchdog that has ended is noticed.
    fn spawn(
        command: &[OsString],
        keep_url: bool,
        guard: &Guard,
        connection: UnixStream,
    ) -> io::Result<Self> {
        let mut watchdog = Helper::Watchdog.command();
        if !keep_url {
            for name in connect::VARIABLES {
                watchdog.env_remove(name);
            }
        }
        watchdog
            .args(command)
            .env("POLYLOCK_NAME", guard.name().as_str())
            .env(connect::TOKEN_VARIABLE, guard.token().to_string())
            .stdin(OwnedFd::from(connection))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end();
    }
}

fn cannot_start(why: &str) -> Failure {
    let message = format!("the command cannot be started: {why}");
    Failure::new(Exit::Other, "process", message, Some(MORE_PROCESSES.to_owned()))
}

/// How long the start may take: a host that swaps is slow.
const START_LIMIT: Duration = Duration::from_secs(20);
/// For the end of processes that were killed.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(200);
const MOMENT: Duration = Duration::from_millis(5);
