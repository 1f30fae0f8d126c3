//! Changes the rungs of names.

use lock_core::{Error, ErrorKind, Result};

use super::Operator;
use crate::error::BACKEND;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;

impl Operator {
    /// Sets the rung of the names that match a pattern, where `*` stands for any text. Processes follow within two seconds;
    /// guards keep the rung on which they were acquired. Returns the new record.
    ///
    /// Every mixture of `old`, `shadow`, `dual` and `move` excludes, so no step between them has a gate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for [`Rung::New`], which has a gate of its own, for a sealed migration, for
    /// [`Rung::Move`] on the way back or from a store without tombstones; when the new store is unavailable.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the record may have changed.
    pub async fn set(&self, rung: Rung, names: &str) -> Result<Record> {
        if rung == Rung::New {
            return refused(
                "the rung new has a gate",
                "close the old store to all users, then use `polylock migrate finish`",
            );
        }
        if names.is_empty() {
            return refused("the pattern of names is empty", "use * for all names");
        }
        loop {
            let (mut record, version) = self.stored_or_begun().await?;
            match record.phase {
                Phase::Sealed => {
                    return refused(
                        "the migration is sealed: all names are on the rung new",
                        "a sealed migration has no way back; begin a new one with other stores",
                    );
                }
                Phase::Returning if rung == Rung::Move => {
                    return refused(
                        "the way back has begun, and nothing moves until it has ended",
                        "finish it by `polylock migrate clean` first",
                    );
                }
                _ => {}
            }
            if rung == Rung::Move
                && let Some(why) = self.source().await?.keeps_tombstones().why_not()
            {
                let message = format!("names cannot move one by one from this store: {why}");
                return refused(&message, "use dual for all names, and then `polylock migrate finish`");
            }
            let before = record.to_bytes().len();
            record.set(rung, names);
            let length = record.to_bytes().len();
            if length > MOST_BYTES && length > before {
                return refused(
                    &format!(
                        "the record of the migration would have {length} bytes with this rule, and {MOST_BYTES} is the most"
                    ),
                    "use fewer rules, each for many names, such as reports/*",
                );
            }
            if self.write(&record, version).await? {
                return Ok(record);
            }
        }
    }
}

/// ZooKeeper refuses to keep more than 1 MiB in a node, and the later steps of the migration need a little of it.
const MOST_BYTES: usize = 1_000_000;

/// The error for a step that the migration does not allow where it is. It has a code of its own: the request is well formed.
pub(super) fn refused<T>(message: &str, hint: &'static str) -> Result<T> {
    let error = Error::new(ErrorKind::InvalidConfig, BACKEND).with_code("refused_step");
    Err(error.with_message(message).with_hint(hint))
}
