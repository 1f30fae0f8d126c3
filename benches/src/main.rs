//! The comparison harness: every backend under the same scenarios, on real servers.

mod address;
mod awake;
mod backends;
mod contender;
mod crew;
mod diary;
mod failure;
mod floor;
mod interrupt;
mod judge;
mod latency;
mod options;
mod peers;
mod probe;
mod processor;
mod progress;
mod promises;
mod relay;
mod report;
mod results;
mod run;
mod scenarios;
mod soak;
mod table;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Options, Role};

fn main() -> ExitCode {
    let options = Options::parse();
    match &options.role {
        Some(Role::Worker) => worker::main(),
        Some(Role::Soak(soak)) => soak::main(soak),
        None => run::main(&options),
    }
}
