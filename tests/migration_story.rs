//! The example `migrate`, as a test: a fleet moves up the ladder, down and up again while it works. It is the program of its
//! own processes, too.

#[path = "../examples/migrate/clients.rs"]
mod clients;
#[path = "../examples/migrate/counters.rs"]
mod counters;
#[path = "../examples/migrate/story.rs"]
mod story;
#[path = "../examples/migrate/worker.rs"]
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let runtime = Runtime::new().expect("the system has threads to spare");
    if let Some(client) = words.strip_prefix(&[worker::WORKER.to_owned()]) {
        return runtime.block_on(worker::run(client));
    }
    let told = move || {
        let report = runtime.block_on(story::tell());
        println!("{report}");
        if report.is_right() { Ok(()) } else { Err(Failed::from("something happened that must not")) }
    };
    let trial = Trial::test("a_fleet_moves_while_it_works", told).with_ignored_flag(true);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
