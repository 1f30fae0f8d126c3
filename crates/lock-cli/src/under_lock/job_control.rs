//! Who reads from the terminal, and what Ctrl-Z stops.
//!
//! The command has a process group of its own, and begins in the background of the terminal. If it reads from the terminal
//! or sets its modes, the kernel stops it; then it gets the foreground, and goes on. So `polylock run ... | less` leaves the
//! terminal to `less`, and an editor under `polylock run` gets it.
//!
//! A command that was stopped otherwise, by Ctrl-Z, stops the whole job with it. Nothing but `polylock` continues it, and
//! only while the lock is valid.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blocked};
use nix::unistd::getpgrp;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Result;
use rustix::process::{Pid, Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use tokio::time::{Instant, sleep};

use crate::under_lock::tree;

/// The terminal that controls this process, if any.
pub(crate) struct JobControl {
    terminal: Option<OwnedFd>,
    modes: Option<Termios>,
}

impl JobControl {
    pub(crate) fn new() -> Self {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let terminal = open("/dev/tty", flags, Mode::empty()).ok();
        let modes = terminal.as_ref().and_then(|terminal| tcgetattr(terminal).ok());
        Self { terminal, modes }
    }

    /// Gives the foreground to the group of the command, if this process has it.
    pub(crate) fn lend(&self, group: Pid) -> bool {
        own_group().is_some_and(|own| self.pass(own, group).is_ok())
    }

    /// Takes the foreground back from the group of the command, if that has it.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        own_group().is_some_and(|own| self.pass(group, own).is_ok())
    }

    /// Sets the modes of the terminal as they were at the start: a command that is killed in the midst of it leaves others.
    pub(crate) fn restore_modes(&self) {
        if let (Some(terminal), Some(modes)) = (&self.terminal, &self.modes) {
            let _ = tcsetattr(terminal, OptionalActions::Drain, modes);
        }
    }

    /// Whether the terminal that controlled this process at its start is gone, now or in a moment: a shell that ends signals its
    /// jobs first.
    pub(crate) async fn loses_terminal(&self) -> bool {
        let until = Instant::now() + HANG_UP_LIMIT;
        while self.terminal.is_some() && !self.has_lost_terminal() && Instant::now() < until {
            sleep(MOMENT).await;
        }
        self.has_lost_terminal()
    }

    pub(crate) fn has_lost_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| tcgetpgrp(terminal).is_err())
    }

    /// Whether no shell would continue this job, so that it cannot be [stopped](Self::stop).
    #[allow(clippy::unused_self, reason = "it is a part of job control")]
    pub(crate) fn is_orphaned(&self) -> bool {
        tree::is_orphaned()
    }

    /// Stops this process and its job, and returns when it goes on.
    ///
    /// The kernel does not stop an orphaned group for this signal: then it returns at once.
    #[allow(clippy::unused_self, reason = "it is a part of job control")]
    pub(crate) fn stop(&self) {
        let _ = kill_current_process_group(Signal::TTIN);
    }

    fn pass(&self, from: Pid, to: Pid) -> Result<()> {
        let Some(terminal) = &self.terminal else { return Err(rustix::io::Errno::NOTTY) };
        if tcgetpgrp(terminal)? != from {
            return Err(rustix::io::Errno::PERM);
        }
        // In the background, this would stop the process.
        let mut output = SigSet::empty();
        output.add(Blocked::SIGTTOU);
        let before = output.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(|_| rustix::io::Errno::INVAL)?;
        let passed = tcsetpgrp(terminal, to);
        let _ = before.thread_set_mask();
        passed
    }
}

/// From a SIGHUP to the end of the terminal.
const HANG_UP_LIMIT: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(50);

/// The process group of this process; `None` when it is outside of the process namespace, as below `unshare --pid --fork`.
fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}
