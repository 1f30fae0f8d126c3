//! How often the lock is acquired, and what the command ends with.

use std::time::Duration;

use polylock::Guard;
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::RunOptions;
use super::child::Child;
use super::reap;
use super::supervisor::{End, Supervisor};
use super::wire::Ending;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::under_lock::acquire::{Acquirer, NotReleased};
use crate::under_lock::job_control::JobControl;
use crate::under_lock::signals::{self, Signals, ends_campaign};

/// Acquires the lock and runs the command, once or again and again.
pub(super) struct Campaign<'a> {
    acquirer: &'a Acquirer<'a>,
    options: &'a RunOptions,
    output: Output,
}

impl<'a> Campaign<'a> {
    pub(super) const fn new(acquirer: &'a Acquirer<'a>, options: &'a RunOptions, output: Output) -> Self {
        Self { acquirer, options, output }
    }

    pub(super) async fn run(&self, signals: &mut Signals, job: &JobControl) -> Result<Exit, Failure> {
        let mut until = self.acquirer.until;
        loop {
            if signals.had_hang_up() && job.has_lost_terminal() {
                return Ok(self.end_by(Signal::HUP));
            }
            let next = Instant::now() + RESTART_PAUSE;
            match self.once(until, signals, job).await {
                Ok(Turn::Over(exit)) => return Ok(exit),
                Ok(Turn::Again) => {}
                Err(failure) if self.options.restart && self.acquirer.outlives(&failure) => {}
                Err(failure) => return Err(failure),
            }
            tokio::select! {
                () = sleep_until(next) => {}
                signal = signals.ending(job, true) => return Ok(self.end_by(signal)),
            }
            until = self.options.acquire.deadline();
        }
    }

    async fn once(
        &self,
        until: Option<Instant>,
        signals: &mut Signals,
        job: &JobControl,
    ) -> Result<Turn, Failure> {
        let restarts = self.options.restart;
        let guard = tokio::select! {
            guard = self.acquirer.acquire(until) => guard?,
            signal = signals.ending(job, restarts) => return Ok(Turn::Over(self.end_by(signal))),
            never = reap::now_and_then() => match never {},
        };
        if let Some(signal) = signals.hang_up(job).await {
            // The guard is released in the background, and before the connections are closed.
            return Ok(Turn::Over(self.end_by(signal)));
        }
        let end = self.run_command(&guard, signals, job).await;
        let released = self.acquirer.release(guard, signals.ending(job, restarts)).await;
        let End { ending, lost, overran, signal } = match end? {
            Ok(end) => end,
            Err(signal) => return Ok(Turn::Over(self.end_by(signal))),
        };
        let exit = match ending {
            _ if lost || matches!(released, Err(NotReleased::Lost)) => Exit::Other,
            _ if overran => Exit::Code(OVERRAN),
            Ending::Code(code) => Exit::Code(code),
            Ending::Signal(signal) => Exit::signal(signal),
        };
        if !restarts {
            return Ok(Turn::Over(exit));
        }
        match (signal, released) {
            (_, Err(NotReleased::CutOff(signal))) => self.end_by(signal),
            (Some(signal), _) if ends_campaign(signal, job).await => self.end_by(signal),
            _ => return Ok(Turn::Again),
        };
        Ok(Turn::Over(exit))
    }

    /// Runs the command to its end, or returns the signal that came before it has begun.
    async fn run_command(
        &self,
        guard: &Guard,
        signals: &mut Signals,
        job: &JobControl,
    ) -> Result<Result<End, Signal>, Failure> {
        let child = tokio::select! {
            biased;
            child = Child::start(&self.options.command, self.options.keep_url, guard) => child?,
            signal = signals.ending(job, self.options.restart) => return Ok(Err(signal)),
        };
        self.output.detail(&format!("the command runs as process {}", child.group().as_raw_nonzero()));
        let supervisor = Supervisor::new(guard, child, self.options, self.output);
        let end = supervisor.until_the_end(signals, job).await;
        self.output.detail(&format!("the command ended: {}", end.ending));
        Ok(Ok(end))
    }

    fn end_by(&self, signal: Signal) -> Exit {
        end_by(signal, self.options, self.output)
    }
}

/// Mentions the end of a campaign. The exit code is that of a program that the signal ended.
pub(super) fn end_by(signal: Signal, options: &RunOptions, output: Output) -> Exit {
    if options.restart {
        let (signal, name) = (signals::name(signal), &options.acquire.name);
        output.note(&format!(
            "{signal} ends --restart for the lock {name:?}: the command is not started again"
        ));
    }
    Exit::signal(signal.as_raw())
}

/// How one acquisition went.
enum Turn {
    Over(Exit),
    Again,
}

/// The exit code of a command that ran longer than it may: that of `timeout`.
const OVERRAN: u8 = 124;
/// The least time from one start to the next.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
