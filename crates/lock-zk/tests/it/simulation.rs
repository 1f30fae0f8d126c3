//! The real backend in virtual time: many clients on one ensemble in memory, with all that can go wrong between them.
//!
//! A seed determines the clients, what they do and which faults occur. `SEED=n cargo xtask test simulation::no_seed`
//! replays one and prints its history; `SEEDS=n` runs n seeds, and `SEED_SECONDS=n` new ones for n seconds. A seed that fails is
//! added to `simulation.seeds`, which is always run first.

pub(crate) mod driver;
pub(crate) mod ensemble;
mod run;
mod scenario;
mod tree;

use lock_testkit::by_tier;
use lock_testkit::simulation::{self, Outcome, Seeds, find};

use self::scenario::{Mode, Scenario};

const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::new(SEED_FILE, by_tier(60, 120, 5_000)));
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
#[ignore = "full: searches far for a counterexample"]
fn a_session_treated_as_valid_for_too_long_is_found() {
    assert!(find::<Scenario>(Mode::TooLong, overlaps) < 200);
}

#[test]
fn taking_a_sync_for_a_proof_is_found() {
    assert!(find::<Scenario>(Mode::TrustsSync, overlaps) < 200);
}

#[test]
#[ignore = "full: searches many seeds"]
fn a_session_that_moves_to_a_lower_limit_unawares_is_found() {
    assert!(find::<Scenario>(Mode::AcceptsLess, overlaps) < 200);
}

fn overlaps(outcome: &Outcome) -> bool {
    !outcome.report.verdict().l2
}
