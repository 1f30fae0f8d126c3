//! A fault on a backend, what happened, and whether that was promised.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fault on a backend, what happened, and whether that was promised.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct FaultResult {
    pub(crate) fault: String,
    pub(crate) backend: String,
    #[serde(default)]
    pub(crate) servers: Option<String>,
    pub(crate) l1: u64,
    pub(crate) l2: u64,
    pub(crate) l3: u64,
    pub(crate) unfenced: u64,
    pub(crate) tokens: u64,
    pub(crate) outage_ms: f64,
    #[serde(default)]
    pub(crate) wait_ms: f64,
    pub(crate) promised: String,
    pub(crate) verdict: FaultVerdict,
    pub(crate) what: String,
    pub(crate) history: String,
    pub(crate) command: String,
}

/// How what happened compares with what was promised.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultVerdict {
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
    pub(crate) fn subject(&self) -> String {
        match &self.servers {
            Some(servers) => format!("{} {servers}", self.backend),
            None => self.backend.clone(),
        }
    }
}

impl FaultVerdict {
    /// Whether the fault was run: where it has a meaning and could be.
    pub(crate) const fn was_run(self) -> bool {
        !matches!(self, Self::NoMeaning | Self::NotRun)
    }

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
