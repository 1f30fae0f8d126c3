//! `cargo xtask test`: every test there is.

use std::ffi::OsString;

use crate::failure::Failure;
use crate::steps::{Steps, cargo};
use crate::{peers, setup};

/// Set-up, all tests, all examples.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    let mut steps = Steps::start();
    steps.run("set-up", setup::ensure)?;
    steps.run("peers", peers::ensure)?;
    run_in(&mut steps, args)?;
    steps.summary();
    Ok(())
}

/// The steps of `run` after the set-up.
///
/// Plain `cargo test`: the servers are shared by the tests of one process, and a runner that gives every test a
/// process of its own would start a ZooKeeper for each.
pub(crate) fn run_in(steps: &mut Steps, args: &[OsString]) -> Result<(), Failure> {
    let mut tests = cargo(["test", "--workspace", "--all-features"]);
    tests.args(args);
    steps.command("tests", tests)?;
    steps.command("examples", cargo(["build", "--workspace", "--all-features", "--examples"]))
}
