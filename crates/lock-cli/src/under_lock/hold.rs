//! `polylock hold`: holds a lock until a signal, for several steps of one script.

use std::future::pending;
use std::time::Duration;

use clap::Args;
use polylock::{Guard, GuardState};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::json;
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::under_lock::acquire::{AcquireOptions, Acquirer, NotReleased};
use crate::under_lock::job_control::JobControl;
use crate::under_lock::signals::Signals;

/// The options of `polylock hold`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXITS}"))]
pub(crate) struct HoldOptions {
    #[command(flatten)]
    acquire: AcquireOptions,

    /// Also release the lock when this process has ended, such as the script: $$
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
}

const EXAMPLES: &str = "\
The fencing token is printed once the lock is held. SIGINT, SIGTERM or any other signal that ends programs releases the lock. Nothing \
stops the script when the lock is lost: `polylock run` does that for a command, so prefer it where one command is enough.

Examples:
  exec 3< <(polylock hold deploy --pid $$)   # bash
  lock=$!
  read -r token <&3 || exit                  # no lock, no token
  ./build.sh && ./install.sh --token \"$token\"
  kill $lock && wait $lock";

const EXITS: &str = "\
Exit codes: 0 released, 64 usage, 69 the store does not answer, also to the release, 70 the lock was lost, or another error, 75 (or -E) the lock is busy, \
128 + n signal n ended the wait";

/// Holds the lock until a signal, the end of the process, or its loss.
pub(crate) async fn run(options: HoldOptions, output: Output) -> Result<Exit, Failure> {
    let HoldOptions { acquire, pid } = &options;
    let output = acquire.output(output);
    let process = pid.map(watched).transpose()?;
    let (mut signals, job) = (Signals::listen()?, JobControl::new());
    let acquirer = tokio::select! {
        acquirer = Acquirer::connect(acquire, LABEL, false, output) => acquirer?,
        end = end(&process, &mut signals, &job) => return Ok(end.of_wait(acquire)),
    };
    let acquired = tokio::select! {
        guard = acquirer.acquire(acquirer.until) => guard.map(Ok),
        end = end(&process, &mut signals, &job) => Ok(Err(end.of_wait(acquire))),
    };
    let exit = match acquired {
        Ok(Ok(guard)) => hold(&acquirer, guard, &process, &mut signals, &job, output).await,
        Ok(Err(exit)) => Ok(exit),
        Err(failure) => Err(failure),
    };
    acquirer.close(&mut signals, &job).await;
    exit
}

async fn hold(
    acquirer: &Acquirer<'_>,
    guard: Guard,
    process: &Option<Receiver>,
    signals: &mut Signals,
    job: &JobControl,
    output: Output,
) -> Result<Exit, Failure> {
    let name = guard.name().as_str();
    let token = guard.token();
    let printed = output.result(&token.to_string(), &json!({ "name": name, "token": token }));
    if printed.is_ok() {
        tokio::select! {
            _ = guard.lost() => {}
            _ = end(process, signals, job) => {}
        }
    }
    // A process that was paused may notice the signal first.
    if let GuardState::Lost(loss) = guard.state() {
        output.say(&format!("polylock: the lock {name:?} is lost: {loss}; stop what it protects"));
        return Ok(Exit::Other);
    }
    // Nobody knows of a lock whose token nobody can read.
    let second_signal = async {
        let signal = signals.ending(job, false).await;
        // It may come with the first: `timeout` sends two.
        sleep(MOMENT).await;
        signal
    };
    let released = acquirer.release(guard, second_signal).await;
    printed?;
    Ok(match released {
        Ok(()) => Exit::Done,
        Err(NotReleased::Lost) => Exit::Other,
        Err(NotReleased::Unknown(exit)) => exit,
        Err(NotReleased::CutOff(_)) => Exit::Unavailable,
    })
}

/// Why the hold ends.
enum End {
    Signal(Signal),
    Process,
}

impl End {
    /// The exit code if the lock was not acquired yet.
    fn of_wait(self, options: &AcquireOptions) -> Exit {
        match self {
            Self::Signal(signal) => Exit::signal(signal.as_raw()),
            Self::Process => options.busy_exit(),
        }
    }
}

async fn end(process: &Option<Receiver>, signals: &mut Signals, job: &JobControl) -> End {
    let process = async {
        match process {
            // It is readable once the process has ended.
            Some(process) => drop(process.readable().await),
            None => pending().await,
        }
    };
    tokio::select! {
        signal = signals.ending(job, false) => End::Signal(signal),
        () = process => End::Process,
    }
}

fn watched(pid: i32) -> Result<Receiver, Failure> {
    let process = Pid::from_raw(pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
    let process = process.map_err(|error| {
        Failure::usage(
            format!("cannot watch the process {pid}: {error}"),
            "name a process that runs, such as --pid $$",
        )
    })?;
    // It is no pipe, but becomes readable as one does.
    Ok(Receiver::from_owned_fd_unchecked(process)?)
}

const LABEL: &str = "polylock hold";
/// For a release that a second signal is about to end.
const MOMENT: Duration = Duration::from_millis(500);
