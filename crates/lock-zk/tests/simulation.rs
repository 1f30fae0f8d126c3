//! The real backend in virtual time: many clients on one ensemble in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo test -p lock-zk --test simulation`
//! replays one and tells its story; `SEEDS=n` runs so many. A seed that fails is added to `simulation.seeds`, which
//! is always run first.

#[path = "simulation/client.rs"]
mod client;
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

use std::fs::{OpenOptions, read_to_string};
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::run::{Outcome, run};
use crate::scenario::{Mode, Scenario};

const SEEDS: u64 = 5_000;
const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number_in("SEED") {
        return tell(seed);
    }
    let (start, next, tenures, overtaken) =
        (Instant::now(), AtomicU64::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let known = known_seeds();
    let seeds: Vec<u64> = known.iter().copied().chain(0..number_in("SEEDS").unwrap_or(SEEDS)).collect();
    let work = || {
        while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let outcome = sound(seed, false);
            if !outcome.holds() {
                remember(seed, &known);
                next.store(seeds.len() as u64, Ordering::Relaxed);
                panic!("seed {seed} breaks a promise; SEED={seed} tells its story\n{outcome}");
            }
            tenures.fetch_add(outcome.report.tenures, Ordering::Relaxed);
            overtaken.fetch_add(outcome.report.l1.count, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let (rate, tenures, overtaken) =
        (seeds.len() as f64 / start.elapsed().as_secs_f64(), tenures.into_inner(), overtaken.into_inner());
    println!(
        "{} seeds, {rate:.0} a second: {tenures} tenures, {overtaken} of which overtook a holder that had lost its lock",
        seeds.len()
    );
    assert!(overtaken > 0, "no holder was ever overtaken: the faults are too weak to prove anything");
}

#[test]
fn a_seed_is_always_the_same_story() {
    let differ: Vec<u64> =
        (0..40).filter(|seed| sound(*seed, true).story != sound(*seed, true).story).collect();
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

fn sound(seed: u64, with_story: bool) -> Outcome {
    run(&Scenario::new(seed, Mode::Sound), with_story)
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
    for line in &outcome.story {
        println!("{line}");
    }
    println!("{outcome}");
    assert!(outcome.holds(), "seed {seed} breaks a promise");
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// The seeds that failed once. What follows a `#` says why.
fn known_seeds() -> Vec<u64> {
    let text = read_to_string(SEED_FILE).unwrap();
    let seeds = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    seeds.filter(|seed| !seed.is_empty()).map(|seed| seed.parse().unwrap()).collect()
}

fn remember(seed: u64, known: &[u64]) {
    if !known.contains(&seed) {
        let mut file = OpenOptions::new().append(true).open(SEED_FILE).unwrap();
        writeln!(file, "{seed}").unwrap();
    }
}
