//! The harness: measures the backends on real servers, and uses them under faults.

mod backends;
mod browser;
mod claims;
mod compare;
mod counters;
mod cpu_time;
mod events;
mod exclusion;
mod failure;
mod fault_servers;
mod faults;
mod floor;
mod history_gaps;
mod interrupt;
mod keep_awake;
mod latency;
mod measured_lock;
mod memory;
mod options;
mod peers;
mod plan;
mod progress;
mod promises;
mod report;
mod results;
mod scenarios;
mod soak;
mod stuck;
mod table;
mod url;
mod window;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::Builder;

use crate::failure::Outcome;
use crate::options::{Options, Role};

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
