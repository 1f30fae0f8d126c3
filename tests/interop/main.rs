//! Lock clients of other libraries beside ours, in the full tier only: they need what only that installs.
//!
//! The same program is a worker of the story when it is called with `--worker CLIENT`.

#[allow(dead_code, unreachable_pub, reason = "a test program is no library")]
#[path = "../peers/mod.rs"]
mod peers;

/// A case, by the name of its function.
type Case<At> = (&'static str, fn(At) -> Pin<Box<dyn Future<Output = ()>>>);

macro_rules! cases {
    ($($case:ident),* $(,)?) => { [$((stringify!($case), |at| Box::pin($case(at)))),*] };
}

mod migration;
mod redis;
mod story;
mod zk;

use std::pin::Pin;
use std::process::ExitCode;

use libtest_mimic::Arguments;
use tokio::runtime::{Builder, Runtime};

/// Most of a trial's time is spent asleep; more threads than that, and it is spent waiting for a processor.
const THREADS: usize = 8;

fn main() -> ExitCode {
    if let Some(ended) = story::serve() {
        return ended;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let trials = [redis::trials(), zk::trials(), migration::trials(), story::trials()];
    let trials = trials.into_iter().flatten().map(|trial| trial.with_ignored_flag(true)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system has threads to spare")
}
