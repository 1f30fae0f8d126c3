//! `cargo xtask compare`: runs the harness after the set-up.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;
use crate::{peers, setup, steps};

const HELP: &str = "\
cargo xtask compare: installs what is missing (redis-server, ZooKeeper, Java; without --quick and --faults also the
peers and Chromium, of which some may be missing), builds the harness in release mode (and the command polylock, which the scenario
`command` measures) and runs it with the arguments below. Without the set-up: cargo run --release -p lock-bench -- [ARGS...]

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
    if measures_the_command(args) {
        let mut build = build_command();
        let line = steps::command_line(&build);
        let status = build.status().map_err(|error| Failure::new(format!("cannot run `{line}`: {error}")))?;
        if !status.success() {
            return Err(Failure::new(format!("`{line}` ended with {status}; its own output is above")));
        }
    }
    let error = harness(args).exec();
    Err(Failure::new(format!("cannot run cargo: {error}")))
}

/// The command that builds the harness.
pub(crate) fn build() -> Command {
    without_dice(steps::cargo(["build", "--release", "--package", "lock-bench"]))
}

/// The command that builds the command `polylock`, by itself: it is measured as users have it.
fn build_command() -> Command {
    without_dice(steps::cargo(["build", "--release", "--package", "lock-cli"]))
}

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

/// The command that builds the harness and runs it.
pub(crate) fn harness(args: &[OsString]) -> Command {
    let mut command = steps::cargo(["run", "--release", "--package", "lock-bench", "--"]);
    command.args(args);
    without_dice(command)
}

/// Measures tokio as users build it, without the flag for simulations in .cargo/config.toml.
fn without_dice(mut command: Command) -> Command {
    if std::env::var_os("RUSTFLAGS").is_none() {
        command.env("RUSTFLAGS", "");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

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
