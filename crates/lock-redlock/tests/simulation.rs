//! The real backend in virtual time: clients on five masters in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo test -p lock-redlock --test simulation`
//! replays one and tells its story; `SEEDS=n` runs so many, and `SEED_SECONDS=n` new ones for so long. A seed that fails is added to `simulation.seeds`, which
//! is always run first.

#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scenario.rs"]
mod scenario;

use std::sync::atomic::Ordering;

use lock_testkit::simulation::{self, Scenario as _, Seeds, in_parallel};

use crate::run::SEEN;
use crate::scenario::{Mode, Scenario};

const SEEDS: u64 = 300;
const MANY_SEEDS: u64 = 20_000;
/// How many on three or seven masters.
const OTHER_SEEDS: u64 = 2_000;
/// How many of a broken kind: enough for a figure.
const FEW: u64 = 500;
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
#[ignore = "full: thousands of seeds"]
fn no_seed_breaks_a_promise_of_three_or_seven_masters() {
    let seeds: Vec<u64> = (0..OTHER_SEEDS).collect();
    let outcomes = in_parallel(&seeds, |seed| Scenario::new(seed, Mode::OtherSizes).run(false));
    for (seed, outcome) in seeds.iter().zip(&outcomes) {
        assert!(outcome.holds(), "seed {seed} breaks a promise\n{outcome}");
    }
    let tenures: usize = outcomes.iter().map(|outcome| outcome.report.holds).sum();
    println!("{OTHER_SEEDS} seeds: {tenures} tenures");
}

#[test]
fn seeds_hand_the_lock_over_and_split_the_vote_also_while_a_master_is_away() {
    let seeds: Vec<u64> = (0..SEEDS).collect();
    in_parallel(&seeds, |seed| Scenario::new(seed, Mode::Sound).run(false));
    println!("{SEEN:?}");
    for seen in [&SEEN.handed_over, &SEEN.with_a_master_away, &SEEN.split] {
        assert!(seen.load(Ordering::Relaxed) > SEEDS / 30, "{SEEN:?}");
    }
}

#[test]
fn a_seed_is_always_the_same_story() {
    simulation::a_seed_is_always_the_same_story::<Scenario>();
}

#[test]
fn masters_that_restart_without_their_data_are_kept_out() {
    assert_eq!(overlaps(Mode::EmptyRestart), 0);
}

#[test]
fn masters_that_lose_their_data_unseen_give_a_lock_twice() {
    assert!(overlaps(Mode::UnseenEmptyRestart) > 0);
}

#[test]
fn keys_that_end_early_give_a_lock_twice() {
    assert!(overlaps(Mode::EarlyExpiry) > 0);
}

#[test]
fn a_lease_that_counts_from_the_answer_is_held_twice() {
    assert!(overlaps(Mode::FromReply) > 0);
    // It is the mutant that is wrong, not the run.
    assert_eq!(overlaps(Mode::FromRequest), 0);
}

/// How many locks had two valid holders at once in a few runs.
fn overlaps(mode: Mode) -> usize {
    let seeds: Vec<u64> = (0..FEW).collect();
    let found = in_parallel(&seeds, |seed| Scenario::new(seed, mode).run(false).report.l2.count);
    let (runs, overlaps) = (found.iter().filter(|count| **count > 0).count(), found.iter().sum());
    println!("{mode:?}: {overlaps} overlaps, in {runs} of {FEW} seeds");
    overlaps
}
