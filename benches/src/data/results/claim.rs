//! A claim about locks, what a run measured of it, and the verdict.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A claim, what a run measured of it, and the verdict.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct ClaimResult {
    /// The number of the claim, from 1.
    pub(crate) id: u8,
    /// The claim, as people say it.
    pub(crate) claim: String,
    /// What the figures say about it.
    pub(crate) verdict: Verdict,
    /// Why, with the figures that decided. Without a verdict: why there is none.
    pub(crate) because: String,
    /// What polylock did in this measurement that its documentation rules out, if anything.
    pub(crate) broken_promise: Option<String>,
    /// The rule that gives the verdict.
    pub(crate) rule: String,
    /// How the figures were measured.
    pub(crate) how: String,
    /// All figures.
    pub(crate) figures: Vec<Figure>,
    /// What to draw.
    pub(crate) pictures: Vec<Picture>,
    /// The parts that failed, with the reason. Their figures are missing.
    pub(crate) missing: Vec<String>,
    /// The command that measures it again.
    pub(crate) command: String,
}

/// What figures say about a claim.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Verdict {
    /// True wherever it was measured.
    Holds,
    /// Wrong where it was measured.
    DoesNotHold,
    /// True in some cases: on what this depends.
    DependsOn(String),
    /// Not measured, or not enough of it.
    NotJudged,
}

/// One number.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Figure {
    /// What it is about: a backend with its options, or a peer, such as `redis wait=poll`.
    pub(crate) subject: String,
    /// What was measured, such as `takeover`.
    pub(crate) metric: String,
    /// The unit, such as `ms`; empty for a bare number.
    pub(crate) unit: String,
    /// The place on a curve, such as the number of waiters.
    pub(crate) x: Option<f64>,
    /// The number.
    pub(crate) value: f64,
}

/// A picture of some figures.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Picture {
    /// A bar per subject.
    Bars { title: String, metric: String },
    /// A line per subject over `x`, on logarithmic axes.
    Curve { title: String, metric: String, x: String },
    /// An upright bar for each of these subjects, and a level line for each of the others.
    Steps { title: String, metric: String, steps: Vec<String>, lines: Vec<String> },
    /// A lane per process over time.
    Timeline { title: String, lanes: Vec<Lane> },
}

/// What one process did.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Lane {
    /// The process.
    pub(crate) name: String,
    /// Its spans, in the order of time.
    pub(crate) spans: Vec<Span>,
}

/// A span of time in a lane.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Span {
    /// The beginning, from the beginning of the picture.
    pub(crate) from_ms: f64,
    /// The end.
    pub(crate) until_ms: f64,
    /// What it shows.
    pub(crate) what: SpanKind,
    /// A few words, such as `token 7`.
    pub(crate) note: String,
}

/// What a span shows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpanKind {
    /// The lock was held, by a guard that was valid.
    Valid,
    /// The process acted as the holder after its guard had become invalid.
    Invalid,
    /// Two processes acted as holders.
    Overlap,
    /// The process was paused or cut off.
    Paused,
    /// Nobody could get the lock.
    Outage,
}

impl Verdict {
    /// The verdict when so many of all parts are as the claim says; `None` without any part.
    pub(crate) fn of(as_said: usize, all: usize, depends_on: &str) -> Option<Self> {
        match as_said {
            _ if all == 0 => None,
            0 => Some(Self::DoesNotHold),
            _ if as_said == all => Some(Self::Holds),
            _ => Some(Self::DependsOn(depends_on.to_owned())),
        }
    }
}

impl ClaimResult {
    /// What grows along the curves, such as `waiters`.
    pub(crate) fn x_name(&self) -> &str {
        let mut names = self.pictures.iter().filter_map(|picture| match picture {
            Picture::Curve { x, .. } => Some(x.as_str()),
            Picture::Bars { .. } | Picture::Steps { .. } | Picture::Timeline { .. } => None,
        });
        names.next().unwrap_or("x")
    }
}

impl Figure {
    /// A number that is no point of a curve.
    pub(crate) fn new(subject: &str, metric: &str, unit: &str, value: f64) -> Self {
        let [subject, metric, unit] = [subject, metric, unit].map(str::to_owned);
        Self { subject, metric, unit, x: None, value }
    }

    /// Makes it a point of a curve.
    pub(crate) fn at(self, x: impl Into<f64>) -> Self {
        Self { x: Some(x.into()), ..self }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => f.pad("holds"),
            Self::DoesNotHold => f.pad("does not hold"),
            Self::DependsOn(what) => f.pad(&format!("depends on {what}")),
            Self::NotJudged => f.pad("not judged"),
        }
    }
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "holds" => Ok(Self::Holds),
            "does not hold" => Ok(Self::DoesNotHold),
            "not judged" => Ok(Self::NotJudged),
            _ => match text.strip_prefix("depends on ") {
                Some(what) => Ok(Self::DependsOn(what.to_owned())),
                None => Err(format!("`{text}` is no verdict")),
            },
        }
    }
}

impl TryFrom<String> for Verdict {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Verdict> for String {
    fn from(verdict: Verdict) -> Self {
        verdict.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_words() {
        let verdicts =
            [Verdict::Holds, Verdict::DoesNotHold, Verdict::DependsOn("fsync".into()), Verdict::NotJudged];
        for verdict in verdicts {
            assert_eq!(verdict.to_string().parse(), Ok(verdict));
        }
        assert!("perhaps".parse::<Verdict>().is_err());
    }
}
