//! A claim about locks, what a run measured of it, and the verdict.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A claim, what a run measured of it, and the verdict.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct ClaimResult {
    pub(crate) id: u8,
    pub(crate) claim: String,
    pub(crate) verdict: Verdict,
    pub(crate) because: String,
    pub(crate) broken_promise: Option<String>,
    pub(crate) rule: String,
    pub(crate) how: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) pictures: Vec<Picture>,
    pub(crate) missing: Vec<String>,
    pub(crate) command: String,
}

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

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) subject: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) x: Option<f64>,
    pub(crate) value: f64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Picture {
    Bars {
        title: String,
        metric: String,
    },
    /// A line per subject over `x`, on logarithmic axes.
    Curve {
        title: String,
        metric: String,
        x: String,
    },
    /// An upright bar for each of these subjects, and a level line for each of the others.
    Steps {
        title: String,
        metric: String,
        steps: Vec<String>,
        lines: Vec<String>,
    },
    Timeline {
        title: String,
        lanes: Vec<Lane>,
    },
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) spans: Vec<Span>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Span {
    pub(crate) from_ms: f64,
    pub(crate) until_ms: f64,
    pub(crate) what: SpanKind,
    pub(crate) note: String,
}

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

impl TryFrom<String> for Verdict {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
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
            assert_eq!(Verdict::try_from(verdict.to_string()), Ok(verdict));
        }
        assert!(Verdict::try_from("perhaps".to_owned()).is_err());
    }
}
