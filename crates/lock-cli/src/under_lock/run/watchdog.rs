//! The process between `polylock run` and the command: it kills the command when `polylock` no longer can.
//!
//! A `polylock` that was killed, stopped or starved notices nothing, while its lock ends and the command goes on. The
//! watchdog gets each deadline of the guard. When the last deadline that it knows is near, or when `polylock` is gone, it kills
//! every process that the command has started, and ends when none is left.
//!
//! It is the parent of the command, and inherits what the command leaves: it is a child subreaper. If somebody kills it, the kernel
//! kills the command, and `polylock` inherits and kills the rest. If somebody stops it, `polylock` continues it; should that be
//! killed, the kernel does.
//!
//! Where the kernel keeps the lock (`flock://`), the watchdog has the file as well: a `polylock` that was killed leaves the lock held
//! until the last process is gone.

use std::env::ArgsOs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{self, ExitCode};
use std::time::Duration;

use polylock::BootInstant;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, waitid,
};
use rustix::stdio::stdin;
use tokio::runtime::Builder;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::alarm::Alarm;
use super::helper::Helper;
use super::reap;
use super::wire::{Ending, Order, Report, Wire, receive_files, send_report};
use crate::under_lock::signals::Signals;
use crate::under_lock::tree::Tree;

struct Watchdog {
    wire: Wire,
    changes: unix::Signal,
    command: Pid,
    has_ended: bool,
    deadline: BootInstant,
    /// The lock is held as long as this is open.
    file: Option<OwnedFd>,
}

/// Runs it. The arguments are the command; standard input is the connection to `polylock`.
pub(super) fn run(command: ArgsOs) -> ExitCode {
    if let Err(error) = watch(command)
        && let Some(number) = error.raw_os_error()
    {
        // Only a command that does not begin fails. `polylock` notices the end of the connection as well.
        send_report(stdin(), Report::Failed(number));
    }
    ExitCode::SUCCESS
}

fn watch(command: ArgsOs) -> io::Result<()> {
    let polylock = getppid();
    set_parent_process_death_signal(Some(Signal::CONT))?;
    set_child_subreaper(Some(getpid()))?;
    let socket = UnixStream::from(fcntl_dupfd_cloexec(stdin(), 3)?);
    // All of it runs on the main thread: see `launch`.
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        // What is sent to all processes of a service ends the command as it wants to end, and not its watchdog.
        let _ignored = Signals::listen()?;
        Watchdog::start(socket, polylock, command)?.run().await;
        Ok(())
    })
}

impl Watchdog {
    fn start(socket: UnixStream, polylock: Option<Pid>, command: ArgsOs) -> io::Result<Self> {
        let changes = signal(SignalKind::child())?;
        let mut files = receive_files(&socket)?.into_iter();
        let (Some(stdin), Some(stdout), Some(stderr)) = (files.next(), files.next(), files.next()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut launch = Helper::Launch.command();
        let service = polylock.map_or(0, |pid| pid.as_raw_nonzero().get());
        launch.args([process::id().to_string(), service.to_string()]).args(command);
        launch.stdin(stdin).stdout(stdout).stderr(stderr);
        let pid = i32::try_from(launch.spawn()?.id()).unwrap_or_default();
        let Some(command) = Pid::from_raw(pid) else {
            return Err(io::Error::other("the command has no process id"));
        };
        let wire = Wire::new(socket)?;
        wire.report(Report::Started(pid));
        let (deadline, file) = (BootInstant::NEVER, files.next());
        Ok(Self { wire, changes, command, has_ended: false, deadline, file })
    }

    /// Returns when the command is killed, or `polylock` is gone.
    async fn run(mut self) {
        let alarm = Alarm::new();
        loop {
            // A change may have come before.
            self.look();
            tokio::select! {
                order = self.wire.next_order() => match order {
                    Some(Order::Deadline(at)) => self.deadline = at,
                    Some(Order::Kill) | None => break,
                },
                // What was sent counts before what has passed: this process may have been stopped as well.
                () = alarm.at(self.deadline) => match timeout(MOMENT, self.wire.next_order()).await {
                    Ok(Some(Order::Deadline(at))) => self.deadline = at,
                    Ok(Some(Order::Kill) | None) | Err(_) => break,
                },
                _ = self.changes.recv() => {}
            }
        }
        self.kill_all().await;
    }

    /// Kills until nothing is left. It waits for processes that it may not kill only where this process holds the lock, or for
    /// the command itself.
    async fn kill_all(&mut self) {
        let tree = Tree::of(getpid());
        let mut pause = MOMENT;
        loop {
            let _ = kill_process_group(self.command, Signal::KILL);
            let some_are_left = tree.signal(None, Signal::KILL);
            self.look();
            if self.has_ended && !some_are_left && (self.file.is_none() || tree.is_empty()) {
                return;
            }
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Reports what became of the command, and removes the other children that have ended. The command stays, so that its
    /// process id is no other one's.
    fn look(&mut self) {
        reap::all_but(Some(self.command));
        if self.has_ended {
            return;
        }
        if let Some(ending) = ending_of(self.command) {
            self.has_ended = true;
            self.wire.report(Report::Ended(ending));
        } else if let Some(signal) = stopped(self.command) {
            self.wire.report(Report::Stopped(signal));
        }
    }
}

fn stopped(command: Pid) -> Option<i32> {
    let stopped = waitid(WaitId::Pid(command), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok()??;
    stopped.stopping_signal()
}

fn ending_of(command: Pid) -> Option<Ending> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(command), options).ok()??;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Code((code & 0xff) as u8),
        (_, signal) => Ending::Signal(signal.unwrap_or_default()),
    })
}

const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(5);
