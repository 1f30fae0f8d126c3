//! The harness as a command: what it prints, writes and exits with.

mod compare;
mod faults;
mod soak;
mod sqlx;
mod stuck;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The harness, with these arguments.
fn harness(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lock-bench"));
    command.args(args.split_whitespace());
    command
}

/// The same, with the folder for what it writes.
fn harness_into(out: &Path, args: &str) -> Command {
    let mut command = harness(args);
    command.arg("--out").arg(out);
    command
}

fn results(out: &Path) -> Value {
    let json = std::fs::read_to_string(out.join("results.json")).unwrap();
    serde_json::from_str(&json).unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
