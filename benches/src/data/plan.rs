//! How long, how often and with how many clients a run measures. What only one experiment asks for is in its file.

use std::fmt;
use std::time::Duration;

use crate::data::results::Mode;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// The warm-up, whose numbers do not count.
    pub(crate) warm_up: Duration,
    /// How long one client measures, floor included.
    pub(crate) uncontended: Duration,
    /// In how many rounds what is compared takes turns: five are the fewest that have a confidence interval.
    pub(crate) rounds: u32,
    pub(crate) most_operations: u64,
    /// How long processes contend.
    pub(crate) contended: Duration,
    /// How long requests are counted.
    pub(crate) counted: Duration,
    pub(crate) processes: u32,
    pub(crate) tasks: u32,
    /// How many locks `held` holds.
    pub(crate) held_locks: usize,
    /// How long `held` measures their renewal.
    pub(crate) held: Duration,
    /// An experiment that takes longer is stuck.
    pub(crate) patience: Duration,
}

/// So many processes, each with so many tasks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Load {
    pub(crate) processes: u32,
    pub(crate) tasks: u32,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.processes, self.tasks) {
            (1, 1) => f.write_str("1 task"),
            (1, tasks) => write!(f, "{tasks} tasks"),
            (processes, tasks) => write!(f, "{processes} x {tasks} tasks"),
        }
    }
}

impl Plan {
    /// The plan of a run with default options.
    pub(crate) const fn new(mode: Mode) -> Self {
        let common = Self {
            mode,
            warm_up: Duration::from_millis(250),
            uncontended: Duration::from_millis(1200),
            rounds: 5,
            most_operations: 30_000,
            contended: Duration::from_millis(1500),
            counted: Duration::from_millis(700),
            processes: 8,
            tasks: 1000,
            held_locks: 10_000,
            // All locks are renewed once, after a third of the default ttl.
            held: Duration::from_secs(11),
            patience: Duration::from_secs(120),
        };
        match mode {
            Mode::Quick => common,
            Mode::Full => Self {
                warm_up: Duration::from_millis(500),
                uncontended: Duration::from_secs(5),
                // With eight, the interval leaves out the two outermost.
                rounds: 8,
                most_operations: 100_000,
                contended: Duration::from_secs(4),
                counted: Duration::from_secs(2),
                processes: 20,
                ..common
            },
        }
    }

    /// With so many held locks, whose renewal is measured for so long.
    pub(crate) fn holding(self, held_locks: usize, held: Duration) -> Self {
        let patience = self.patience + held + PATIENCE_PER_LOCK * held_locks as u32;
        Self { held_locks, held, patience, ..self }
    }

    /// What fits the mode of the run.
    pub(crate) fn by_mode<T>(&self, quick: T, full: T) -> T {
        self.mode.pick(quick, full)
    }
}

/// To acquire and release one lock, on a slow machine.
pub(crate) const PATIENCE_PER_LOCK: Duration = Duration::from_millis(3);
