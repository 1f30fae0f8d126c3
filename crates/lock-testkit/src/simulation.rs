//! Runs of a real backend in virtual time: what they have in common, whatever the backend.
//!
//! A seed determines a run. What it is made of (servers, links, faults) is the backend's own; here are the clients, who take
//! locks in all the ways there are, the judgement on what came of it, and the runs of thousands of seeds.

mod client;
mod scenario;
mod seeds;
mod stage;

use std::future::Future;

pub use self::scenario::{Scenario, a_seed_is_always_the_same_story, find, no_seed_breaks_a_promise};
pub use self::seeds::{Seeds, in_parallel};
pub use self::stage::{Habits, Leases, Outcome, Stage, lock_name};

/// Runs a future in virtual time. All that is chosen by chance, in the locks as well, follows from the seed.
///
/// # Panics
///
/// When there is no runtime.
pub fn in_virtual_time<T>(seed: u64, run: impl Future<Output = T>) -> T {
    lock_core::random::seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Tokio chooses by chance in which order it wakes who waits for the same thing.
    #[cfg(tokio_unstable)]
    runtime.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime without I/O starts");
    runtime.block_on(run)
}
