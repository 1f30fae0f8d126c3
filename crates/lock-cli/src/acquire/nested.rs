//! A lock that a `polylock` around this one holds: who waits for it waits for itself.

use std::fs;
use std::time::Duration;

use polylock::{HolderInfo, LockMode, Locks, OwnerInfo};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::tree;

/// Refuses a lock that an ancestor of this process holds, unless both can hold it at once.
///
/// The ancestor has to name the lock in its command line, and the store has to name the ancestor: a lock of this name in another
/// store is no obstacle. Where one of them is not visible, the command waits.
pub(super) async fn check(locks: &Locks, name: &str, shared: bool, permit: bool) -> Result<(), Failure> {
    let around: Vec<_> = tree::ancestors().into_iter().filter(|pid| names(*pid, name)).collect();
    if around.is_empty() {
        return Ok(());
    }
    let Ok(Ok(state)) = timeout(LIMIT, locks.inspect(name)).await else { return Ok(()) };
    let ours = OwnerInfo::this_process();
    let is_around = |holder: &&HolderInfo| {
        let is_it = |owner: &OwnerInfo| {
            owner.host == ours.host && around.iter().any(|pid| pid.cast_unsigned() == owner.pid)
        };
        holder.owner().is_some_and(is_it)
    };
    let excludes = |holder: &&HolderInfo| match holder.mode {
        LockMode::Shared => !shared,
        LockMode::Permit { .. } => !permit,
        _ => true,
    };
    match state.holders.iter().filter(is_around).find(excludes) {
        Some(holder) => Err(Failure::usage(
            format!(
                "the lock {name:?} is held by the polylock around this command, {}: it would wait for itself",
                holder.holder
            ),
            "leave out the inner polylock, or protect its work by another name",
        )),
        None => Ok(()),
    }
}

fn names(pid: i32, name: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes())
}

/// The wait begins without it then.
const LIMIT: Duration = Duration::from_secs(2);
