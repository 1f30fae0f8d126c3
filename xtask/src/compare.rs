//! `cargo xtask compare`: runs the harness after the set-up.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;
use crate::{peers, setup, steps};

const HELP: &str = "\
cargo xtask compare: installs what is missing (redis-server, ZooKeeper, Java, PostgreSQL, PgBouncer; without --quick and
--faults also the peers and Chromium, of which some may be missing), builds the harness (and, without --quick and --faults, the
command polylock, which the scenario `command` measures) and runs it with the arguments below. Without the set-up:
cargo run --release -p lock-bench -- [ARGS...]

";

/// Runs the set-up, then replaces this process by the harness, which thus gets all signals and sets the exit code.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
    } else {
        setup::ensure()?;
        if !args.iter().any(|arg| arg == "--quick" || arg == "--faults") {
            peers::offer()?;
            setup::offer_optional()?;
        }
    }
    build_and_run(Build::of(args), args)
}

/// Replaces this process by the harness.
pub(crate) fn build_and_run(build: Build, args: &[OsString]) -> Result<(), Failure> {
    steps::succeed(&mut build.command())?;
    let error = harness(build.folder(), args)?.exec();
    Err(Failure::new(format!("cannot run the harness: {error}")))
}

/// How the harness is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Build {
    /// As services build libraries, with the command `polylock`.
    Release,
    /// In a third of the time: for a first look, and for faults.
    Quick,
}

impl Build {
    fn of(args: &[OsString]) -> Self {
        let is_quick = args.iter().any(|arg| QUICK.iter().any(|quick| arg == quick));
        if is_quick && !measures_the_command(args) { Self::Quick } else { Self::Release }
    }

    /// The profile, and the folder of its programs.
    fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }

    fn command(self) -> Command {
        let mut command = steps::cargo(["build", "--profile", self.folder(), "--package", "lock-bench"]);
        if self == Self::Release {
            // Always both, so that what they depend on is built once.
            command.args(["--package", "lock-cli"]);
        }
        // Tokio as users build it, without the flag for simulations in .cargo/config.toml.
        if std::env::var_os("RUSTFLAGS").is_none() {
            command.env("RUSTFLAGS", "");
        }
        command
    }
}

/// The harness from this folder of the target directory.
pub(crate) fn harness(folder: &str, args: &[OsString]) -> Result<Command, Failure> {
    let mut command = Command::new(steps::target_folder()?.join(folder).join("lock-bench"));
    command.args(args).current_dir(steps::workspace());
    Ok(command)
}

/// What needs no figures of the last percent.
const QUICK: [&str; 4] = ["--quick", "--faults", "--help", "-h"];

/// Whether the scenario `command` is part of the run.
fn measures_the_command(args: &[OsString]) -> bool {
    let has = |wanted: &[&str]| {
        args.iter().any(|arg| {
            let arg = arg.to_string_lossy();
            wanted.iter().any(|name| arg == *name || arg.starts_with(&format!("{name}=")))
        })
    };
    if has(&["-h", "--help", "--from", "--faults", "--replay"]) {
        return false;
    }
    let is_named = args.iter().any(|arg| arg == "command" || arg == "--scenario=command");
    is_named || !has(&["--quick", "--scenario", "--claim"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_looked_at_is_built_quickly() {
        let build = |line: &str| Build::of(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        for line in ["--quick", "--faults", "--faults --backend zk", "--help"] {
            assert_eq!(build(line), Build::Quick, "{line}");
        }
        for line in ["", "--claim 1", "--scenario held", "--quick --scenario command"] {
            assert_eq!(build(line), Build::Release, "{line}");
        }
    }

    #[test]
    fn the_command_is_built_for_the_runs_that_measure_it() {
        let measures = |line: &str| {
            let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            measures_the_command(&args)
        };
        for line in
            ["", "--backend redis", "--quick --scenario command", "--scenario=command", "--awake --repeat 5"]
        {
            assert!(measures(line), "{line}");
        }
        for line in [
            "--quick",
            "--faults",
            "--help",
            "--from results.json",
            "--scenario held",
            "--claim 1",
            "--claim=1",
        ] {
            assert!(!measures(line), "{line}");
        }
    }
}
