//! `cargo xtask soak`: the harness lets processes use locks under faults, with its servers in place.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use crate::failure::Failure;
use crate::{compare, setup};

/// Set-up, then this process *becomes* the harness: its signals, its exit code, nobody in between.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    if !args.iter().any(|arg| arg == "--help" || arg == "-h") {
        setup::ensure()?;
    }
    let args: Vec<OsString> = ["soak".into()].into_iter().chain(args.iter().cloned()).collect();
    let error = compare::harness(&args).exec();
    Err(Failure::new(format!("cannot run cargo: {error}")))
}
