//! `cargo xtask soak`: runs the soak of the harness after the set-up.

use std::ffi::OsString;

use crate::compare::{self, Build};
use crate::failure::Failure;
use crate::{peers, setup};

/// Runs the set-up, then replaces this process by the harness.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    if !args.iter().any(|arg| arg == "--help" || arg == "-h") {
        setup::ensure()?;
        peers::offer_zookeeper()?;
    }
    let args: Vec<OsString> = ["soak".into()].into_iter().chain(args.iter().cloned()).collect();
    compare::build_and_run(Build::Quick, &args)
}
