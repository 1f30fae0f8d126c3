//! What all experiments of a run have in common.

use std::fmt::Display;
use std::time::Duration;

use lock_testkit::history::Event;
use polylock::Locks;

use crate::data::{Defect, Outcome, Plan, Row};
use crate::rig::Target;

/// What all experiments of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    /// The name of the run, part of every lock name: runs do not meet on a server, and what they leave can be found.
    pub(crate) run: String,
    pub(crate) plan: Plan,
    /// False when every client gets a lock of its own, to prove that the harness detects missing exclusion.
    pub(crate) exclusion: bool,
    /// A deliberate defect of the lock or the store, in what injects faults.
    pub(crate) broken: Option<Defect>,
}

/// What an experiment measured of one backend or peer.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) backend: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) events: Vec<Event>,
    /// Additions to the settings of the report, by name.
    pub(crate) notes: Vec<(&'static str, String)>,
    /// Failures that left some numbers.
    pub(crate) complaints: Vec<String>,
}

impl Measured {
    pub(crate) fn of(backend: &str, rows: Vec<Row>) -> Self {
        Self { backend: backend.to_owned(), rows, ..Self::default() }
    }
}

impl Bench {
    pub(crate) fn lock(&self, scenario: &str) -> String {
        format!("{}-{scenario}", self.run)
    }

    /// The name that a client uses for that lock.
    pub(crate) fn lock_of(&self, lock: &str, client: impl Display) -> String {
        if self.exclusion { lock.to_owned() } else { format!("{lock}-{client}") }
    }
}

pub(crate) async fn connect(target: &Target) -> Outcome<Locks> {
    Ok(Locks::connect(target.url()).await?)
}

/// `1.5 s`, `250 ms`.
pub(crate) fn time(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs_f64())
    }
}
