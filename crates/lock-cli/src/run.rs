//! `polylock run`: holds a lock while a command runs.

mod campaign;
mod child;
mod deadline;
mod helper;
mod hold;
mod job_control;
mod launch;
mod lock;
mod reap;
mod refusals;
mod signals;
mod tree;
mod watchdog;
mod wire;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use clap::{Args, ValueEnum};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::geteuid;
use rustix::thread::no_new_privs;

use self::campaign::{Campaign, ending};
pub(crate) use self::helper::run_helper;
use self::job_control::JobControl;
use self::signals::Signals;
use crate::connect::{self, LocksOptions};
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};
use crate::session;

/// The options of `polylock run`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXITS}"))]
pub(crate) struct RunOptions {
    #[command(flatten)]
    store: LocksOptions,

    /// Do not wait for the lock
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,

    /// Wait for the lock so long at most, such as 10s or 2m; a number alone is seconds
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    /// Hold the lock as a reader: with other readers, and without a writer
    #[arg(long, conflicts_with = "permits")]
    shared: bool,

    /// Hold one of so many permits: the lock is a semaphore
    #[arg(long, value_name = "NUMBER")]
    permits: Option<NonZeroU32>,

    /// The lock is free so long after this host died, at most; by default that of the URL or the store
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,

    /// Keep the lock so long, also when the command ends earlier: for jobs that several hosts start by their clocks. Not on
    /// ZooKeeper
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    hold_at_least: Option<Duration>,

    /// Acquire the lock again after the command has ended or the lock is lost, until a signal ends both
    #[arg(long)]
    restart: bool,

    /// End when the store refuses the lock. By default, what waits for the lock or restarts the command goes on: until the
    /// password, the right, the memory or whatever was missing is there again
    #[arg(long)]
    strict: bool,

    /// What happens to the command when the lock is lost, or cannot be kept in time
    #[arg(long, value_name = "WHAT", value_enum, default_value = "term")]
    on_lost: OnLost,

    /// The time between SIGTERM and SIGKILL. It is shortened so that the command has ended before the lock has
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    grace: Duration,

    /// Stop the command when it has run for this long: SIGTERM, and SIGKILL after the grace
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_run: Option<Duration>,

    /// The exit code when the lock is busy, and the wait is over
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    busy_exit_code: u8,

    /// The name of the lock
    name: String,

    /// The command and its arguments. No shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// SIGTERM, and SIGKILL after the grace
    Term,
    /// SIGKILL
    Kill,
    /// It goes on without the lock, and a message says so
    Warn,
}

const EXAMPLES: &str = "\
The command sees POLYLOCK_NAME and POLYLOCK_TOKEN, the fencing token: send it along with every write. Its standard streams \
are those of polylock. Signals go to its process group. It ends before the lock does, also when polylock is stopped or killed.

Examples:
  polylock run nightly-report -n -- ./report.sh       not twice at once, on any host
  polylock run hourly -n --hold-at-least 1m -- ./job  once, by clocks that differ by less than a minute
  polylock run deploy -w 10m -- ansible-playbook site.yml
  polylock run scheduler --restart -- ./scheduler     one leader; the others stand by
  polylock run gpu --permits 4 -- ./train             four at a time";

/// Shown by `run --help`.
const EXITS: &str = "\
Exit codes: that of the command, or 128 + n if signal n ended it; 64 usage, 69 the store does not answer, 70 the lock was \
lost while the command ran, or another error, 75 (or -E) the lock is busy, 124 the command ran longer than --max-run, 126 and 127 the command cannot be run";

/// Runs the command under the lock.
pub(crate) async fn run(options: RunOptions, output: Output) -> Result<Exit, Failure> {
    if output.is_json() {
        return Err(Failure::usage(
            "standard output belongs to the command that run starts",
            "leave out --json",
        ));
    }
    let program = match program(&options.command[0]) {
        Ok(program) => program,
        Err(failure) => return Ok(output.fail(&failure)),
    };
    if options.on_lost != OnLost::Warn && program.as_deref().is_some_and(is_of_another_user) {
        return Ok(output.fail(&not_ours(&options.command[0])));
    }
    let mut signals = Signals::listen()?;
    let job = JobControl::new();
    let locks = tokio::select! {
        locks = connect::locks(options.store.clone()) => locks?,
        signal = ending(&mut signals, &job) => return Ok(Exit::signal(signal.as_raw())),
    };
    let exit = Campaign::new(&locks, &options, output).run(&mut signals, &job).await;
    tokio::select! {
        () = session::close_within(CLOSE_LIMIT, &locks) => {}
        _ = ending(&mut signals, &job) => {}
    }
    exit
}

/// For what is released in the background. With the release of the lock before, a store that hangs delays the exit by 5 s at
/// most.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Where the program of the command is; `None` where only the kernel knows. A command that does not exist or cannot be run is
/// found before anybody waits for the lock.
fn program(name: &OsString) -> Result<Option<PathBuf>, Failure> {
    // Without PATH, the kernel's default counts.
    if env::var_os("PATH").is_none() {
        return Ok(None);
    }
    let error = match which::which(name) {
        Ok(path) => return Ok(Some(path)),
        Err(error) => error,
    };
    let text = printable(&name.to_string_lossy());
    let exists = Path::new(name).exists() && text.contains('/');
    let (code, why) = if exists { (126, "cannot be run") } else { (127, "does not exist") };
    let hint = match exists {
        true => "make it executable: chmod +x".to_owned(),
        false => "check its name and PATH; what a shell knows needs one: sh -c '...'".to_owned(),
    };
    let message = format!("the command {text:?} {why}: {error}");
    Err(Failure::new(Exit::Code(code), "command", message, Some(hint)))
}

/// Whether the program becomes another user, whom this process may not kill: it has the set-user-ID bit (`sudo`, `su`).
fn is_of_another_user(program: &Path) -> bool {
    let has_bit = |file: &fs::Metadata| file.mode() & 0o4000 != 0 && file.uid() != geteuid().as_raw();
    let is_ignored = || {
        statvfs(program).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID))
            || no_new_privs().unwrap_or(false)
    };
    !geteuid().is_root() && fs::metadata(program).is_ok_and(|file| has_bit(&file)) && !is_ignored()
}

fn not_ours(name: &OsString) -> Failure {
    let text = printable(&name.to_string_lossy());
    let message = format!(
        "{text:?} may become another user (set-user-ID): polylock could not stop it when the lock is lost"
    );
    let hint = format!("run polylock as that user ({text} polylock run ...), or add --on-lost warn");
    Failure::new(Exit::Other, "set_user_id", message, Some(hint))
}

/// A duration as `10s`, or in seconds as `10` or `0.5`.
fn duration(text: &str) -> Result<Duration, String> {
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
