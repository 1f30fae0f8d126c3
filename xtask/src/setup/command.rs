//! Runs programs, and finds them.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::steps::{command_line, seconds};

/// Runs a command that may fail, and kills it when it takes longer than this. Its output goes to standard error.
///
/// # Errors
///
/// When it does not succeed: what became of it.
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(std::io::stderr());
    eprintln!("    {}", command_line(command));
    let ended = wait_for(limit, command).and_then(|status| match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("ended with {status}")),
        None => Err(format!("was killed, as it took longer than {}", seconds(limit))),
    });
    if let Err(why) = &ended {
        eprintln!("    ({why})");
    }
    ended
}

/// As [`run_within`], without a limit. Whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    run_within(Duration::MAX, command).is_ok()
}

/// `None` when it was killed.
fn wait_for(limit: Duration, command: &mut Command) -> Result<Option<ExitStatus>, String> {
    let failed = |error: std::io::Error| format!("cannot be run: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Some(status));
        }
        if began.elapsed() > limit {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

/// Runs a command without input, and returns its output.
pub(crate) fn output_of(command: &mut Command) -> Result<Output, Failure> {
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new(format!("cannot run `{}`: {error}", command_line(command))))
}

/// Finds a program in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    find(program, &path)
}

fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| {
        file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    })
}

/// How often a command with a limit is looked at.
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_executable_files() {
        assert!(find("sh", OsStr::new("/nowhere:/bin:/usr/bin")).is_some());
        assert_eq!(find("passwd", OsStr::new("/etc")), None);
        assert_eq!(find("etc", OsStr::new("/")), None);
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let began = Instant::now();
        let mut sleep = Command::new("sleep");
        let killed = run_within(Duration::from_millis(100), sleep.arg("600")).unwrap_err();
        assert_eq!(killed, "was killed, as it took longer than 0.1 s");
        assert!(began.elapsed() < Duration::from_secs(300));
        assert_eq!(run_within(Duration::from_secs(600), &mut Command::new("true")), Ok(()));
        let failed = run_within(Duration::from_secs(600), &mut Command::new("false")).unwrap_err();
        assert_eq!(failed, "ended with exit status: 1");
    }
}
