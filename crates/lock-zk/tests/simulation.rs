//! The real backend in virtual time: many clients on one ensemble in memory, with all that can go wrong between them.
//!
//! A seed determines the clients, what they do and which faults occur. `SEED=n cargo test -p lock-zk --test simulation`
//! replays one and prints its history; `SEEDS=n` runs n seeds, and `SEED_SECONDS=n` new ones for n seconds. A seed that fails is added to `simulation.seeds`, which
//! is always run first.

#[path = "simulation/driver.rs"]
mod driver;
#[path = "simulation/ensemble.rs"]
mod ensemble;
#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scenario.rs"]
mod scenario;
#[path = "simulation/tree.rs"]
mod tree;

use lock_testkit::simulation::{self, Outcome, Seeds, find};

use crate::scenario::{Mode, Scenario};

const SEEDS: u64 = 300;
const MANY_SEEDS: u64 = 5_000;
const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::new(SEED_FILE, SEEDS));
}

#[test]
#[ignore = "full: thousands of seeds"]
fn none_of_many_seeds_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::many(SEED_FILE, MANY_SEEDS));
}

#[test]
fn a_seed_is_always_the_same_story() {
    simulation::a_seed_is_always_the_same_story::<Scenario>();
}

#[test]
fn a_session_that_ends_early_is_found() {
    assert!(find::<Scenario>(Mode::EarlyExpiry, overlaps) < 200);
}

#[test]
fn a_session_treated_as_valid_for_too_long_is_found() {
    assert!(find::<Scenario>(Mode::TooLong, overlaps) < 200);
}

#[test]
fn taking_a_sync_for_a_proof_is_found() {
    assert!(find::<Scenario>(Mode::TrustsSync, overlaps) < 200);
}

fn overlaps(outcome: &Outcome) -> bool {
    !outcome.report.verdict().l2
}
