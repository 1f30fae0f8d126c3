//! The real backend in virtual time: many clients on one server in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo xtask test simulation::no_seed`
//! replays one and tells its story; `SEEDS=n` runs so many, and `SEED_SECONDS=n` new ones for so long. A seed that fails is
//! added to `simulation.seeds`, which is always run first.

mod run;
mod scenario;

use lock_core::TokenBlock;
use lock_testkit::by_tier;
use lock_testkit::checker::{Hold, TokenClash};
use lock_testkit::simulation::{self, Outcome, Scenario as _, Seeds, find, in_parallel};

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
fn a_lock_that_the_server_lets_end_early_is_found() {
    assert!(find::<Scenario>(Mode::EarlyExpiry, overlaps) < 100);
}

#[test]
fn a_restart_without_data_is_found() {
    assert!(find::<Scenario>(Mode::EmptyRestart, overlaps) < 100);
}

#[test]
fn a_server_that_loses_data_hangs_no_client_and_gives_no_token_twice() {
    let seeds: Vec<u64> = (0..by_tier(20, 40, 1_000)).collect();
    for mode in [Mode::EarlyExpiry, Mode::EmptyRestart] {
        let outcomes = in_parallel(&seeds, |seed| Scenario::new(seed, mode).run(false));
        for (seed, outcome) in seeds.iter().zip(outcomes) {
            // Nobody hangs, nothing is left, and in the end everybody gets every lock.
            assert!(outcome.faults.is_empty(), "{mode:?}, seed {seed}\n{outcome}");
            assert!(outcome.report.shared_tokens.is_empty(), "{mode:?}, seed {seed}\n{outcome}");
            // Holders that overlap may learn of their grants in any order; whom the server grants the lock later gets a larger
            // token still. A holder that has not noticed the loss may hand over within its process, with the next of its block.
            let clashes = &outcome.report.token_order.examples;
            let is_granted = |hold: &Hold| hold.token.is_some_and(|token| TokenBlock::start(token) == token);
            let is_late = |clash: &TokenClash| {
                clash.second.called_ns > Some(clash.first.acquired_ns) && is_granted(&clash.second)
            };
            assert!(!clashes.iter().any(is_late), "{mode:?}, seed {seed}\n{outcome}");
        }
    }
}

#[test]
fn a_loss_of_data_under_a_clock_that_goes_back_is_found() {
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
