//! A process that kills the command when `polylock` no longer can.
//!
//! A `polylock` that was killed, stopped or starved notices nothing, while its lock ends and the command goes on. The
//! watchdog gets each deadline of the guard by a pipe. It kills the process group of the command when the last deadline
//! that it knows is near, or when the pipe ends.
//!
//! Somebody may kill the watchdog itself: then `polylock` starts another one. One that is stopped (SIGSTOP) looks alive.

use std::io::{self, Write};
use std::process::{self, ChildStdin, ExitCode, Stdio};
use std::time::Duration;

use polylock::{BootInstant, Clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process_group};

use super::helper::Helper;

/// The watchdog of one child. The child is killed when it is dropped, unless it was dismissed.
pub(super) struct Watchdog {
    process: process::Child,
    pipe: ChildStdin,
    group: Option<Pid>,
    deadline: Option<BootInstant>,
}

impl Watchdog {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Helper::Watchdog.command();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let Some(pipe) = process.stdin.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        // A watchdog that does not read blocks nobody.
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(Self { process, pipe, group: None, deadline: None })
    }

    /// Names the group that it kills.
    pub(super) fn watch(&mut self, group: Pid) {
        self.group = Some(group);
        self.send(group.as_raw_nonzero().get().unsigned_abs().into());
    }

    /// Moves the time at which it kills.
    pub(super) fn set_deadline(&mut self, deadline: BootInstant) {
        if self.deadline != Some(deadline) {
            self.deadline = Some(deadline);
            self.send(u64::try_from(deadline.since_boot().as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Starts another one if it has ended, and reports whether it had.
    pub(super) fn replace_if_dead(&mut self) -> io::Result<bool> {
        if self.process.try_wait()?.is_none() {
            return Ok(false);
        }
        let dead = std::mem::replace(self, Self::start()?);
        // The group first: a watchdog that knows none kills nothing.
        dead.group.into_iter().for_each(|group| self.watch(group));
        dead.deadline.into_iter().for_each(|deadline| self.set_deadline(deadline));
        Ok(true)
    }

    /// Ends it without harm to the child.
    pub(super) fn dismiss(mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    fn send(&mut self, word: u64) {
        // It is the second line of defence: without it the command runs on as long as the first one holds.
        let _ = self.pipe.write_all(&word.to_le_bytes());
    }
}

/// The watchdog itself.
pub(super) fn run() -> ExitCode {
    let Some(group) = read_word().and_then(|word| i32::try_from(word).ok()).and_then(Pid::from_raw) else {
        return ExitCode::SUCCESS;
    };
    wait_for_the_end();
    let _ = kill_process_group(group, Signal::KILL);
    ExitCode::SUCCESS
}

/// Returns when the last deadline has passed, or when the pipe has ended.
fn wait_for_the_end() {
    let clock = Clock::boot();
    let mut deadline = BootInstant::NEVER;
    loop {
        let left = deadline.saturating_duration_since(clock.now());
        // What was sent counts before what has passed: this process may have been stopped as well.
        match has_word(left) {
            Ok(true) => match read_word() {
                Some(word) => deadline = BootInstant::from_boot(Duration::from_nanos(word)),
                None => return,
            },
            Ok(false) if left.is_zero() => return,
            Ok(false) | Err(_) => {}
        }
    }
}

/// Whether a word or the end of the pipe comes within this time, or a second.
fn has_word(patience: Duration) -> rustix::io::Result<bool> {
    let stdin = rustix::stdio::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    // The clock of `poll` stops while the host is suspended; that of the lease does not.
    let patience = patience.min(LONGEST_SLEEP);
    let patience = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos().try_into().unwrap_or_default() };
    poll(&mut polled, Some(&patience)).map(|ready| ready > 0)
}

/// The next word; the pipe writes words as a whole. Nothing is buffered, so that `poll` sees all that is left.
fn read_word() -> Option<u64> {
    let mut word = [0; 8];
    let count = retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut word)).ok()?;
    (count == word.len()).then(|| u64::from_le_bytes(word))
}

const LONGEST_SLEEP: Duration = Duration::from_millis(999);
