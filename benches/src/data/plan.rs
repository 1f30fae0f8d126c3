//! How long, how often and with how many clients a run measures.

use std::fmt;
use std::time::Duration;

use crate::data::names::Peer;
use crate::data::results::Mode;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The warm-up, whose numbers do not count.
    pub(crate) warm_up: Duration,
    /// How long `uncontended` measures, floor included, and `degraded` in each of its two states.
    pub(crate) uncontended: Duration,
    /// In how many rounds what is compared takes turns: five are the fewest that have a confidence interval.
    pub(crate) rounds: u32,
    pub(crate) most_operations: u64,
    /// How long `contended` measures.
    pub(crate) contended: Duration,
    /// How long `contended` counts requests.
    pub(crate) counted: Duration,
    pub(crate) processes: u32,
    pub(crate) tasks: u32,
    /// How long they contend before and after an equally long slice of the floor.
    pub(crate) task_slice: Duration,
    /// How many clients `throughput` has at once.
    pub(crate) loads: &'static [Load],
    /// How long each of its subjects uses its locks before the next one does.
    pub(crate) throughput_slice: Duration,
    /// The libraries that take part.
    pub(crate) throughput_peers: &'static [Peer],
    /// How often `command` runs a command with the lock, and without.
    pub(crate) commands: u32,
    /// The rounds of `crash`.
    pub(crate) crash_rounds: usize,
    /// How many holders `crash` kills in a round.
    pub(crate) crash_holders: usize,
    /// The ttl or session timeout in `crash`.
    pub(crate) crash_lease: Duration,
    /// How many locks `held` holds.
    pub(crate) held_locks: usize,
    /// How long `held` measures their renewal.
    pub(crate) held: Duration,
    /// How many names `migration` moves one after the other, and back.
    pub(crate) moved_names: usize,
    /// A scenario that takes longer is stuck.
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
    /// With so many held locks, whose renewal is measured for so long.
    pub(crate) fn holding(self, held_locks: usize, held: Duration) -> Self {
        Self {
            held_locks,
            held,
            patience: self.patience + held + PATIENCE_PER_LOCK * held_locks as u32,
            ..self
        }
    }

    /// The plan of a run with default options.
    pub(crate) const fn new(mode: Mode) -> Self {
        let common = Self {
            warm_up: Duration::from_millis(250),
            uncontended: Duration::from_millis(1200),
            rounds: 5,
            most_operations: 30_000,
            contended: Duration::from_millis(1500),
            counted: Duration::from_millis(700),
            processes: 8,
            tasks: 1000,
            task_slice: Duration::from_millis(120),
            loads: &[Load { processes: 1, tasks: 1 }, Load { processes: 1, tasks: 256 }],
            throughput_slice: Duration::from_millis(90),
            throughput_peers: &[Peer::Rslock, Peer::Sqlx],
            commands: 20,
            crash_rounds: 1,
            crash_holders: 3,
            crash_lease: Duration::from_secs(1),
            held_locks: 10_000,
            // All locks are renewed once, after a third of the default ttl.
            held: Duration::from_secs(11),
            // More than two batches of the way back.
            moved_names: 1200,
            patience: Duration::from_secs(120),
        };
        match mode {
            Mode::Quick => common,
            Mode::Full => Self {
                warm_up: Duration::from_secs(1),
                uncontended: Duration::from_secs(12),
                rounds: 9,
                most_operations: 100_000,
                contended: Duration::from_secs(10),
                counted: Duration::from_secs(4),
                processes: 20,
                task_slice: Duration::from_millis(500),
                loads: LOADS,
                throughput_slice: Duration::from_millis(300),
                throughput_peers: &[
                    Peer::Rslock,
                    Peer::Rlock,
                    Peer::AsyncRedisLock,
                    Peer::Distkit,
                    Peer::LockClient,
                    Peer::Sqlx,
                ],
                commands: 200,
                crash_rounds: 3,
                moved_names: 10_000,
                ..common
            },
        }
    }
}

const LOADS: &[Load] = &[
    Load { processes: 1, tasks: 1 },
    Load { processes: 1, tasks: 16 },
    Load { processes: 1, tasks: 256 },
    Load { processes: 1, tasks: 1024 },
    Load { processes: 8, tasks: 64 },
];
/// To acquire and release one lock, on a slow machine.
pub(crate) const PATIENCE_PER_LOCK: Duration = Duration::from_millis(3);
