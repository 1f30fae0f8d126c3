//! The way back: from now on no name moves any more.

use std::time::Duration;

use lock_core::Result;
use tokio::time::{Instant, sleep};

use super::rules::refused;
use super::{Gate, Obstacle, Operator, Progress};
use crate::rungs::member::SessionInfo;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;

impl Operator {
    /// Begins the way back: from now on nobody writes a tombstone, or relies on what was read before. `move` becomes `dual` in
    /// all rules. Waits until all sessions have seen that, for so long at most.
    ///
    /// [`clean`](Self::clean) does the rest. To go from `move` to `dual` alone, for names that move later, is no way back:
    /// [`set`](Self::set) does it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a sealed migration, and for one that nobody has begun;
    /// when the new store is unavailable.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the way back may have begun. Call it again.
    pub async fn back(
        &self,
        patience: Duration,
        on_progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<Gate> {
        let until = Instant::now() + patience;
        let (record, version) = loop {
            let Some((mut record, version)) = self.stored().await? else {
                return refused(
                    "nobody has begun this migration",
                    "check the namespace and the dir of the new store",
                );
            };
            match record.phase {
                Phase::Returning => break (record, version),
                Phase::Sealed => {
                    return refused(
                        "the migration is sealed: tokens of the old store would be smaller than those handed out since",
                        "a sealed migration has no way back; begin a new one with other stores",
                    );
                }
                Phase::Open => {
                    record.phase = Phase::Returning;
                    record.generation += 1;
                    record.lower_to(Rung::Dual);
                    // If it has changed meanwhile, the next look shows how.
                    let _ = self.write(&record, version).await?;
                }
            }
        };
        loop {
            let unaware = self.unaware_of(&record, version).await?;
            if unaware.is_empty() {
                return Ok(Gate::Passed(Box::new(record)));
            }
            if Instant::now() >= until {
                return Ok(Gate::Blocked(unaware));
            }
            on_progress(Progress::Sessions(unaware.len()));
            sleep(LOOK).await;
        }
    }

    /// The sessions that have not seen the way back.
    pub(super) async fn unaware_of(&self, record: &Record, version: i32) -> Result<Vec<Obstacle>> {
        let is_aware = |session: &&SessionInfo| {
            let member = session.member.as_ref();
            member.is_some_and(|member| {
                member.generation >= record.generation && member.record == Some(version)
            })
        };
        let sessions = self.sessions().await?;
        let unaware = sessions.iter().filter(|session| !is_aware(session)).map(|session| {
            Obstacle::new(
                format!("{} has not seen the way back", session.who()),
                "wait a moment; if that does not help, restart or stop it",
            )
        });
        Ok(unaware.collect())
    }
}

pub(super) const LOOK: Duration = Duration::from_millis(500);
