//! What the commands that acquire a lock share: the options, the connection, the wait, and what is said meanwhile.

mod connecting;
mod held_by;
mod lock;
mod nested;
mod refusals;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use polylock::{Guard, LockMode, Locks, Released};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use self::connecting::connect;
use self::held_by::held_by;
use self::lock::Lock;
use self::refusals::Refusals;
use crate::connect::{LocksOptions, SILENT_WAIT};
use crate::failure::{Exit, Failure};
use crate::output::{Level, Output, printable};
use crate::under_lock::job_control::JobControl;
use crate::under_lock::session;
use crate::under_lock::signals::{self, Signals};

/// The options of the commands that acquire a lock.
#[derive(Debug, Args)]
pub(crate) struct AcquireOptions {
    #[command(flatten)]
    store: LocksOptions,

    /// Do not wait for the lock
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,

    /// The longest wait for the lock, and for a store that is down, such as 10s or 2m. A number alone is seconds
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    /// Hold the lock as a reader: other readers may hold it too, a writer may not
    #[arg(long, conflicts_with = "permits")]
    shared: bool,

    /// Hold one of this many permits: the lock is a semaphore
    #[arg(long, value_name = "NUMBER")]
    permits: Option<NonZeroU32>,

    /// The longest time that the lock outlives this host. The default is that of the URL or the store
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,

    /// Keep the lock for at least this long, even if the command ends earlier: for jobs that several hosts start by their
    /// clocks. ZooKeeper, files and migrations do not support it
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    hold_at_least: Option<Duration>,

    /// End the wait at the first refusal of the store. By default the wait goes on until the password, the right, the memory
    /// or whatever is missing is available again
    #[arg(long)]
    strict: bool,

    /// The exit code when the lock is busy and the wait is over
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    busy_exit_code: u8,

    /// Do not mention a busy lock or a wait. Errors are still printed
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Print each step: the connection, the token, the end
    #[arg(short, long)]
    verbose: bool,

    /// The name of the lock
    pub(crate) name: String,
}

impl AcquireOptions {
    /// The end of a wait that begins now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.wait.and_then(|wait| Instant::now().checked_add(wait))
    }

    /// The exit code when the lock was not granted until the end of the wait.
    pub(crate) const fn busy_exit(&self) -> Exit {
        Exit::Code(self.busy_exit_code)
    }

    const fn waits_for_ever(&self) -> bool {
        !self.no_wait && self.wait.is_none()
    }

    const fn mode(&self) -> LockMode {
        match self.permits {
            Some(permits) => LockMode::permit(Some(permits)),
            None if self.shared => LockMode::Shared,
            None => LockMode::Exclusive,
        }
    }

    /// The same output, as quiet or verbose as the options ask for.
    pub(crate) const fn output(&self, output: Output) -> Output {
        match (self.quiet, self.verbose) {
            (true, _) => output.at(Level::Quiet),
            (_, true) => output.at(Level::Verbose),
            _ => output,
        }
    }
}

/// Acquires a lock, once or again and again.
pub(crate) struct Acquirer<'a> {
    locks: Locks,
    lock: Lock,
    /// The end of the first wait.
    pub(crate) until: Option<Instant>,
    options: &'a AcquireOptions,
    refusals: Arc<Refusals>,
    output: Output,
}

impl<'a> Acquirer<'a> {
    /// Connects. It tries again after failures that can pass: within the time of `--wait`, and without end with `restarts`.
    pub(crate) async fn connect(
        options: &'a AcquireOptions,
        label: &str,
        restarts: bool,
        output: Output,
    ) -> Result<Self, Failure> {
        let refusals = Arc::new(Refusals::new(output));
        let persists = !options.strict && (restarts || options.wait.is_some());
        let (locks, until) = connect(options, restarts, persists, &refusals, output).await?;
        output.detail("connected to the store");
        if options.waits_for_ever() {
            nested::check(&locks, &options.name, options.mode()).await?;
        }
        let lock = Lock::new(&locks, options, label, persists, &refusals)?;
        Ok(Self { locks, lock, until, options, refusals, output })
    }

    /// Acquires the lock before this time.
    pub(crate) async fn acquire(&self, until: Option<Instant>) -> Result<Guard, Failure> {
        let acquire = self.lock.acquire(self.options.no_wait, until);
        tokio::pin!(acquire);
        let acquired = tokio::select! {
            acquired = &mut acquire => acquired,
            () = self.mention_wait() => acquire.await,
        };
        let Some(guard) = acquired? else { return Err(self.busy().await) };
        self.refusals.forget();
        self.output.detail(&format!(
            "acquired the lock {:?} with token {}",
            self.options.name,
            guard.token()
        ));
        Ok(guard)
    }

