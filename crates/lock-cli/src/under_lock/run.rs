//! `polylock run`: holds a lock while a command runs.

mod alarm;
mod campaign;
mod child;
mod deadline;
mod helper;
mod launch;
mod reap;
mod supervisor;
mod watchdog;
mod wire;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use clap::{Args, ValueEnum};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::geteuid;
use rustix::thread::no_new_privs;

use self::campaign::{Campaign, end_by};
use self::helper::{Helper, OWN_PROGRAM};
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};
use crate::under_lock::acquire::{AcquireOptions, Acquirer, duration};
use crate::under_lock::job_control::JobControl;
use crate::under_lock::signals::Signals;

/// The options of `polylock run`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXITS}"))]
#[command(override_usage = "polylock run [OPTIONS] <NAME> -- <COMMAND>...")]
pub(crate) struct RunOptions {
    #[command(flatten)]
    acquire: AcquireOptions,

    /// Acquire the lock and start the command again after the command has ended or the lock is lost, until SIGINT, SIGTERM or
    /// SIGQUIT. Waits for a store that is down, also for longer than --wait
    #[arg(long)]
    restart: bool,

    /// What happens to the command when the lock is lost, or cannot be kept in time
    #[arg(long, value_name = "WHAT", value_enum, default_value = "term")]
    on_lost: OnLost,

    /// The time between SIGTERM and SIGKILL. It is shortened so that the command has ended before the lock has
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    grace: Duration,

    /// Stop the command after this time: SIGTERM, and SIGKILL after the grace
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_run: Option<Duration>,

    /// Keep POLYLOCK_URL in the environment of the command. By default it is removed, as it may have a password
    #[arg(long)]
    keep_url: bool,

    #[arg(long, hide = true)]
    json: bool,

    /// The command and its arguments, run without a shell
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
    /// The command goes on without the lock, and a message says so
    Warn,
}

const EXAMPLES: &str = "\
The command sees POLYLOCK_NAME and POLYLOCK_TOKEN, the fencing token: send it along with every write. Its standard streams \
are those of polylock. Signals go to its process group. It ends before the lock does, also when polylock is stopped or killed.

Examples:
  polylock run nightly-report -n -- ./report.sh       not twice at once, on any host
  polylock run hourly -n --hold-at-least 1m -- ./job  once, by clocks that differ by less than a minute
  polylock run nightly -n -q -E 0 -- ./job            the same from cron: mail only if something is wrong
  polylock run deploy -w 10m -- ansible-playbook site.yml
  polylock run scheduler --restart -- ./scheduler     one leader; the others stand by
  polylock run gpu --permits 4 -- ./train             four at a time";

/// Runs the helper that this process was started as, if any.
pub(crate) fn run_helper() -> Option<ExitCode> {
    let (helper, arguments) = Helper::started_as()?;
    Some(match helper {
        Helper::Launch => launch::run(arguments),
        Helper::Watchdog => watchdog::run(arguments),
    })
}

/// Shown by `run --help`.
const EXITS: &str = "\
Exit codes: that of the command, or 128 + n if signal n ended it; 64 usage, or a run inside one that holds the lock, 69 the store does not answer, 70 the lock was \
lost while the command ran, or another error, 75 (or -E) the lock is busy, 124 the command ran longer than --max-run, 126 and 127 the command cannot be run";

/// Runs the command under the lock.
pub(crate) async fn run(options: RunOptions, output: Output) -> Result<Exit, Failure> {
    if options.json || output.is_json() {
        return Err(Failure::usage(
            "standard output belongs to the command that run starts",
            "leave out --json",
        ));
    }
    if let Err(error) = fs::read_link(OWN_PROGRAM) {
        return Err(no_proc(&error));
    }
    let program = match program(&options.command[0]) {
        Ok(program) => program,
        Err(failure) => return Ok(output.fail(&failure)),
    };
    if options.on_lost != OnLost::Warn && program.as_deref().is_some_and(is_of_another_user) {
        return Ok(output.fail(&not_ours(&options.command[0])));
    }
    let output = options.acquire.output(output);
    let mut signals = Signals::listen()?;
    let job = JobControl::new();
    // Without the arguments, which may have secrets.
    let label = options.command[0].to_string_lossy();
    let acquirer = tokio::select! {
        acquirer = Acquirer::connect(&options.acquire, &label, options.restart, output) => acquirer?,
        signal = signals.ending(&job, options.restart) => return Ok(end_by(signal, &options, output)),
    };
    let exit = Campaign::new(&acquirer, &options, output).run(&mut signals, &job).await;
    acquirer.close(&mut signals, &job).await;
    exit
}

