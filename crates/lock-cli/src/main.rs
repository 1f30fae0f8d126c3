//! The command `polylock`: runs programs under a distributed lock, and serves the operators of the locks.

mod connect;
mod failure;
mod manual;
mod operate;
mod options;
mod output;
mod progress;
mod terminal;
mod text;
mod under_lock;

use std::process::ExitCode;

use clap::CommandFactory as _;
use tokio::runtime::Builder;

use crate::failure::{Exit, Failure};
use crate::operate::{breaking, doctor, holders, install, migrate};
use crate::options::{Command, Options};
use crate::output::Output;
use crate::under_lock::threads;
#[cfg(target_os = "linux")]
use crate::under_lock::{hold, run};

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(exit) = run::run_helper() {
        return exit;
    }
    let options = match Options::from_command_line() {
        Ok(options) => options,
        Err(exit) => return exit.into(),
    };
    let output = Output::new(options.json);
    let done = threads::or_failure(|| execute(options, output));
    done.unwrap_or_else(|failure| output.fail(&failure)).into()
}

fn execute(options: Options, output: Output) -> Result<Exit, Failure> {
    // The sessions of this process go on while it waits for an answer: only blocking threads read from the terminal.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let exit = runtime.block_on(async {
        match options.command {
            #[cfg(target_os = "linux")]
            Command::Run(options) => run::run(options, output).await,
            #[cfg(target_os = "linux")]
            Command::Hold(options) => hold::run(options, output).await,
            Command::Holders(options) => holders::run(options, output).await,
            Command::Break(options) => breaking::run(options, output).await,
            Command::Doctor(options) => doctor::run(options, output).await,
            Command::Install(options) => install::run(options, output).await,
            Command::Migrate(options) => migrate::run(options, output).await,
            Command::Completions(options) => manual::completions(&options, Options::command()),
            Command::Man(options) => manual::man(&options, Options::command()),
        }
    });
    // A thread that still waits for an answer would keep the process.
    runtime.shutdown_background();
    exit
}
