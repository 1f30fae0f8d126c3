//! Simulations: runs of a real backend in virtual time.
//!
//! A seed determines a run. Servers, links and faults belong to the backend. This module has the clients, which acquire
//! locks in all possible ways, the checks after a run, and the loop over thousands of seeds.

mod client;
mod scenario;
mod seeds;
mod stage;

use std::future::Future;

pub use self::scenario::{Scenario, a_seed_is_always_the_same_story, find, no_seed_breaks_a_promise};
pub use self::seeds::{Seeds, in_parallel};
pub use self::stage::{Habits, Leases, Outcome, Stage, lock_name};

/// Runs a future in virtual time. All random choices, those of the locks included, follow from the seed.
///
/// # Panics
///
/// When the runtime cannot be built.
pub fn in_virtual_time<T>(seed: u64, run: impl Future<Output = T>) -> T {
    lock_core::random::seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Tokio wakes tasks that wait for the same event in a random order.
    #[cfg(tokio_unstable)]
    runtime.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime without I/O starts");
    runtime.block_on(run)
}
