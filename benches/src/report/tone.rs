//! How good a verdict is: its colour on the console, and its class in the style sheet.

use comfy_table::Color;

use super::html::escape;
use crate::data::{ExclusionVerdict, FaultVerdict, Verdict};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tone {
    Held,
    Broken,
    Unchecked,
    None,
}

impl Tone {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Broken => "broken",
            Self::Unchecked => "unchecked",
            Self::None => "none",
        }
    }

    pub(super) const fn colour(self) -> Color {
        match self {
            Self::Held => Color::Green,
            Self::Broken => Color::Red,
            Self::Unchecked => Color::Yellow,
            Self::None => Color::Reset,
        }
    }

    pub(super) fn pill(self, text: &str) -> String {
        format!("<span class=\"pill {}\">{}</span>", self.class(), escape(text))
    }
}

impl From<ExclusionVerdict> for Tone {
    fn from(verdict: ExclusionVerdict) -> Self {
        match verdict {
            ExclusionVerdict::Held => Self::Held,
            ExclusionVerdict::Broken(_) => Self::Broken,
            ExclusionVerdict::Unchecked => Self::Unchecked,
        }
    }
}

impl From<&Verdict> for Tone {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Holds => Self::Held,
            Verdict::DoesNotHold => Self::Broken,
            Verdict::DependsOn(_) => Self::Unchecked,
            Verdict::NotJudged => Self::None,
        }
    }
}

impl From<FaultVerdict> for Tone {
    fn from(verdict: FaultVerdict) -> Self {
        match verdict {
            FaultVerdict::Holds => Self::Held,
            FaultVerdict::BreaksAsDocumented => Self::Unchecked,
            FaultVerdict::Differs | FaultVerdict::NotRun => Self::Broken,
            FaultVerdict::NoMeaning => Self::None,
        }
    }
}
