//! Named steps with their times. The first failure ends the run.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::Failure;
use crate::interrupt;

/// The steps of one run.
#[derive(Debug)]
pub(crate) struct Steps {
    started: Instant,
    done: Vec<(String, Duration)>,
    notes: Vec<(&'static str, String)>,
}

impl Steps {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), done: Vec::new(), notes: Vec::new() }
    }

    /// Runs a command as a step.
    pub(crate) fn command(&mut self, name: &str, mut command: Command) -> Result<(), Failure> {
        let line = command_line(&command);
        self.run(name, || {
            eprintln!("    {line}");
            succeed(&mut command)
        })
    }

    /// Runs a function as a step.
    pub(crate) fn run(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        interrupt::check()?;
        eprintln!("\n==> {name}");
        let started = Instant::now();
        let outcome = step();
        let took = started.elapsed();
        match outcome {
            Ok(()) => {
                eprintln!("    ok, {}", seconds(took));
                self.done.push((name.to_owned(), took));
                Ok(())
            }
            Err(failure) => {
                let done = self.done.len();
                eprintln!("    FAILED after {} ({done} steps before it passed)\n", seconds(took));
                Err(failure)
            }
        }
    }

    /// Records a step that cannot run here, with the reason.
    pub(crate) fn leave_out(&mut self, what: String) {
        self.note("left out", what);
    }

    /// Records what the summary shall say.
    pub(crate) fn note(&mut self, kind: &'static str, what: String) {
        eprintln!("\n==> {kind}: {what}");
        self.notes.push((kind, what));
    }

    /// Prints every step with its duration, and the notes.
    pub(crate) fn summary(&self) {
        eprintln!("\nAll {} steps passed in {}:", self.done.len(), seconds(self.started.elapsed()));
        for (name, took) in &self.done {
            eprintln!("{:>10}  {name}", seconds(*took));
        }
        for (kind, what) in &self.notes {
            eprintln!("{kind:>10}  {what}");
        }
    }
}

/// The cargo that runs this program, at the root of the workspace.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(workspace());
    // Cargo's variables about this program. A build script that depends on them (ring's does) would run again, and all that
    // depends on it be rebuilt, whenever cargo is called by this program after it was called by hand.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|ours| name.to_string_lossy().starts_with(ours)) {
            command.env_remove(name);
        }
    }
    command
}

/// Cargo's target directory.
pub(crate) fn target_folder() -> Result<PathBuf, Failure> {
    let mut command = cargo(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata = stdout_of(&mut command)?;
    let none = || Failure::new(format!("`{}` names no target directory", command_line(&command)));
    target_in(metadata.as_bytes()).ok_or_else(none)
}

/// Runs a command, whose output is this program's.
pub(crate) fn succeed(command: &mut Command) -> Result<(), Failure> {
    let line = command_line(command);
    let status = command.status().map_err(|error| Failure::new(format!("cannot run `{line}`: {error}")))?;
    ended(&line, status)
}

/// Runs a command, and returns what it writes to standard output.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String, Failure> {
    let line = command_line(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::new(format!("cannot run `{line}`: {error}")))?;
    ended(&line, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn ended(line: &str, status: ExitStatus) -> Result<(), Failure> {
    interrupt::check()?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("`{line}` ended with {status}; its own output is above")))
}

fn target_in(metadata: &[u8]) -> Option<PathBuf> {
    let metadata: Value = serde_json::from_slice(metadata).ok()?;
    metadata["target_directory"].as_str().map(PathBuf::from)
}

/// A command as it would be typed.
pub(crate) fn command_line(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let program = program.file_name().unwrap_or_else(|| command.get_program()).to_string_lossy();
    let set = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={:?} ", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let args = command.get_args().map(|arg| format!(" {}", arg.to_string_lossy()));
    set.chain([program.into_owned()]).chain(args).collect()
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    // The variable at run time is right even after the folder was moved.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(package).join("..")
}

/// `1.5 s`
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_directory_is_read_from_what_cargo_says() {
        let metadata = r#"{"packages":[],"target_directory":"/somewhere/target","version":1}"#;
        assert_eq!(target_in(metadata.as_bytes()), Some("/somewhere/target".into()));
        assert_eq!(target_in(b"error: no such command"), None);
    }

    #[test]
    fn command_line_shows_the_environment_and_no_path() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").env_remove("OTHER");
        assert_eq!(command_line(&command), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn cargo_does_not_inherit_variables_of_this_program() {
        let removed: Vec<_> =
            cargo(["build"]).get_envs().map(|(name, value)| (name.to_owned(), value.is_none())).collect();
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR"] {
            assert!(removed.contains(&(name.into(), true)), "{name} is not in {removed:?}");
        }
    }

    #[test]
    fn failures_name_the_command_and_do_not_count() {
        let mut steps = Steps::start();
        steps.command("fine", Command::new("true")).unwrap();
        let failure = steps.command("broken", Command::new("false")).unwrap_err();
        assert!(failure.to_string().starts_with("`false` ended with exit status: 1"), "{failure}");
        let failure = steps.command("absent", Command::new("no-such-program-here")).unwrap_err();
        assert!(failure.to_string().starts_with("cannot run `no-such-program-here`"), "{failure}");
        assert_eq!(steps.done.len(), 1);
    }
}
