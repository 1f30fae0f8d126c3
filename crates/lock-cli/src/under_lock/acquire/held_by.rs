//! Who holds a lock, in a few words.

use std::time::{Duration, SystemTime};

use polylock::{HolderInfo, Locks};
use tokio::time::timeout;

use crate::output::printable;
use crate::text::rough;

/// Such as `held by pid 4242 on web-1 (./report.sh) for 3 min`; `None` if nobody does now, or the store does not answer at
/// once.
pub(super) async fn held_by(locks: &Locks, name: &str) -> Option<String> {
    let state = timeout(LIMIT, locks.inspect(name)).await.ok()?.ok()?;
    let first = text(state.holders.first()?);
    Some(match state.holders.len() {
        1 => format!("held by {first}"),
        several => format!("held by {first}, and {} more", several - 1),
    })
}

fn text(holder: &HolderInfo) -> String {
    let since = |at: SystemTime| rough(SystemTime::now().duration_since(at).unwrap_or_default());
    let when = match (holder.since, holder.asked) {
        (Some(at), _) => format!(" for {}", since(at)),
        (None, Some(at)) => format!(", which asked {} ago", since(at)),
        (None, None) => String::new(),
    };
    printable(&format!("{}{when}", holder.holder))
}

/// It is an extra, so the wait for it is short.
const LIMIT: Duration = Duration::from_secs(1);