    /// Releases the lock, and says why if that failed. The wait for a server that does not answer is short. A signal ends it,
    /// and the release goes on in the background.
    pub(crate) async fn release(
        &self,
        guard: Guard,
        signal: impl Future<Output = Signal>,
    ) -> Result<(), NotReleased> {
        let (is_valid, left) = (guard.is_valid(), guard.remaining());
        let released = tokio::select! {
            released = timeout(RELEASE_LIMIT, guard.release()) => Ok(released),
            signal = signal => Err(signal),
        };
        let (failed, why) = match released {
            Ok(Ok(Ok(Released::Released))) => {
                self.output.detail("released the lock");
                return Ok(());
            }
            Ok(Ok(Ok(_))) => (NotReleased::Lost, String::new()),
            Ok(Ok(Err(error))) => {
                (NotReleased::Unknown(Failure::from(error.clone()).exit), error.to_string())
            }
            Ok(Err(_)) => (NotReleased::Unknown(Exit::Unavailable), "the store does not answer".to_owned()),
            Err(signal) => {
                let why = format!("{} ended the release before the store answered", signals::name(signal));
                (NotReleased::CutOff(signal), why)
            }
        };
        let (name, left) = (&self.options.name, left.as_secs() + 1);
        self.output.say(&match failed {
            // The loss was reported.
            _ if !is_valid => return Err(failed),
            NotReleased::Lost => {
                format!("polylock: the lock {name:?} was lost before its release: another client may have held it")
            }
            _ => format!(
                "polylock: the lock {name:?} was not released: {}; it ends with its lease or session, in about {left} s",
                printable(&why)
            ),
        });
        Err(failed)
    }

    /// Closes the connections.
    pub(crate) async fn close(&self, signals: &mut Signals, job: &JobControl) {
        tokio::select! {
            () = session::close_within(CLOSE_LIMIT, &self.locks) => {}
            _ = signals.ending(job, false) => {}
        }
    }

    /// Reports a failure that is expected to pass, once for each reason.
    pub(crate) fn outlives(&self, failure: &Failure) -> bool {
        let outlives = failure.can_pass && !self.options.strict;
        if outlives {
            self.refusals.say(failure);
        }
        outlives
    }

    /// Mentions a wait that is longer than a moment.
    async fn mention_wait(&self) {
        sleep(SILENT_WAIT).await;
        if self.output.is_quiet() || self.refusals.are_some() {
            return;
        }
        let name = &self.options.name;
        let holders =
            held_by(&self.locks, name).await.map(|holders| format!(", {holders}")).unwrap_or_default();
        let who = format!("`polylock holders {}` shows the queue", printable(name));
        self.output.note(&format!("waiting for the lock {name:?}{holders}; {who}"));
    }

    async fn busy(&self) -> Failure {
        let (AcquireOptions { name, no_wait, .. }, exit) = (self.options, self.options.busy_exit());
        if self.output.is_quiet() {
            return Failure { is_silent: true, ..Failure::new(exit, "busy", String::new(), None) };
        }
        let holders =
            held_by(&self.locks, name).await.map(|holders| format!(": {holders}")).unwrap_or_default();
        let queue = format!("polylock holders {}", printable(name));
        let hint = match no_wait {
            true => format!("wait for it with -w DURATION, or see the queue: {queue}"),
            false => format!("see the queue: {queue}"),
        };
        Failure::new(exit, "busy", format!("the lock {name:?} is busy{holders}"), Some(hint))
    }
}

/// Why a lock was not released, as far as this process knows.
pub(crate) enum NotReleased {
    /// It was lost before.
    Lost,
    /// The store did not confirm it.
    Unknown(Exit),
    /// A signal came before the store answered.
    CutOff(Signal),
}

/// A store that hangs delays the exit code of a command that has ended by no more than this.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);
/// For what is released in the background. With the release before, a store that hangs delays the exit by 5 s at most.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A duration as `10s`, or in seconds as `10` or `0.5`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_or_is_in_seconds() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m 5s"), Ok(Duration::from_secs(125)));
        for wrong in ["", "-1", "soon", "nan", "1e30"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
