//! The leader of an election.

use std::time::SystemTime;

use serde::Serialize;

use crate::{Holder, LockState, Token};

/// The leader of an election, as every process sees it: see [`Election::leader`](crate::Election::leader).
///
/// Its own process holds the [`Leadership`](crate::Leadership).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// # let _leads = locks.election("scheduler").campaign("web-1").await?;
/// let leader = locks.election("scheduler").leader().await?.expect("somebody leads");
/// println!("{} leads since {:?}", leader.holder, leader.since); // pid 4242 on web-1 (web-1)
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leader {
    /// Its process; another client of the store that has taken the lock leads too.
    pub holder: Holder,
    /// Its fencing token, where the store shows it: see [`HolderInfo::token`](crate::HolderInfo::token).
    pub token: Option<Token>,
    /// Since when it leads. `None` on ZooKeeper, which keeps only when it began to campaign.
    pub since: Option<SystemTime>,
}

impl Leader {
    /// The holder of the lock, if it is held.
    pub(super) fn of(state: &LockState) -> Option<Self> {
        let first = state.holders.first()?;
        Some(Self { holder: first.holder.clone(), token: first.token, since: first.since })
    }

    /// The label of its [campaign](crate::Election::campaign). `None` for the holder of a lock without a label, and for
    /// clients of other libraries.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.holder.owner()?.label.as_deref()
    }
}
