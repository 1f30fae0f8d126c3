//! The time from the start of the command to its end.

use std::time::Duration;

use polylock::{BootInstant, Clock, Guard, GuardState, LossReason};
use rustix::process::{Pid, Signal};
use tokio::time::sleep;

use super::alarm::Alarm;
use super::child::{Change, Child};
use super::deadline::Timing;
use super::wire::Ending;
use super::{OnLost, RunOptions};
use crate::output::Output;
use crate::under_lock::job_control::JobControl;
use crate::under_lock::signals::Signals;

/// A guard, and the child that runs under it.
pub(super) struct Supervisor<'a> {
    guard: &'a Guard,
    child: Child,
    on_lost: OnLost,
    timing: Timing,
    /// When the command has run for as long as it may.
    overrun_at: BootInstant,
    stage: Stage,
    /// Whether it is stopped for running longer than it may.
    overran: bool,
    clock: Clock,
    alarm: Alarm,
    loss: Option<LossReason>,
    /// Until when the lock is valid; once it is lost, until when it was: no later answer of the store counts.
    until: BootInstant,
    /// The last signal that may end what would start the command again.
    signal: Option<Signal>,
    /// Whether the command has got the terminal.
    has_terminal: bool,
    /// When the command last asked for a terminal that this job cannot give.
    asked_at: Option<BootInstant>,
    is_hung_up: bool,
    /// When it goes on after that.
    go_on_at: Option<BootInstant>,
    output: Output,
}

