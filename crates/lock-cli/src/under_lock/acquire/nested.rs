//! A lock that a `polylock` around this one holds: who waits for it waits for itself.

use std::fs;
use std::time::Duration;

use polylock::{HolderInfo, LockMode, Locks, OwnerInfo, WaiterInfo};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::under_lock::tree;

/// Refuses a lock that an ancestor of this process holds, unless both can hold it at once: the ancestors leave a permit, and no
/// waiter is in front that waits for them.
///
/// The ancestor has to name the lock in its command line, and the store has to name the ancestor: a lock of this name in another
/// store is no obstacle. Where one of them is not visible, the command waits.
pub(super) async fn check(locks: &Locks, name: &str, mode: LockMode) -> Result<(), Failure> {
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
    let ancestors: Vec<_> = state.holders.iter().filter(is_around).collect();
    let Some(why) = obstacle(&ancestors, &state.queue, mode) else { return Ok(()) };
    Err(Failure::usage(
        format!("the lock {name:?} {why}: it would wait for itself"),
        "leave out the inner polylock, or protect its work by another name",
    ))
}

/// Why a lock in this mode is not granted before these ancestors release theirs.
fn obstacle(ancestors: &[&HolderInfo], queue: &[WaiterInfo], mode: LockMode) -> Option<String> {
    if let Some(holder) = ancestors.iter().find(|holder| excludes(holder.mode, mode)) {
        return Some(format!("is held by the polylock around this command, {}", holder.holder));
    }
    if let LockMode::Permit { max: Some(max), .. } = mode
        && ancestors.len() >= max.get() as usize
    {
        return Some(format!("has all its permits ({max}) around this command"));
    }
    let waits_for = |holder: &&HolderInfo| queue.iter().find(|waiter| excludes(holder.mode, waiter.mode));
    let waiter = ancestors.iter().find_map(waits_for)?;
    Some(format!("has a waiter, {}, that the polylock around this command keeps waiting", waiter.waiter))
}

const fn excludes(held: LockMode, wanted: LockMode) -> bool {
    use LockMode::{Permit, Shared};
    !matches!((held, wanted), (Shared, Shared) | (Permit { .. }, Permit { .. }))
}

fn names(pid: i32, name: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes())
}

/// The wait begins without it then.
const LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use polylock::Holder;

    use super::*;

    #[test]
    fn what_the_ancestors_leave_is_no_obstacle() {
        let (exclusive, shared) = (LockMode::Exclusive, LockMode::Shared);
        let permit = |max| LockMode::permit(NonZeroU32::new(max));
        let who = || Holder::Unknown("a".to_owned());
        let refused = |ancestors: &[LockMode], queue: &[LockMode], mode| {
            let ancestors: Vec<_> = ancestors.iter().map(|mode| HolderInfo::new(who(), *mode)).collect();
            let queue: Vec<_> = queue.iter().map(|mode| WaiterInfo::new(who(), *mode)).collect();
            obstacle(&ancestors.iter().collect::<Vec<_>>(), &queue, mode).is_some()
        };
        // Others hold the lock: they release it some time.
        assert!(!refused(&[], &[exclusive], exclusive));
        assert!(refused(&[exclusive], &[], shared) && refused(&[shared], &[], permit(2)));
        assert!(
            !refused(&[shared; 3], &[shared], shared) && refused(&[shared], &[shared, exclusive], shared)
        );
        let permits = |count| vec![permit(3); count];
        assert!(!refused(&permits(2), &[permit(3)], permit(3)) && refused(&permits(3), &[], permit(3)));
        assert!(refused(&permits(1), &[], permit(1)) && refused(&permits(1), &[shared], permit(3)));
    }
}
