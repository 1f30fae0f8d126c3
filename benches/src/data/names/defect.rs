//! The defects that prove that the harness finds them.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::write_name;

/// A deliberate defect of the lock or of the store.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Defect {
    /// A release deletes the lock of whoever holds it.
    NaiveRelease,
    /// The validity counts from the answer.
    NoElapsedTime,
    /// Restarted masters vote at once.
    NoQuarantine,
    /// The store does not compare tokens.
    NoFencingCheck,
    /// A client keeps the lock for ever; in `contended` and in the fault table.
    NeverReleases,
    /// Every process locks other names.
    EveryProcessAlone,
    /// Fencing tokens decrease.
    TokensShrink,
    /// Locks are not renewed.
    NeverRenews,
}

impl Defect {
    /// Those that the fault table and the claims can have.
    pub(crate) const OF_TABLE: [Self; 5] = [
        Self::NaiveRelease,
        Self::NoElapsedTime,
        Self::NoQuarantine,
        Self::NoFencingCheck,
        Self::NeverReleases,
    ];
    /// Those that the soak can have.
    pub(crate) const OF_SOAK: [Self; 4] =
        [Self::EveryProcessAlone, Self::TokensShrink, Self::NeverReleases, Self::NeverRenews];
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}
