//! A promise, and what a run measured of it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::labels::number;

/// A promise, and what a run measured of it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct PromiseResult {
    /// The backend whose promise it is.
    pub(crate) by: String,
    /// The promise in words.
    pub(crate) promise: String,
    /// The scenario of the row.
    pub(crate) scenario: String,
    /// The backend of the row, or the peer that it is compared with.
    pub(crate) backend: String,
    /// The metric of the row.
    pub(crate) metric: String,
    /// Which of the row's numbers.
    pub(crate) of: Part,
    /// The side of the target.
    pub(crate) bound: Bound,
    /// The target.
    pub(crate) target: f64,
    /// The unit of both numbers; `x` for a ratio.
    pub(crate) unit: String,
    /// The measured number, if any.
    pub(crate) seen: Option<f64>,
    /// Whether the promise was kept, if measured.
    pub(crate) met: Option<bool>,
    /// The size of the run, when it is not the one that the promise is about, such as `8 processes`.
    pub(crate) smaller: Option<String>,
}

impl PromiseResult {
    /// The promise in words, with the name of the peer.
    pub(crate) fn about(&self) -> String {
        if self.backend == self.by {
            self.promise.clone()
        } else {
            format!("{}: {}", self.backend, self.promise)
        }
    }

    /// The target with its bound: `<= 1.15x`.
    pub(crate) fn target(&self) -> String {
        format!("{} {}", self.bound, self.quantity(self.target))
    }

    /// The measured number with its unit.
    pub(crate) fn seen(&self) -> String {
        self.seen.map_or_else(|| "-".into(), |seen| self.quantity(seen))
    }

    /// `yes`, `NO` or `not measured`, with the size of a smaller run.
    pub(crate) fn met(&self) -> String {
        let word = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        };
        match &self.smaller {
            Some(smaller) if self.met.is_some() => format!("{word} ({smaller})"),
            _ => word.into(),
        }
    }

    fn quantity(&self, value: f64) -> String {
        match self.unit.as_str() {
            "" => number(value),
            "x" => format!("{value:.2}x"),
            unit => format!("{} {unit}", number(value)),
        }
    }
}

/// A number of a row.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// The measured value.
    Value,
    /// The ratio to the floor.
    Ratio,
}

/// The side of the target on which a number has to be.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    /// Not above.
    AtMost,
    /// Not below.
    AtLeast,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AtMost => "<=",
            Self::AtLeast => ">=",
        })
    }
}
