//! The real backend in virtual time: clients on five masters in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo test -p lock-redlock --test simulation`
//! replays one and tells its story; `SEEDS=n` runs so many. A seed that fails is added to `simulation.seeds`, which
//! is always run first.

#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scenario.rs"]
mod scenario;

use std::time::Instant;

use lock_testkit::simulation::{Outcome, Seeds, in_parallel};

use crate::run::run;
use crate::scenario::{Mode, Scenario};

const SEEDS: u64 = 20_000;
/// How many of a broken kind: enough for a figure.
const FEW: u64 = 500;
const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = Seeds::one() {
        return tell(seed);
    }
    let start = Instant::now();
    let outcomes = Seeds::new(SEED_FILE, SEEDS).all(|seed| go(seed, Mode::Sound));
    let (count, rate) = (outcomes.len(), outcomes.len() as f64 / start.elapsed().as_secs_f64());
    let tenures: usize = outcomes.iter().map(|outcome| outcome.report.tenures).sum();
    let overtaken: usize = outcomes.iter().map(|outcome| outcome.report.l1.count).sum();
    println!(
        "{count} seeds, {rate:.0} a second: {tenures} tenures, {overtaken} of which overtook a holder that had lost its lock"
    );
    assert!(overtaken > 0, "no holder was ever overtaken: the faults are too weak to prove anything");
}

#[test]
fn a_seed_is_always_the_same_story() {
    let story = |seed| run(&Scenario::new(seed, Mode::Sound), true).log;
    let differ: Vec<u64> = (0..40).filter(|seed| story(*seed) != story(*seed)).collect();
    println!("seeds that are not replayed alike: {differ:?}");
    // In a few, tokio wakes two tasks at the same instant in an order that it chooses by chance.
    let most = if cfg!(tokio_unstable) { 0 } else { 10 };
    assert!(differ.len() <= most, "{differ:?}");
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

fn go(seed: u64, mode: Mode) -> Outcome {
    run(&Scenario::new(seed, mode), false)
}

/// How many locks were held twice at a time, by the deadlines of those who held them, in a few runs.
fn overlaps(mode: Mode) -> usize {
    let seeds: Vec<u64> = (0..FEW).collect();
    let found = in_parallel(&seeds, |seed| go(seed, mode).report.l2.count);
    let (runs, overlaps) = (found.iter().filter(|count| **count > 0).count(), found.iter().sum());
    println!("{mode:?}: {overlaps} overlaps, in {runs} of {FEW} seeds");
    overlaps
}

/// Tells the story of one seed.
fn tell(seed: u64) {
    let scenario = Scenario::new(seed, Mode::Sound);
    println!("{scenario:#?}");
    let outcome = run(&scenario, true);
    for line in &outcome.log {
        println!("{line}");
    }
    println!("{outcome}");
    assert!(outcome.holds(), "seed {seed} breaks a promise");
}
