//! Lock clients of other libraries beside ours, in the full tier only: they need what only `cargo xtask setup` installs.
//!
//! [`stories`] has what holds wherever they and we meet, for each peer; the other modules say where that is, and have the rest.
//! Run a part by a part of its names: `cargo xtask test pottery::notify`.
//!
//! The same program is a worker of the fleet that moves when it is called with `--worker CLIENT`.

#[allow(dead_code, unreachable_pub, reason = "a test program is no library")]
#[path = "../peers/mod.rs"]
mod peers;

/// Stories, by the names of their functions.
macro_rules! stories {
    ($($story:ident),* $(,)?) => { &[$((stringify!($story), |at| Box::pin($story(at)))),*] };
}

mod fleet;
mod meeting;
mod migration;
mod redis;
mod stories;
mod types;
mod zk;

use std::hash::{DefaultHasher, Hasher};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use peers::servers::{Servers, Site};

/// What happens where they and we meet.
type Story<At> = (&'static str, fn(At) -> Pin<Box<dyn Future<Output = ()>>>);

/// Most of a trial's time is spent asleep; more threads than that, and it is spent waiting for a processor.
const THREADS: usize = 8;

fn main() -> ExitCode {
    if let Some(ended) = fleet::serve() {
        return ended;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let servers = Arc::new(Servers::default());
    let [one, five] = [1, 5].map(|masters| Site { servers: Arc::clone(&servers), masters });
    let trials = [
        // It takes longest.
        fleet::trials(),
        redis::trials(&one, &five),
        types::trials(&one, &five),
        zk::trials(&servers),
        migration::trials(&one),
    ];
    // The programs and the servers end with the last trial.
    drop((servers, one, five));
    let mut trials: Vec<_> =
        trials.into_iter().flatten().map(|trial| trial.with_ignored_flag(true)).collect();
    // Those of one client one after the other would need a program of it for each thread.
    trials[1..].sort_by_cached_key(|trial| {
        let mut hasher = DefaultHasher::new();
        hasher.write(trial.name().as_bytes());
        hasher.finish()
    });
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial of each story, at what `at` makes for its name.
fn trials_of<At: Send + 'static>(
    prefix: &str,
    stories: &'static [Story<At>],
    at: impl Fn(&str) -> At,
) -> Vec<Trial> {
    let trial = |(name, story): &'static Story<At>| {
        let at = at(name);
        Trial::test(format!("{prefix}::{name}"), move || {
            runtime().block_on(LocalSet::new().run_until(story(at)));
            Ok(())
        })
    };
    stories.iter().map(trial).collect()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system has threads to spare")
}
