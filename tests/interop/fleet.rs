//! The example `migrate`, as a test: a fleet moves up the ladder, down and up again while it works.

#[path = "../../examples/migrate/clients.rs"]
mod clients;
#[path = "../../examples/migrate/counters.rs"]
mod counters;
#[path = "../../examples/migrate/story.rs"]
mod story;
#[path = "../../examples/migrate/worker.rs"]
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

/// Runs this program as one of the fleet, if it was called so.
pub(crate) fn serve() -> Option<ExitCode> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let client = words.strip_prefix(&[worker::WORKER.to_owned()])?;
    Some(runtime().block_on(worker::run(client)))
}

pub(crate) fn trials() -> Vec<Trial> {
    let told = || {
        let report = runtime().block_on(story::tell());
        println!("{report}");
        if report.is_right() { Ok(()) } else { Err(Failed::from("something happened that must not")) }
    };
    vec![Trial::test("a_fleet_moves_while_it_works", told)]
}

fn runtime() -> Runtime {
    Runtime::new().expect("the system has threads to spare")
}
