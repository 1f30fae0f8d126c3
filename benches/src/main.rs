//! The harness: measures the backends on real servers, and uses them under faults.

mod cli;
mod data;
mod experiments;
mod report;
mod rig;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::Builder;

use crate::cli::compare;
use crate::cli::options::{Options, Role};
use crate::data::failure::Outcome;
use crate::experiments::{faults, soak};
use crate::rig::worker;

fn main() -> ExitCode {
    let options = Options::parse();
    let (name, ended) = match &options.role {
        Some(Role::Worker) => return worker::process::main(),
        Some(Role::Soak(options)) => ("soak", in_runtime(soak::run(options))),
        None if options.faults.replay.is_some() => ("replay", faults::replay(&options)),
        None if options.faults.wanted => ("faults", in_runtime(faults::run(&options))),
        None => ("compare", in_runtime(compare::run(&options))),
    };
    ended.unwrap_or_else(|failure| {
        eprintln!("{name}: {failure}");
        ExitCode::FAILURE
    })
}

fn in_runtime(command: impl Future<Output = Outcome<ExitCode>>) -> Outcome<ExitCode> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(command);
    // Connections may have left tasks in the background.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}
