//! The command that runs under the lock, and its process group.

use std::ffi::OsString;
use std::io;
use std::process;

use polylock::Guard;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::signal::unix::{self, SignalKind, signal};

use super::helper::Helper;

/// A child in a process group of its own. If it is dropped before its end, the whole group is killed.
pub(super) struct Child {
    process: process::Child,
    group: Pid,
    changes: unix::Signal,
    is_over: bool,
}

/// A change of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Ended(Ending),
    /// By this signal.
    Stopped(i32),
}

/// How the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Code(u8),
    Signal(i32),
}

impl Child {
    /// Starts the command; it waits to be [continued](Self::go_on). Only the main thread may call it: see
    /// [`launch`](super::launch).
    pub(super) async fn start(command: &[OsString], guard: &Guard) -> io::Result<Self> {
        let changes = signal(SignalKind::child())?;
        let process = Helper::Launch
            .command()
            .arg(process::id().to_string())
            .args(command)
            .env("POLYLOCK_NAME", guard.name().as_str())
            .env("POLYLOCK_TOKEN", guard.token().to_string())
            .spawn()?;
        let Some(group) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) else {
            return Err(io::Error::other("the child has no process id"));
        };
        let mut child = Self { process, group, changes, is_over: false };
        // If it has ended, that is seen again.
        child.change().await?;
        Ok(child)
    }

    /// Continues the child that has just started, or was stopped.
    pub(super) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(super) const fn group(&self) -> Pid {
        self.group
    }

    /// Waits until the child has ended or was stopped. It is cancel safe.
    ///
    /// A child that has ended is kept as a zombie, so that its group is no other one.
    pub(super) async fn change(&mut self) -> io::Result<Change> {
        loop {
            if let Some(change) = self.look()? {
                return Ok(change);
            }
            self.changes.recv().await;
        }
    }

    fn look(&self) -> io::Result<Option<Change>> {
        let id = WaitId::Pid(self.group);
        let ended =
            waitid(id.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?;
        if let Some(status) = ended {
            let ending = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ending::Code((code & 0xff) as u8),
                (_, signal) => Ending::Signal(signal.unwrap_or_default()),
            };
            return Ok(Some(Change::Ended(ending)));
        }
        let stopped = waitid(id, WaitIdOptions::STOPPED | WaitIdOptions::NOHANG)?;
        Ok(stopped.and_then(|status| status.stopping_signal()).map(Change::Stopped))
    }

    /// Sends a signal to the whole group.
    pub(super) fn signal(&self, signal: Signal) {
        // Without rights on a program with set-user-ID there is nothing else to try.
        let _ = kill_process_group(self.group, signal);
    }

    /// Removes the child that has ended.
    pub(super) fn reap(mut self) -> io::Result<()> {
        self.is_over = true;
        self.process.wait().map(drop)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
            let _ = self.process.wait();
        }
    }
}
