//! A target, and what a run measured of it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::numbers::number;

/// A target, and what a run measured of it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct TargetResult {
    pub(crate) by: String,
    /// The target in words.
    #[serde(alias = "promise")]
    pub(crate) what: String,
    pub(crate) scenario: String,
    pub(crate) backend: String,
    pub(crate) metric: String,
    pub(crate) of: Part,
    pub(crate) bound: Bound,
    pub(crate) target: f64,
    pub(crate) unit: String,
    pub(crate) seen: Option<f64>,
    pub(crate) met: Option<bool>,
    pub(crate) smaller: Option<String>,
    #[serde(default)]
    pub(crate) too_short: bool,
    #[serde(default)]
    pub(crate) interval: Option<[f64; 2]>,
}

impl TargetResult {
    /// The target in words, with the name of the peer.
    pub(crate) fn about(&self) -> String {
        if self.backend == self.by { self.what.clone() } else { format!("{}: {}", self.backend, self.what) }
    }

    /// The target with its bound: `<= 1.15x`.
    pub(crate) fn target(&self) -> String {
        format!("{} {}", self.bound, self.quantity(self.target))
    }

    /// The measured number with its unit.
    pub(crate) fn seen(&self) -> String {
        self.seen.map_or_else(|| "-".into(), |seen| self.quantity(seen))
    }

    /// The measured number with its unit, and the interval.
    pub(crate) fn seen_in_interval(&self) -> String {
        let seen = self.seen();
        match self.interval {
            Some([least, most]) => format!("{seen} ({least:.2} to {most:.2})"),
            None => seen,
        }
    }

    /// `yes`, `NO`, that the run cannot tell, or `not measured`; a yes with the size of a smaller run.
    pub(crate) fn met(&self) -> String {
        let word = match self.met {
            Some(true) => "yes",
            // A smaller run is not what the target is about.
            Some(false) if self.smaller.is_some() => "too small to tell",
            Some(false) if self.too_short => "too short to tell",
            Some(false) => "NO",
            None => "not measured",
        };
        match &self.smaller {
            Some(smaller) if self.met == Some(true) => format!("{word} ({smaller})"),
            _ => word.into(),
        }
    }

    /// Whether this run shows that the target is missed.
    pub(crate) fn is_missed(&self) -> bool {
        self.met == Some(false) && self.smaller.is_none() && !self.too_short
    }

    fn quantity(&self, value: f64) -> String {
        match self.unit.as_str() {
            "" => number(value),
            "x" => format!("{value:.2}x"),
            unit => format!("{} {unit}", number(value)),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Value,
    Ratio,
}

/// The side of the target on which a number has to be.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost,
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
