//! The real backend in virtual time: many clients on one server in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo test -p lock-redis --test simulation`
//! replays one and tells its story; `SEEDS=n` runs so many. A seed that fails is added to `simulation.seeds`, which
//! is always run first.

#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scenario.rs"]
mod scenario;

use lock_testkit::simulation::{self, Outcome, Scenario as _, Seeds, find};

use crate::scenario::{Mode, Scenario};

const SEEDS: u64 = 5_000;
const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::new(SEED_FILE, SEEDS));
}

#[test]
fn a_seed_is_always_the_same_story() {
    simulation::a_seed_is_always_the_same_story::<Scenario>();
}

#[test]
fn a_lock_that_the_server_lets_end_early_is_found() {
    assert!(find::<Scenario>(Mode::EarlyExpiry, overlaps) < 100);
}

#[test]
fn a_restart_without_data_is_found() {
    assert!(find::<Scenario>(Mode::EmptyRestart, overlaps) < 100);
}

#[test]
fn tokens_survive_the_loss_of_data_unless_the_clock_goes_back_too() {
    for seed in 0..200 {
        let outcome = Scenario::new(seed, Mode::EmptyRestart).run(false);
        // Holders that overlap may learn of their grants in any order.
        assert!(outcome.report.shared_tokens.is_empty(), "seed {seed}\n{outcome}");
    }
    assert!(
        find::<Scenario>(Mode::EmptyRestartInThePast, |outcome| !outcome.report.verdict().token_order) < 100
    );
}

#[test]
fn a_lease_that_counts_from_the_answer_is_found() {
    let seed = find::<Scenario>(Mode::FromReply, overlaps);
    // It is the mutant that is wrong, not the run.
    let right = Scenario::new(seed, Mode::FromRequest).run(false);
    assert!(right.report.verdict().l2, "seed {seed}\n{right}");
}

fn overlaps(outcome: &Outcome) -> bool {
    !outcome.report.verdict().l2
}
