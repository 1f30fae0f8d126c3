//! The process that becomes the command: it sees to it that the command dies with its watchdog.
//!
//! It stops itself until `polylock` continues it: by then the [watchdog](super::watchdog) knows the deadline, so that no pause of
//! `polylock` lets a command run that nobody watches.
//!
//! The kernel sends the parent-death signal when the *thread* that started the child ends, so the main thread starts it. Only
//! the process itself can ask for the signal, and `exec` keeps that. Programs with set-user-ID do not get it.
//!
//! What systemd tells the process that it has started, it tells the command.

use std::env::{self, ArgsOs};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, Command, ExitCode};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::output::printable;

/// Becomes the command. The arguments are the process ids of the parent and of `polylock`, the command, and its arguments.
pub(super) fn run(mut arguments: ArgsOs) -> ExitCode {
    let parent = arguments.next().and_then(|pid| pid.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let polylock = arguments.next();
    let Some(program) = arguments.next() else { return ExitCode::FAILURE };
    let is_set = set_parent_process_death_signal(Some(Signal::KILL));
    // A parent that died before that has sent nothing.
    if getppid() != parent {
        return ExitCode::FAILURE;
    }
    let error = match is_set.and_then(|()| kill_process(getpid(), Signal::STOP)) {
        Ok(()) => {
            let mut command = Command::new(&program);
            name_in_place_of(polylock, command.args(arguments)).exec()
        }
        Err(error) => error.into(),
    };
    let name = printable(&program.to_string_lossy());
    // Whoever closed standard error does not want to know.
    let _ = writeln!(io::stderr(), "error: cannot run {name:?}: {error}");
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Names this process where the environment names `polylock`: a service takes the sockets that systemd passes, and reports to its
/// watchdog, only if they are meant for its own process. See `sd_listen_fds(3)` and `sd_watchdog_enabled(3)`.
fn name_in_place_of(polylock: Option<OsString>, command: &mut Command) -> &mut Command {
    for variable in ["LISTEN_PID", "WATCHDOG_PID"] {
        if polylock.is_some() && env::var_os(variable) == polylock {
            // The first names the process by another number, too.
            command.env_remove("LISTEN_PIDFDID").env(variable, process::id().to_string());
        }
    }
    command
}
