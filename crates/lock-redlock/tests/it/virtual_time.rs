//! The real backend on masters in memory, in virtual time: what takes long, and how long it takes.

mod contention;
mod distance;
mod extensions;
mod fleet;
mod ghosts;
mod hand_over;
mod late;
mod masks;
mod observers;
mod quorum;
mod restarts;
mod tokens;

use std::time::Duration;

use lock_core::{Locks, Token};
use lock_testkit::fake::Faults;
use lock_testkit::{give_back, take};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TOKENS: &str = "polylock:tokens:{lock:a}";
const LINE: &str = "polylock:line:{lock:a}";

/// A master to which, and from which, the way takes so many milliseconds.
fn away(millis: u64) -> Faults {
    Faults { delay_ms: millis..=millis, ..Faults::default() }
}

/// Acquires the lock `a` and releases it.
async fn cycle(locks: &Locks) -> Token {
    let guard = take(locks, "a").await;
    let token = guard.token();
    give_back(guard).await;
    token
}
