//! The real backend in virtual time: many clients on one server in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo test -p lock-redis --test simulation`
//! replays one and tells its story; `SEEDS=n` runs so many. A seed that fails is added to `simulation.seeds`, which
//! is always run first.

#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scenario.rs"]
mod scenario;

use std::time::Instant;

use lock_redis::WaitBy;
use lock_testkit::simulation::{Outcome, Seeds};

use crate::run::run;
use crate::scenario::{Mode, Scenario};

/// The ways to wait that are simulated.
const WAITS: &[WaitBy] = &[WaitBy::Queue, WaitBy::Notify, WaitBy::Poll];
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
    let differ: Vec<u64> = (0..40).filter(|seed| sound(*seed, true).log != sound(*seed, true).log).collect();
    println!("seeds that are not replayed alike: {differ:?}");
    // In a few, tokio wakes two tasks at the same instant in an order that it chooses by chance.
    let most = if cfg!(tokio_unstable) { 0 } else { 10 };
    assert!(differ.len() <= most, "{differ:?}");
}

#[test]
fn a_lock_that_the_server_lets_end_early_is_found() {
    assert!(find(Mode::EarlyExpiry, |outcome| !outcome.report.verdict().l2) < 100);
}

#[test]
fn a_restart_without_data_is_found() {
    assert!(find(Mode::EmptyRestart, |outcome| !outcome.report.verdict().l2) < 100);
}

#[test]
fn tokens_survive_the_loss_of_data_unless_the_clock_goes_back_too() {
    for seed in 0..200 {
        let outcome = run(&Scenario::new(seed, Mode::EmptyRestart, WAITS), false);
        // Holders that overlap may learn of their grants in any order.
        assert!(outcome.report.shared_tokens.is_empty(), "seed {seed}\n{outcome}");
    }
    assert!(find(Mode::EmptyRestartInThePast, |outcome| !outcome.report.verdict().token_order) < 100);
}

#[test]
fn a_lease_that_counts_from_the_answer_is_found() {
    let seed = find(Mode::FromReply, |outcome| !outcome.report.verdict().l2);
    // It is the mutant that is wrong, not the run.
    let right = run(&Scenario::new(seed, Mode::FromRequest, WAITS), false);
    assert!(right.report.verdict().l2, "seed {seed}\n{right}");
}

fn sound(seed: u64, with_log: bool) -> Outcome {
    run(&Scenario::new(seed, Mode::Sound, WAITS), with_log)
}

/// The first seed of which this is true.
fn find(mode: Mode, wrong: impl Fn(&Outcome) -> bool) -> u64 {
    let found = (0..2_000).find(|seed| wrong(&run(&Scenario::new(*seed, mode, WAITS), false)));
    let seed = found.unwrap_or_else(|| panic!("no seed finds anything wrong with {mode:?}"));
    println!("{mode:?} is found by seed {seed}");
    seed
}

/// Tells the story of one seed.
fn tell(seed: u64) {
    println!("{:#?}", Scenario::new(seed, Mode::Sound, WAITS));
    let outcome = sound(seed, true);
    for line in &outcome.log {
        println!("{line}");
    }
    println!("{outcome}");
    assert!(outcome.holds(), "seed {seed} breaks a promise");
}
