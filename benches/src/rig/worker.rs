//! Worker processes: this program, started again as one client of a scenario or of a soak.
//!
//! A worker gets a [`Job`] as the first line of its standard input, [`Order`]s on the next ones, and writes
//! [`WorkerReport`]s to standard output, all as JSON lines. It ends with its standard input, with its parent, or when it is
//! killed. A job never stands on the command line, where everybody could read the password in its URL.

pub(crate) mod bare_hand_over;
pub(crate) mod client_runtimes;
pub(crate) mod clients;
pub(crate) mod contend;
mod forked_child;
pub(crate) mod handle;
pub(crate) mod held_locks;
mod journal;
mod log;
mod orders;
pub(crate) mod ping;
pub(crate) mod process;
pub(crate) mod throughput;

use std::time::Duration;

use lock_testkit::history::Event;
use serde::{Deserialize, Serialize};

use self::clients::{ClientOrder, ClientsTask};
use self::held_locks::HeldLocksCost;
use self::throughput::{Slice, Subject};
use crate::data::{Peer, Window};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) lock: String,
    /// The name that a rival in the same process uses for it.
    pub(crate) rival: String,
    /// The name of the lock in the history.
    pub(crate) recorded_as: String,
    /// The number of the process in the history.
    pub(crate) process: u32,
    pub(crate) task: Task,
}

impl Job {
    /// A job with the same name of the lock for all purposes.
    pub(crate) fn new(url: &str, lock: &str, process: u32, task: Task) -> Self {
        let [url, lock, recorded_as] = [url, lock, lock].map(str::to_owned);
        Self { url, lock, rival: String::new(), recorded_as, process, task }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Acquire and release it repeatedly, in the windows of the orders.
    Contend {
        hold: Duration,
        /// The library of the lock, if not ours.
        peer: Option<Peer>,
    },
    /// Hand over by the bare requests, in the windows of the orders.
    BareHandOver {
        hold: Duration,
        /// How many processes take turns.
        of: u32,
    },
    /// Measure empty round trips in the windows of the orders, without the lock.
    Ping,
    /// Acquire it and hold it until killed, or until the next order.
    Hold,
    Wait,
    /// Use locks while faults happen.
    Clients(ClientsTask),
    /// Acquire and release many locks at once, which have numbered names, in the windows of the orders.
    Throughput {
        subject: Subject,
        tasks: u32,
    },
    /// Hold many locks, which have numbered names.
    Many {
        count: usize,
        /// How long to measure their renewal.
        watch: Duration,
        servers: Vec<u32>,
    },
}

/// What the parent sends after the job.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Begin now.
    Go,
    Contend(Window),
    /// To the clients of a fault.
    Clients(ClientOrder),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerReport {
    Ready {
        /// How long a lock outlives its holder: the ttl or the session timeout.
        lease: Duration,
    },
    Events(Vec<Event>),
    /// A holder writes to the resource that the lock protects.
    Write {
        client: u64,
        token: u64,
    },
    /// The times of empty round trips, in nanoseconds.
    Pings(Vec<u64>),
    /// The votes of a Redlock client that contended. Sent after all windows.
    Votes {
        won: u64,
        /// Of those, at the first try.
        won_at_once: u64,
        split: u64,
    },
    /// What many locks achieved in a window.
    Slice(Slice),
    Computed,
    /// The locks are closed.
    Closed,
    /// How many tasks got no lock, and why the first of them did not.
    Crowded {
        failed: usize,
        why: String,
    },
    /// An error that a client got, with its time.
    Error(String),
    /// What clients were still running at the end, or ended unexpectedly.
    Stuck(Vec<String>),
    Cost(HeldLocksCost),
    Failed(String),
}
