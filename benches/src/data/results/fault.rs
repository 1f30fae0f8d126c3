//! A fault on a backend, what happened, and whether that was promised.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fault on a backend, what happened, and whether that was promised.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct FaultResult {
    /// The fault, such as `client paused`.
    pub(crate) fault: String,
    /// The backend.
    pub(crate) backend: String,
    /// How its servers differ from those of other faults, such as `with sentinels`.
    #[serde(default)]
    pub(crate) servers: Option<String>,
    /// Overlapping holds by wall time.
    pub(crate) l1: u64,
    /// Overlapping holds of guards that both said to be valid.
    pub(crate) l2: u64,
    /// Writes of an earlier holder that a store accepted although it compares tokens.
    pub(crate) l3: u64,
    /// Such writes that a store without tokens would have accepted.
    pub(crate) unfenced: u64,
    /// Tokens that were not larger than the one before.
    pub(crate) tokens: u64,
    /// The longest time in which nobody could get the lock: no client that runs had a valid guard.
    pub(crate) outage_ms: f64,
    /// The same for clients that wait instead of polling.
    #[serde(default)]
    pub(crate) wait_ms: f64,
    /// What `docs/SAFETY.md` promises.
    pub(crate) promised: String,
    /// How what happened compares with it.
    pub(crate) verdict: FaultVerdict,
    /// What happened, in words.
    pub(crate) what: String,
    /// The history, beside the report.
    pub(crate) history: String,
    /// The command that repeats it.
    pub(crate) command: String,
}

/// How what happened compares with what was promised.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultVerdict {
    /// Nothing broke.
    Holds,
    /// Something broke that the documentation says may break.
    BreaksAsDocumented,
    /// Something broke that must not, or did not break although it must.
    Differs,
    /// The fault has no meaning on this backend: `what` says why.
    NoMeaning,
    /// The fault could not be run: `what` says why.
    NotRun,
}

impl FaultResult {
    /// The backend with its servers.
    pub(crate) fn subject(&self) -> String {
        match &self.servers {
            Some(servers) => format!("{} {servers}", self.backend),
            None => self.backend.clone(),
        }
    }
}

impl FaultVerdict {
    /// Whether a run with this verdict fails.
    pub(crate) const fn is_failure(self) -> bool {
        matches!(self, Self::Differs | Self::NotRun)
    }
}

impl fmt::Display for FaultVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::BreaksAsDocumented => "breaks as documented",
            Self::Differs => "differs",
            Self::NoMeaning => "no meaning",
            Self::NotRun => "not run",
        })
    }
}
