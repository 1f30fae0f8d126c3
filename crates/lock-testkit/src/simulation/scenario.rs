//! Scenarios, one per seed: all seeds of a sound lock keep their promises, and some seed finds each deliberate defect.

use std::fmt::Debug;
use std::time::Instant;

use super::{Outcome, Seeds};
use crate::by_tier;

/// A run of a backend, as its seed determines it: clients, actions and faults.
pub trait Scenario: Debug + Sized {
    /// A deliberate defect. The default is a sound lock.
    type Mode: Copy + Debug + Default;

    /// The scenario of a seed.
    fn new(seed: u64, mode: Self::Mode) -> Self;

    /// Runs it, with a trace on request.
    fn run(&self, with_log: bool) -> Outcome;
}

/// Runs all seeds, or prints the trace of the seed in `SEED`.
///
/// # Panics
///
/// When a run breaks a promise, or when no run overtook a lost holder.
pub fn no_seed_breaks_a_promise<S: Scenario>(seeds: &Seeds) {
    if let Some(seed) = Seeds::one() {
        return print_trace::<S>(seed);
    }
    let start = Instant::now();
    let outcomes = seeds.all(|seed| sound::<S>(seed, false));
    let (count, rate) = (outcomes.len(), outcomes.len() as f64 / start.elapsed().as_secs_f64());
    let holds: usize = outcomes.iter().map(|outcome| outcome.report.holds).sum();
    let overtaken: usize = outcomes.iter().map(|outcome| outcome.report.l1.count).sum();
    println!(
        "{count} seeds, {rate:.0} per second: {holds} holds, {overtaken} of them while a holder that had lost its lock went on"
    );
    assert!(
        overtaken > 0,
        "no holder ever lost its lock to another: the faults are too weak to prove anything"
    );
}

/// Runs some seeds twice.
///
/// # Panics
///
/// When more traces differ than tokio's own random choices explain.
pub fn a_seed_is_always_the_same_story<S: Scenario>() {
    let story = |seed| sound::<S>(seed, true).log;
    let differ: Vec<u64> = (0..by_tier(4, 8, 40)).filter(|seed| story(*seed) != story(*seed)).collect();
    println!("seeds that are not replayed alike: {differ:?}");
    // Without the flag of .cargo/config.toml tokio wakes tasks of the same instant in a random order.
    let most = if cfg!(tokio_unstable) { 0 } else { 10 };
    assert!(differ.len() <= most, "{differ:?}");
}

/// The first seed of this mode whose outcome is wrong.
///
/// # Panics
///
/// When there is none.
pub fn find<S: Scenario>(mode: S::Mode, wrong: impl Fn(&Outcome) -> bool) -> u64 {
    let found = (0..2_000).find(|seed| wrong(&S::new(*seed, mode).run(false)));
    let seed = found.unwrap_or_else(|| panic!("no seed finds anything wrong with {mode:?}"));
    println!("{mode:?} is found by seed {seed}");
    seed
}

fn sound<S: Scenario>(seed: u64, with_log: bool) -> Outcome {
    S::new(seed, S::Mode::default()).run(with_log)
}

fn print_trace<S: Scenario>(seed: u64) {
    let scenario = S::new(seed, S::Mode::default());
    println!("{scenario:#?}");
    let outcome = scenario.run(true);
    for line in &outcome.log {
        println!("{line}");
    }
    println!("{outcome}");
    assert!(outcome.holds(), "seed {seed} breaks a promise");
}
