//! `cargo xtask compare`: runs the harness after the set-up.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;
use crate::{peers, setup, steps};

const HELP: &str = "\
cargo xtask compare: installs what is missing (redis-server, ZooKeeper, Java; without --quick and --faults also the
peers and Chromium, of which some may be missing), builds the harness in release mode and runs it with the arguments below. Without the set-up: cargo run --release -p lock-bench -- [ARGS...]

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
    let error = harness(args).exec();
    Err(Failure::new(format!("cannot run cargo: {error}")))
}

/// The command that builds the harness.
pub(crate) fn build() -> Command {
    without_dice(steps::cargo(["build", "--release", "--package", "lock-bench"]))
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
