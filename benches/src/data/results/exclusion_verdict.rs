//! Whether mutual exclusion held.

use std::fmt;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExclusionVerdict {
    /// Checked, and no two holds overlapped.
    Held,
    /// This many holds overlapped another one.
    Broken(u64),
    /// Some numbers have no checked history.
    Unchecked,
}

impl ExclusionVerdict {
    /// Joins verdicts; without any the result is `Unchecked`.
    pub(crate) fn of_all(parts: impl IntoIterator<Item = Self>) -> Self {
        parts
            .into_iter()
            .reduce(|one, other| match (one, other) {
                (Self::Broken(one), Self::Broken(other)) => Self::Broken(one + other),
                (Self::Broken(some), _) | (_, Self::Broken(some)) => Self::Broken(some),
                (Self::Unchecked, _) | (_, Self::Unchecked) => Self::Unchecked,
                (Self::Held, Self::Held) => Self::Held,
            })
            .unwrap_or(Self::Unchecked)
    }
}

impl fmt::Display for ExclusionVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.pad("held (0 overlaps)"),
            Self::Broken(overlaps) => f.pad(&format!("BROKEN ({overlaps})")),
            Self::Unchecked => f.pad("not checked"),
        }
    }
}