/// How the child ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) ending: Ending,
    /// Whether the lock was lost, or could not be kept in time.
    pub(super) lost: bool,
    /// Whether it was stopped for running longer than it may.
    pub(super) overran: bool,
    /// The signal that came before its end, if any.
    pub(super) signal: Option<Signal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// The lock is lost, and the child goes on.
    Warned,
    /// SIGTERM was sent at this time.
    Terminated(BootInstant),
    Killed,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(guard: &'a Guard, child: Child, options: &RunOptions, output: Output) -> Self {
        let clock = Clock::boot();
        Self {
            guard,
            child,
            on_lost: options.on_lost,
            timing: Timing::new(options.grace),
            overrun_at: options.max_run.map_or(BootInstant::NEVER, |most| clock.now() + most),
            stage: Stage::Running,
            overran: false,
            clock,
            alarm: Alarm::new(),
            loss: None,
            until: guard.valid_until(),
            signal: None,
            has_terminal: false,
            asked_at: None,
            is_hung_up: false,
            go_on_at: None,
            output,
        }
    }

    /// Waits until the child has ended, and stops it if the lock may end before.
    pub(super) async fn until_the_end(mut self, signals: &mut Signals, job: &JobControl) -> End {
        // The watchdog gets the deadline before the command begins.
        let mut wake = self.act();
        if self.stage != Stage::Killed {
            self.child.go_on();
        }
        let ending = loop {
            tokio::select! {
                change = self.child.change() => match change {
                    Change::Ended(ending) => break ending,
                    Change::Stopped(signal) => self.follow_stop(signal, job),
                    Change::Unwatched => {
                        self.output.say("polylock: the watchdog was killed, and the command with it");
                        break Ending::Signal(Signal::KILL.as_raw());
                    }
                },
                signal = signals.next() => self.pass_on(signal),
                loss = self.guard.lost(), if self.loss.is_none() => self.loss = Some(loss),
                () = self.alarm.at(wake) => {}
            }
            wake = self.act();
        };
        self.end(ending, signals, job).await
    }

    /// Does what the deadline asks for now, and returns when to look again.
    fn act(&mut self) -> BootInstant {
        // Read before the clock: it is never too early for what it says.
        let until = self.look();
        let now = self.clock.now();
        self.timing.note(until.saturating_duration_since(now));
        if self.on_lost != OnLost::Warn {
            self.child.set_deadline(self.last_resort_at());
        }
        self.child.look_after();
        let is_due = self.next_at(until).is_some_and(|at| now >= at);
        if is_due || self.stage == Stage::Running && self.loss.is_some() {
            self.advance(now, until);
        }
        if self.stage == Stage::Killed {
            // What has been started since.
            self.child.kill();
        }
        if self.go_on_at.is_some_and(|at| now >= at) {
            self.go_on();
        }
        let tick = now + self.timing.tick();
        self.next_at(until).map_or(tick, |at| at.min(tick))
    }

    /// Looks at the lock, and returns until when it is valid, or was.
    fn look(&mut self) -> BootInstant {
        let until = self.guard.valid_until();
        if let GuardState::Lost(loss) = self.guard.state() {
            self.loss = Some(loss);
        }
        self.until = if self.loss.is_none() { until } else { until.min(self.until) };
        self.until
    }

    fn last_resort_at(&self) -> BootInstant {
        self.timing.last_resort_at(self.until)
    }

    /// When the next stage begins, unless the lock is renewed or lost before.
    fn next_at(&self, until: BootInstant) -> Option<BootInstant> {
        let kill_at = match self.on_lost {
            OnLost::Warn => BootInstant::NEVER,
            OnLost::Term | OnLost::Kill => self.timing.kill_at(until),
        };
        match (self.stage, self.on_lost) {
            (Stage::Running, OnLost::Term) => Some(self.timing.term_at(until).min(self.overrun_at)),
            (Stage::Running, OnLost::Kill) => Some(kill_at.min(self.overrun_at)),
            (Stage::Running, OnLost::Warn) => Some(until.min(self.overrun_at)),
            (Stage::Warned, _) => Some(self.overrun_at),
            (Stage::Terminated(at), _) => Some((at + self.timing.grace()).min(kill_at)),
            (Stage::Killed, _) => None,
        }
    }

    /// Begins the next stage. The signal comes before the message: nobody may read that.
    fn advance(&mut self, now: BootInstant, until: BootInstant) {
        let overran = now >= self.overrun_at;
        if self.on_lost == OnLost::Warn && self.stage == Stage::Running && !overran {
            self.stage = Stage::Warned;
            return self.report("goes on without it");
        }
        let has_time = self.on_lost == OnLost::Warn || now < self.timing.kill_at(until);
        let has_grace = has_time && (self.on_lost != OnLost::Kill || overran);
        if matches!(self.stage, Stage::Running | Stage::Warned) {
            self.overran = overran && self.loss.is_none();
        }
        let (reached, signal) = match self.stage {
            Stage::Running | Stage::Warned if has_grace => {
                self.stage = Stage::Terminated(now);
                (self.child.terminate(), "gets SIGTERM")
            }
            _ => {
                self.stage = Stage::Killed;
                (self.child.kill(), "gets SIGKILL")
            }
        };
        self.report(if reached { signal } else { NOT_OURS });
    }

    fn report(&self, what: &str) {
        let why = match self.loss {
            Some(loss) => format!("is lost: {loss}"),
            None if self.overran => "was held for as long as --max-run allows".to_owned(),
            None => "may be lost soon: the store did not confirm it in time".to_owned(),
        };
        let name = self.guard.name().as_str();
        self.output.say(&format!("polylock: the lock {name:?} {why}; the command {what}"));
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::INT | Signal::TERM | Signal::QUIT => self.signal = Some(signal),
            // It may end nothing: those above count more.
            Signal::HUP => drop(self.signal.get_or_insert(signal)),
            _ => {}
        }
        self.child.signal(signal);
    }

    /// Stops this job with the child, and continues the child while the lock is valid.
    fn follow_stop(&mut self, signal: i32, job: &JobControl) {
        let group = self.child.group();
        let wants_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        if wants_terminal && job.lend(group) {
            self.has_terminal = true;
            return self.go_on();
        }
        if !wants_terminal && signal != Signal::TSTP.as_raw() {
            // A person stopped the child alone: the lock is kept.
            return;
        }
        if wants_terminal && self.asks_again(job) {
            return;
        }
        self.has_terminal &= !job.take_back(group);
        job.stop();
        self.go_on();
    }

    /// Answers a child that has asked for the terminal and that nobody can give it. The kernel hangs up a group that was stopped
    /// and is orphaned; a child that survives that, and asks again, is slowed down.
    fn asks_again(&mut self, job: &JobControl) -> bool {
        let now = self.clock.now();
        let before = self.asked_at.replace(now);
        if before.is_some_and(|before| now < before + ASKS_AT_MOST) {
            self.go_on_at = Some(now + ASKS_AT_MOST);
            return true;
        }
        if !self.is_hung_up && job.is_orphaned() {
            self.is_hung_up = true;
            self.output.say("polylock: the command uses the terminal, and no shell can give it to this job: it gets SIGHUP");
            self.child.signal(Signal::HUP);
            self.go_on();
            return true;
        }
        false
    }

    fn go_on(&mut self) {
        self.go_on_at = None;
        // A child whose lock was lost meanwhile is stopped before it goes on.
        if self.guard.is_valid() || self.stage != Stage::Running {
            self.child.go_on();
        }
    }

    async fn end(mut self, ending: Ending, signals: &Signals, job: &JobControl) -> End {
        // A child that ended after its lock is no success.
        self.look();
        // The watchdog may have been first.
        let is_late = self.on_lost != OnLost::Warn && self.clock.now() >= self.last_resort_at();
        let was_stopped = !matches!(self.stage, Stage::Running | Stage::Warned);
        let lost = self.loss.is_some() || is_late || was_stopped && !self.overran;
        if lost && self.stage == Stage::Running {
            self.report("has just ended");
        }
        let had_terminal = job.take_back(self.child.group());
        if was_stopped || !self.child.is_watched() || lost && self.on_lost != OnLost::Warn {
            self.stop_rest().await;
            if had_terminal {
                job.restore_modes();
            }
        }
        let key = key_of(ending).filter(|_| had_terminal);
        // The kernel hangs up the group that has the terminal, and that is the command's.
        let is_hung_up = self.has_terminal && job.has_lost_terminal() && signals.listens_to(Signal::HUP);
        let hang_up = is_hung_up.then_some(Signal::HUP);
        self.child.reap();
        End { ending, lost, overran: self.overran, signal: key.or(self.signal).or(hang_up) }
    }

    /// Stops what the command has left: while the lock is held, after its grace, and to the end.
    async fn stop_rest(&self) {
        if let Stage::Terminated(at) = self.stage {
            let kill_at = (at + self.timing.grace()).min(self.timing.kill_at(self.until));
            while self.guard.is_valid() && self.clock.now() < kill_at && !self.child.is_empty() {
                self.child.look_after();
                sleep(MOMENT).await;
            }
        }
        let mut is_told = false;
        loop {
            let left = self.child.kill_rest().await;
            if !left.is_empty() && !is_told {
                is_told = true;
                self.report_refused(&left);
            }
            if left.is_empty() && self.child.is_empty() || !self.guard.is_valid() {
                return;
            }
            sleep(LONG_MOMENT).await;
        }
    }

    fn report_refused(&self, left: &[Pid]) {
        let left: Vec<_> = left.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        let name = self.guard.name().as_str();
        let which = left.join(", ");
        let ends = if self.guard.is_valid() { "is kept until they end" } else { "is lost" };
        self.output.say(&format!(
            "polylock: processes of another user run on, which polylock may not kill: {which}; the lock {name:?} {ends}"
        ));
    }
}

const MOMENT: Duration = Duration::from_millis(20);
const LONG_MOMENT: Duration = Duration::from_millis(500);
/// A child that asks for the terminal more often would spin.
const ASKS_AT_MOST: Duration = Duration::from_secs(2);
const NOT_OURS: &str = "runs on, as polylock may not signal a process of another user";

/// The signal of the key by which a command that had the terminal has ended: Ctrl-C or Ctrl-\. One that catches it exits with
/// 128 + n.
fn key_of(ending: Ending) -> Option<Signal> {
    let number = match ending {
        Ending::Code(code) => i32::from(code) - 128,
        Ending::Signal(number) => number,
    };
    [Signal::INT, Signal::QUIT].into_iter().find(|key| key.as_raw() == number)
}
