//! What shows that a fault happened.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How often something was seen that only the fault does. Without it a trial proves nothing.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Evidence {
    count: u64,
    /// What was counted, such as `replies swallowed`.
    what: String,
}

impl Evidence {
    /// So many of these.
    pub(crate) fn counted(count: u64, what: &str) -> Self {
        Self { count, what: what.to_owned() }
    }

    pub(crate) fn seen(seen: bool, what: &str) -> Self {
        Self::counted(u64::from(seen), what)
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.what)
    }
}
