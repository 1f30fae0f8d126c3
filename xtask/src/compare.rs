//! `cargo xtask compare` and `cargo xtask soak`: run the harness after the set-up.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::command::{Result, cargo, succeed, target_folder, workspace};
use crate::{peers, setup};

const HELP: &str = "\
cargo xtask compare: installs what is missing (redis-server, ZooKeeper, Java, PostgreSQL, PgBouncer; without --quick also
etcd, MariaDB and, without --faults, the peers, of which some may be missing), builds the harness (and, without --quick and --faults, the
command polylock, which the scenario `command` measures) and runs it with the arguments below. Without the set-up:
cargo run --release -p lock-bench -- [ARGS...]

";

/// Compares the backends.
pub(crate) fn run(args: &[OsString]) -> Result {
    if has(args, &["--help", "-h"]) {
        print!("{HELP}");
    } else {
        setup::ensure()?;
        if !has(args, &["--quick", "--faults"]) {
            peers::offer_to("harness")?;
        }
        if !has(args, &["--quick"]) || has(args, &["etcd", "mysql"]) {
            setup::offer_optional()?;
        }
    }
    // Without the last percent, unless the command is measured, which is part of no quick run.
    let is_quick =
        has(args, &["--quick", "--faults", "--help", "-h"]) && !has(args, &["command", "--scenario=command"]);
    let names_one = |arg: &OsString| STORES.iter().any(|store| arg.to_string_lossy().contains(store));
    let stores = !is_quick || has(args, &["--faults"]) || args.iter().any(names_one);
    build_and_run(if is_quick { "quick" } else { "release" }, stores, args)
}

/// Uses the locks under faults.
pub(crate) fn soak(args: &[OsString]) -> Result {
    if !has(args, &["--help", "-h"]) {
        setup::ensure()?;
        peers::offer_to("soak")?;
        setup::offer_optional()?;
    }
    build_and_run("quick", true, &[&["soak".into()], args].concat())
}

/// Those that a quick run measures only if they are named. It is built sooner without them.
const STORES: [&str; 4] = ["etcd", "mysql", "s3", "sqlite"];

/// Replaces this process by the harness, which thus gets all signals and sets the exit code.
fn build_and_run(profile: &str, stores: bool, args: &[OsString]) -> Result {
    let mut build = cargo(&format!("build --profile {profile} --package lock-bench"));
    if !stores {
        build.arg("--no-default-features");
    }
    if profile == "release" {
        // Always both, so that what they depend on is built once.
        build.args(["--package", "lock-cli"]);
    }
    // Tokio as users build it, without the flag for simulations in .cargo/config.toml.
    if std::env::var_os("RUSTFLAGS").is_none() {
        build.env("RUSTFLAGS", "");
    }
    succeed(&mut build)?;
    let error = harness(profile, args)?.exec();
    Err(format!("cannot run the harness: {error}"))
}

/// The harness from this folder of the target directory.
pub(crate) fn harness(folder: &str, args: &[OsString]) -> Result<Command> {
    let mut command = Command::new(target_folder()?.join(folder).join("lock-bench"));
    command.args(args).current_dir(workspace());
    Ok(command)
}

/// Whether one of these is among the arguments.
fn has(args: &[OsString], wanted: &[&str]) -> bool {
    args.iter().any(|arg| wanted.iter().any(|name| arg == *name))
}
