//! The history of a fault in a file: what was done on the first line, and one event on each of the others.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lock_testkit::history::{Event, History};
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use crate::data::{BackendName, Defect, Failure, Fault, Outcome};

/// A fault on a backend: what was done, and what the clients and the store did.
#[derive(Clone, Debug)]
pub(super) struct FaultRecord {
    pub(super) head: RecordHead,
    pub(super) history: History,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct RecordHead {
    pub(super) fault: Fault,
    pub(super) backend: BackendName,
    /// The name of the expectation: a record outlives a change of it.
    pub(super) expectation: String,
    /// How the servers differ from those of other faults, in words.
    pub(super) servers: Option<String>,
    pub(super) seed: u64,
    pub(super) broken: Option<Defect>,
    /// How long a lock outlives its holder.
    pub(super) lease: Duration,
    /// When the fault began, on the clock of the history.
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    /// When the clients were ended.
    pub(super) end_ns: u64,
    /// The processes that were stopped by SIGSTOP, and when.
    pub(super) stopped: Vec<(u32, u64)>,
    pub(super) effect: Evidence,
    /// The processes and clients that wait for the lock instead of polling it.
    pub(super) waiters: Vec<(u32, u64)>,
    /// Whether every client that still ran got the lock after the fault.
    pub(super) all_served: bool,
    /// When one did not: where the logs are, as the end of a sentence.
    #[serde(default)]
    pub(super) stuck: Option<String>,
}

impl FaultRecord {
    pub(super) fn write(&self, path: &Path) -> Outcome<()> {
        let mut text = serde_json::to_string(&self.head)?;
        text.push('\n');
        for event in self.history.events() {
            text.push_str(&serde_json::to_string(event)?);
            text.push('\n');
        }
        let named = |error: std::io::Error| Failure::from(error).during(&path.display().to_string());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(named)?;
        }
        fs::write(path, text).map_err(named)
    }

    pub(super) fn read(path: &Path) -> Outcome<Self> {
        let named = |failure: Failure| failure.during(&path.display().to_string());
        let text = fs::read_to_string(path).map_err(|error| named(error.into()))?;
        Self::parse(&text).map_err(named)
    }

    fn parse(text: &str) -> Outcome<Self> {
        let mut lines = text.lines();
        let head = lines.next().ok_or_else(|| Failure::new("the record is empty"))?;
        let events: Vec<Event> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { head: serde_json::from_str(head)?, history: History::new(events) })
    }
}
