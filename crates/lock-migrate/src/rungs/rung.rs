//! The rungs of a migration.

use std::fmt;
use std::str::FromStr;

use lock_core::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::error::BACKEND;

/// What a process acquires while locks move from one store to another.
///
/// Every mixture of the first four excludes; [`New`](Self::New) has a gate before it.
///
/// # Examples
///
/// ```
/// # use lock_migrate::Rung;
/// let rung: Rung = "dual".parse()?;
/// assert_eq!(rung, Rung::Dual);
/// assert!(rung < Rung::Move);
/// assert!("sideways".parse::<Rung>().unwrap_err().to_string().contains("old, shadow, dual, move or new"));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Rung {
    /// The lock of the old store.
    Old,
    /// The lock of the old store. That of the new one is only tried, under another name, to be measured.
    Shadow,
    /// Both locks, the new one first.
    Dual,
    /// Both locks the first time; from then on a tombstone is in the place of the old one, and the new one is enough.
    Move,
    /// The lock of the new store.
    New,
}

impl Rung {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Old, Self::Shadow, Self::Dual, Self::Move, Self::New];

    /// Its name in URLs, records and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::Shadow => "shadow",
            Self::Dual => "dual",
            Self::Move => "move",
            Self::New => "new",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rung {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|rung| rung.name() == text).ok_or_else(|| {
            Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message(format!("there is no rung {text:?}"))
                .with_hint("use old, shadow, dual, move or new")
        })
    }
}