/// The path of the program; `None` where only the kernel knows. A command that does not exist or cannot be run is reported
/// before the wait for the lock.
fn program(name: &OsString) -> Result<Option<PathBuf>, Failure> {
    // Without PATH, the kernel's default counts.
    if env::var_os("PATH").is_none() {
        return Ok(None);
    }
    let text = printable(&name.to_string_lossy());
    let error = match which::which(name) {
        Ok(path) => return interpreted(&text, path).map(Some),
        Err(error) => error,
    };
    let exists = Path::new(name).exists() && text.contains('/');
    let (code, why) = if exists { (126, "cannot be run") } else { (127, "does not exist") };
    let hint = match exists {
        true => "make it executable: chmod +x".to_owned(),
        false => "check its name and PATH; what a shell knows needs one: sh -c '...'".to_owned(),
    };
    let message = format!("the command {text:?} {why}: {error}");
    Err(Failure::new(Exit::Code(code), "command", message, Some(hint)))
}

/// The program, unless it is a script whose interpreter is missing: the kernel would not say what is missing.
fn interpreted(name: &str, path: PathBuf) -> Result<PathBuf, Failure> {
    let mut start = [0; LONGEST_FIRST_LINE];
    let length = File::open(&path).and_then(|mut file| file.read(&mut start)).unwrap_or_default();
    let line = start[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = String::from_utf8_lossy(line.strip_prefix(b"#!").unwrap_or_default()).into_owned();
    // As the kernel does: a carriage return at the end of the line belongs to the name.
    match words.split([' ', '\t']).find(|word| !word.is_empty()) {
        Some(interpreter) if !Path::new(interpreter).exists() => {
            let message =
                format!("the command {name:?} needs the interpreter {interpreter:?}, which does not exist");
            let hint = "install it, or correct the first line of the script".to_owned();
            Err(Failure::new(Exit::Code(127), "command", message, Some(hint)))
        }
        _ => Ok(path),
    }
}

/// As far as the kernel reads it.
const LONGEST_FIRST_LINE: usize = 256;

/// Whether the program becomes another user, whom this process may not kill: it has the set-user-ID bit (`sudo`, `su`).
fn is_of_another_user(program: &Path) -> bool {
    let has_bit = |file: &fs::Metadata| file.mode() & 0o4000 != 0 && file.uid() != geteuid().as_raw();
    let is_ignored = || {
        statvfs(program).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID))
            || no_new_privs().unwrap_or(false)
    };
    !geteuid().is_root() && fs::metadata(program).is_ok_and(|file| has_bit(&file)) && !is_ignored()
}

/// Also the watchdog finds there what it has to stop.
fn no_proc(error: &io::Error) -> Failure {
    let message = format!("/proc is not mounted, and run needs it ({OWN_PROGRAM}: {error})");
    let hint = "mount it: mount -t proc proc /proc".to_owned();
    Failure::new(Exit::Other, "no_proc", message, Some(hint))
}

fn not_ours(name: &OsString) -> Failure {
    let text = printable(&name.to_string_lossy());
    let message = format!(
        "{text:?} may become another user (set-user-ID): polylock could not stop it when the lock is lost"
    );
    let hint = format!("run polylock as that user ({text} polylock run ...), or add --on-lost warn");
    Failure::new(Exit::Other, "set_user_id", message, Some(hint))
}
