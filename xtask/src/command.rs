//! Runs programs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use serde_json::Value;

use crate::interrupt;

/// An error is what is printed.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The cargo that runs this program, at the root of the workspace.
pub(crate) fn cargo(words: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words.split_whitespace()).current_dir(workspace());
    // Cargo's variables about this program. A build script that depends on them (ring's does) would run again, and all that
    // depends on it be rebuilt, whenever cargo is called by this program after it was called by hand.
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|ours| name.to_string_lossy().starts_with(ours)) {
            command.env_remove(name);
        }
    }
    command
}

/// Lines of the shell, without input.
pub(crate) fn shell(lines: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", lines]).stdin(Stdio::null());
    command
}

/// Whether these lines succeed; their output is not shown.
pub(crate) fn holds(lines: &str) -> bool {
    shell(lines).output().is_ok_and(|output| output.status.success())
}

/// Runs a command, whose output is this program's.
pub(crate) fn succeed(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| cannot_run(command, &error))?;
    ended(command, status, "; its own output is above")
}

/// Runs a command, and returns what it writes to standard output.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| cannot_run(command, &error))?;
    ended(command, output.status, "; its own output is above")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command, which writes into a file. It is killed, with all that it has started, when it takes too long or after Ctrl-C.
pub(crate) fn succeed_within(limit: Duration, command: &mut Command, log: &Path) -> Result {
    let begin = |command: &mut Command| {
        let file = File::create(log)?;
        // In a group of their own, by which all of them are killed. Ctrl-C does not reach it.
        command.stdout(file.try_clone()?).stderr(file).process_group(0).spawn()
    };
    let mut child = begin(command).map_err(|error| cannot_run(command, &error))?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| cannot_run(command, &error))? {
            break status;
        }
        if began.elapsed() > limit || interrupt::check().is_err() {
            succeed(&mut shell(&format!("kill -s KILL -- -{}", child.id())))?;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let said = fs::read_to_string(log).unwrap_or_default();
    ended(command, status, &format!(" after {}:\n{said}", seconds(began.elapsed())))
}

fn ended(command: &Command, status: ExitStatus, more: &str) -> Result {
    interrupt::check()?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}{more}", line_of(command))) }
}

fn cannot_run(command: &Command, error: &io::Error) -> String {
    format!("cannot run `{}`: {error}", line_of(command))
}

/// A command as it would be typed, but for scripts.
pub(crate) fn line_of(command: &Command) -> String {
    let text = |part: &OsStr| match part.to_string_lossy() {
        script if script.contains('\n') => "...".to_owned(),
        word => word.into_owned(),
    };
    let set =
        command.get_envs().filter_map(|(name, value)| Some(format!("{}={:?}", text(name), text(value?))));
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    set.chain([text(program)]).chain(command.get_args().map(text)).collect::<Vec<_>>().join(" ")
}

/// What cargo knows of the workspace.
pub(crate) fn metadata() -> Result<Value> {
    let json = stdout_of(&mut cargo("metadata --no-deps --format-version 1"))?;
    serde_json::from_str(&json).map_err(|error| format!("cannot read what `cargo metadata` says: {error}"))
}

/// Cargo's target directory.
pub(crate) fn target_folder() -> Result<PathBuf> {
    static FOLDER: LazyLock<Result<PathBuf>> =
        LazyLock::new(|| Ok(metadata()?["target_directory"].as_str().unwrap_or("target").into()));
    FOLDER.clone()
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    // The variable at run time is right even after the folder was moved.
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("packages are in the workspace").to_owned()
}

/// `1.5 s`
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_killed_with_what_it_has_started() {
        let log = env::temp_dir().join(format!("xtask-command-{}", std::process::id()));
        let mut sleeps = shell("sleep 600 & echo $!; wait");
        let killed = succeed_within(Duration::from_millis(300), &mut sleeps, &log).unwrap_err();
        let (what, pid) = killed.trim().rsplit_once('\n').unwrap();
        assert!(what.contains("signal: 9"), "{what}");
        let began = Instant::now();
        // Its new parent may take a moment to see its end.
        while holds(&format!("kill -0 {pid}")) {
            assert!(began.elapsed() < Duration::from_secs(30), "{pid} goes on");
        }
        fs::remove_file(log).unwrap();
    }
}
