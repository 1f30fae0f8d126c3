//! Runs many seeds on all cores. Seeds that have failed are kept in a file and always run first.

use std::fs::{OpenOptions, read_to_string};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};
use std::time::{Duration, Instant};

use super::Outcome;

/// The seeds of a simulation.
///
/// Environment variables: `SEED=n` runs one seed and prints its trace, `SEEDS=n` runs this many, `SEED_SECONDS=n` runs new
/// ones for this long.
#[derive(Clone, Debug)]
pub struct Seeds {
    file: PathBuf,
    count: u64,
    patience: Option<Duration>,
}

/// More than can run in any time.
const MOST_NEW: u64 = 1 << 22;

impl Seeds {
    /// The seeds of this file, one per line with comments after `#`, and this many from zero on.
    pub fn new(file: impl Into<PathBuf>, count: u64) -> Self {
        let patience = number_in("SEED_SECONDS").map(Duration::from_secs);
        Self { file: file.into(), count: number_in("SEEDS").unwrap_or(count), patience }
    }

    /// The seed of `SEED`.
    pub(super) fn one() -> Option<u64> {
        number_in("SEED")
    }

    /// Runs all seeds and returns their outcomes in order.
    ///
    /// # Panics
    ///
    /// When a run breaks a promise: with its seed, which is also added to the file.
    pub(super) fn all(&self, run: impl Fn(u64) -> Outcome + Sync) -> Vec<Outcome> {
        let known = known_seeds(&self.file);
        // New seeds, when the time is limited instead of their number.
        let first = self.patience.map_or(0, |_| crate::now_ns() % (1 << 32));
        let count = self.patience.map_or(self.count, |_| MOST_NEW);
        let seeds: Vec<u64> = known.iter().copied().chain(first..first + count).collect();
        let (broken, began) = (AtomicBool::new(false), Instant::now());
        let outcomes = in_parallel(&seeds, |seed| {
            let is_late = self.patience.is_some_and(|patience| began.elapsed() >= patience);
            if is_late || broken.load(Ordering::Relaxed) {
                return None;
            }
            let outcome = run(seed);
            broken.fetch_or(!outcome.holds(), Ordering::Relaxed);
            Some(outcome)
        });
        let outcomes = seeds.into_iter().zip(outcomes).filter_map(|(seed, outcome)| Some((seed, outcome?)));
        let held = outcomes.map(|(seed, outcome)| {
            if !outcome.holds() {
                remember(&self.file, seed, &known);
                panic!("seed {seed} breaks a promise; SEED={seed} prints its trace\n{outcome}");
            }
            outcome
        });
        held.collect()
    }
}

/// Runs these seeds on all cores, and gives what came out, in their order.
pub fn in_parallel<T: Send>(seeds: &[u64], run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(seeds.len())));
    scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((at, seed)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, *seeds.get(at)?)))
                {
                    let outcome = run(seed);
                    done.lock().expect("no run panics while it is noted").push((at, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no run panics while it is noted");
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

fn known_seeds(file: &Path) -> Vec<u64> {
    let text = read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let seeds = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let number =
        |seed: &str| seed.parse().unwrap_or_else(|_| panic!("{}: {seed} is no seed", file.display()));
    seeds.filter(|seed| !seed.is_empty()).map(number).collect()
}

fn remember(file: &Path, seed: u64, known: &[u64]) {
    if !known.contains(&seed) {
        let noted = OpenOptions::new().append(true).open(file).and_then(|mut file| writeln!(file, "{seed}"));
        noted.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}
