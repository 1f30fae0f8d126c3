//! Scenarios, one for each seed: that all of them end well, that a wrong kind does not, and the story of a single one.

use std::fmt::Debug;
use std::time::Instant;

use super::{Outcome, Seeds};

/// One run of a backend, as its seed determines it: who takes part, what they do and what goes wrong.
pub trait Scenario: Debug + Sized {
    /// What runs are to show. The default is that every promise is kept.
    type Mode: Copy + Debug + Default;

    /// The scenario of a seed.
    fn new(seed: u64, mode: Self::Mode) -> Self;

    /// Runs it, and notes what happens if it is asked to.
    fn run(&self, with_log: bool) -> Outcome;
}

/// Runs all of the seeds, or tells the story of the one that was asked for.
///
/// # Panics
///
/// When one breaks a promise, or when none was in danger.
pub fn no_seed_breaks_a_promise<S: Scenario>(seeds: &Seeds) {
    if let Some(seed) = Seeds::one() {
        return tell::<S>(seed);
    }
    let start = Instant::now();
    let outcomes = seeds.all(|seed| sound::<S>(seed, false));
    let (count, rate) = (outcomes.len(), outcomes.len() as f64 / start.elapsed().as_secs_f64());
    let holds: usize = outcomes.iter().map(|outcome| outcome.report.holds).sum();
    let overtaken: usize = outcomes.iter().map(|outcome| outcome.report.l1.count).sum();
    println!(
        "{count} seeds, {rate:.0} a second: {holds} holds, {overtaken} of which overtook a holder that had lost its lock"
    );
    assert!(overtaken > 0, "no holder was ever overtaken: the faults are too weak to prove anything");
}

/// Runs a few seeds twice.
///
/// # Panics
///
/// When more of them take another course than tokio's own dice account for.
pub fn a_seed_is_always_the_same_story<S: Scenario>() {
    let story = |seed| sound::<S>(seed, true).log;
    let differ: Vec<u64> = (0..40).filter(|seed| story(*seed) != story(*seed)).collect();
    println!("seeds that are not replayed alike: {differ:?}");
    // Without the flag of .cargo/config.toml tokio wakes some tasks of the same instant in an order of chance.
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

fn tell<S: Scenario>(seed: u64) {
    let scenario = S::new(seed, S::Mode::default());
    println!("{scenario:#?}");
    let outcome = scenario.run(true);
    for line in &outcome.log {
        println!("{line}");
    }
    println!("{outcome}");
    assert!(outcome.holds(), "seed {seed} breaks a promise");
}
