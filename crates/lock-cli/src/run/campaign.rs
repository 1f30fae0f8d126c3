//! How often the lock is acquired, and what the command ends with.

use std::sync::Arc;
use std::time::Duration;

use polylock::{Guard, Locks, Released};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::RunOptions;
use super::child::Child;
use super::hold::{End, Hold};
use super::job_control::JobControl;
use super::lock::Lock;
use super::reap;
use super::refusals::Refusals;
use super::signals::Signals;
use super::wire::Ending;
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};

/// Acquires the lock and runs the command, once or again and again.
pub(super) struct Campaign<'a> {
    locks: &'a Locks,
    options: &'a RunOptions,
    output: Output,
    refusals: Arc<Refusals>,
}

impl<'a> Campaign<'a> {
    pub(super) fn new(locks: &'a Locks, options: &'a RunOptions, output: Output) -> Self {
        Self { locks, options, output, refusals: Arc::new(Refusals::new(output)) }
    }

    pub(super) async fn run(&self, signals: &mut Signals, job: &JobControl) -> Result<Exit, Failure> {
        let lock = Lock::new(self.locks, self.options, &self.refusals)?;
        let persists = self.options.restart && !self.options.strict;
        loop {
            let next = Instant::now() + RESTART_PAUSE;
            match self.once(&lock, signals, job).await {
                Ok(Turn::Over(exit)) => return Ok(exit),
                Ok(Turn::Again) => {}
                Err(failure) if persists && failure.can_pass => self.refusals.say(&failure),
                Err(failure) => return Err(failure),
            }
            tokio::select! {
                () = sleep_until(next) => {}
                signal = ending(signals, job) => return Ok(Exit::signal(signal.as_raw())),
            }
        }
    }

    async fn once(&self, lock: &Lock, signals: &mut Signals, job: &JobControl) -> Result<Turn, Failure> {
        let guard = tokio::select! {
            guard = self.acquire(lock) => guard?,
            signal = ending(signals, job) => return Ok(Turn::Over(Exit::signal(signal.as_raw()))),
            never = reap::now_and_then() => match never {},
        };
        let Some(guard) = guard else { return Err(self.busy()) };
        self.refusals.forget();
        let end = self.hold(&guard, signals, job).await;
        self.release(guard, signals, job).await;
        let End { ending, lost, overran, is_told_to_end } = end?;
        if self.options.restart && !is_told_to_end {
            return Ok(Turn::Again);
        }
        Ok(Turn::Over(match ending {
            _ if lost => Exit::Other,
            _ if overran => Exit::Code(OVERRAN),
            Ending::Code(code) => Exit::Code(code),
            Ending::Signal(signal) => Exit::signal(signal),
        }))
    }

    async fn acquire(&self, lock: &Lock) -> Result<Option<Guard>, Failure> {
        let acquire = lock.acquire(self.options);
        tokio::pin!(acquire);
        let acquired = tokio::select! {
            acquired = &mut acquire => acquired,
            () = sleep(SILENT_WAIT) => {
                let name = &self.options.name;
                let who = format!("`polylock holders {}` shows who has it", printable(name));
                self.output.say(&format!("polylock: waiting for the lock {name:?}; {who}"));
                acquire.await
            }
        };
        Ok(acquired?)
    }

    async fn hold(&self, guard: &Guard, signals: &mut Signals, job: &JobControl) -> Result<End, Failure> {
        let child = Child::start(&self.options.command, guard).await?;
        let hold = Hold::new(guard, child, self.options, self.output);
        Ok(hold.until_the_end(signals, job).await?)
    }

    /// Releases the lock. A server that does not answer keeps nobody waiting for long.
    async fn release(&self, guard: Guard, signals: &mut Signals, job: &JobControl) {
        let (is_valid, left) = (guard.is_valid(), guard.remaining());
        let released = tokio::select! {
            released = timeout(RELEASE_LIMIT, guard.release()) => released,
            _ = ending(signals, job) => return,
        };
        let why = match released {
            Ok(Ok(Released::Released)) => return,
            // The loss was reported.
            _ if !is_valid => return,
            Ok(Ok(_)) => "it was lost just before".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store does not answer".to_owned(),
        };
        self.output.say(&format!(
            "polylock: the lock {:?} was not released: {}; it ends with its lease or session, in about {} s",
            self.options.name,
            printable(&why),
            left.as_secs() + 1
        ));
    }

    fn busy(&self) -> Failure {
        let name = &self.options.name;
        let hint = format!("wait with -w DURATION, or see who has it: polylock holders {}", printable(name));
        let exit = Exit::Code(self.options.busy_exit_code);
        Failure::new(exit, "busy", format!("the lock {name:?} is busy"), Some(hint))
    }
}

/// How one acquisition went.
enum Turn {
    Over(Exit),
    Again,
}

/// Waits for a signal that ends the command. One of job control stops it as if it had no handler.
pub(super) async fn ending(signals: &mut Signals, job: &JobControl) -> Signal {
    loop {
        let signal = signals.next().await;
        if signal != Signal::TSTP {
            return signal;
        }
        job.stop();
    }
}

/// A wait that is longer is mentioned.
const SILENT_WAIT: Duration = Duration::from_secs(1);
/// For so long a store that hangs keeps back the exit code of a command that has ended.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);
/// The exit code of a command that ran longer than it may: that of `timeout`.
const OVERRAN: u8 = 124;
/// From one start to the next, at least.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
