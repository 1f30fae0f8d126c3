//! The real backend in virtual time: many clients on one ensemble in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo test -p lock-zk --test simulation`
//! replays one and tells its story; `SEEDS=n` runs so many. A seed that fails is added to `simulation.seeds`, which
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

use std::time::Instant;

use lock_testkit::simulation::{Outcome, Seeds};

use crate::run::run;
use crate::scenario::{Mode, Scenario};

const SEEDS: u64 = 5_000;
const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = Seeds::one() {
        return tell(seed);
    }
    let start = Instant::now();
    let outcomes = Seeds::new(SEED_FILE, SEEDS).all(|seed| sound(seed, false));
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
    let story = |seed| sound(seed, true).log;
    let differ: Vec<u64> = (0..40).filter(|seed| story(*seed) != story(*seed)).collect();
    println!("seeds that are not replayed alike: {differ:?}");
    // In a few, tokio wakes two tasks at the same instant in an order that it chooses by chance.
    let most = if cfg!(tokio_unstable) { 0 } else { 10 };
    assert!(differ.len() <= most, "{differ:?}");
}

#[test]
fn a_session_that_ends_early_is_found() {
    assert!(find(Mode::EarlyExpiry, |outcome| !outcome.report.verdict().l2) < 200);
}

#[test]
fn believing_in_a_session_for_too_long_is_found() {
    assert!(find(Mode::TooLong, |outcome| !outcome.report.verdict().l2) < 200);
}

fn sound(seed: u64, with_log: bool) -> Outcome {
    run(&Scenario::new(seed, Mode::Sound), with_log)
}

/// The first seed of which this is true.
fn find(mode: Mode, wrong: impl Fn(&Outcome) -> bool) -> u64 {
    let found = (0..2_000).find(|seed| wrong(&run(&Scenario::new(*seed, mode), false)));
    let seed = found.unwrap_or_else(|| panic!("no seed finds anything wrong with {mode:?}"));
    println!("{mode:?} is found by seed {seed}");
    seed
}

/// Tells the story of one seed.
fn tell(seed: u64) {
    println!("{:#?}", Scenario::new(seed, Mode::Sound));
    let outcome = sound(seed, true);
    for line in &outcome.log {
        println!("{line}");
    }
    println!("{outcome}");
    assert!(outcome.holds(), "seed {seed} breaks a promise");
}
