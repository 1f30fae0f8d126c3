//! Which masters may have forgotten a lock, and so do not vote.
//!
//! A master that restarts may come back without the locks that it had granted. It does not vote before all of them
//! would have ended by themselves: until the longest time to live that anybody uses has passed since its start.
//!
//! * A restart **under us** is seen by its `run_id`: every new connection asks for it in its greeting, before anything
//!   else is sent, and the vote of a claim counts only if the server that the connection led to may vote. The restart
//!   was after the last answer of the server before it, so that a wall clock that is wrong does not shorten the time.
//! * A restart **before we first connected** shows in its uptime only. Unless most masters are seen to be young, a
//!   young one was restarted or replaced, and waits. Where most are, it is the fleet that is new, and nobody
//!   could lock anything if all of them waited; then one waits that has no key at all while another one has, as a lock
//!   leaves its fencing counter on every master that granted it. A master that is seen only after that, as it was
//!   down when we connected, waits in any case while it is young.
//!
//! What is not seen, by clients that connect for the first time after it:
//!
//! * in the first `longest_ttl` of a fleet, a master that was restarted with a part of its data;
//! * a fleet that was restarted as a whole and came back empty, or of which a majority did while the others are not
//!   there: it looks like a new one;
//! * a restart on a host of which the wall clock was then set ahead, as a server counts its uptime by that.
//!
//! Nor does it count for a renewal, though it may have the key: another client may still be counting on a vote that the
//! master gave before it restarted, and with that vote have a quorum beside ours.
//!
//! A master that was emptied while it ran (FLUSHALL, eviction) is not seen at all.
//!
//! Source: the Redis documentation, "Distributed Locks with Redis", on delayed restarts.

use std::time::Duration;

use redis_link::greeting::Identity;
use tokio::time::Instant;

use crate::quorum::quorum;

/// A server counts its uptime in whole seconds.
const GRAIN: Duration = Duration::from_secs(1);

/// From when on a master votes that has restarted under us, if not at once. `heard` is when the server before it
/// answered for the last time.
pub(crate) fn after_restart(
    identity: &Identity,
    heard: Option<Instant>,
    longest_ttl: Duration,
) -> Option<Instant> {
    let most = heard.map_or(Duration::MAX, |heard| identity.at.saturating_duration_since(heard));
    waits(identity, age(identity).min(most), longest_ttl)
}

/// From when on each master votes that we see for the first time, if not at once. `None` is one that is not there.
pub(crate) fn at_first_sight(fleet: &[Option<&Identity>], longest_ttl: Duration) -> Vec<Option<Instant>> {
    let known = || fleet.iter().flatten();
    let young = known().filter(|identity| age(identity) < longest_ttl).count();
    // One that is not there may be old, and may have granted what a young one has forgotten.
    let is_new = young >= quorum(fleet.len());
    let is_used = known().any(|identity| identity.keys > 0);
    let judge = |identity: &Identity| {
        let may_have_lost = !is_new || (is_used && identity.keys == 0);
        may_have_lost.then(|| waits(identity, age(identity), longest_ttl)).flatten()
    };
    fleet.iter().map(|identity| identity.and_then(judge)).collect()
}

/// How long it has been up at least.
fn age(identity: &Identity) -> Duration {
    identity.uptime.saturating_sub(GRAIN)
}

fn waits(identity: &Identity, age: Duration, longest_ttl: Duration) -> Option<Instant> {
    let left = longest_ttl.saturating_sub(age);
    (!left.is_zero()).then(|| identity.at + left)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(30);

    fn up(seconds: u64, keys: u64) -> Identity {
        Identity::new("r", Duration::from_secs(seconds), keys)
    }

    fn votes(fleet: &[Option<Identity>]) -> Vec<bool> {
        let fleet: Vec<_> = fleet.iter().map(Option::as_ref).collect();
        at_first_sight(&fleet, LONGEST).iter().map(Option::is_none).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_master_among_old_ones_waits() {
        let fleet = [Some(up(100, 1)), Some(up(100, 1)), Some(up(5, 1)), None, Some(up(100, 1))];
        assert_eq!(votes(&fleet), [true, true, false, true, true]);
        let identity = fleet[2].clone().unwrap();
        let until = after_restart(&identity, None, LONGEST).unwrap();
        assert_eq!(until, identity.at + Duration::from_secs(26));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_fleet_votes_but_for_one_that_is_empty_while_another_is_not() {
        assert_eq!(votes(&[Some(up(0, 0)), Some(up(1, 0)), Some(up(0, 0))]), [true; 3]);
        assert_eq!(votes(&[Some(up(3, 2)), Some(up(3, 2)), Some(up(1, 0))]), [true, true, false]);
        assert_eq!(votes(&[Some(up(3, 2)), Some(up(3, 2)), Some(up(1, 1))]), [true; 3]);
        assert_eq!(votes(&[Some(up(3, 2)), None, Some(up(3, 2))]), [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_is_not_there_is_not_taken_for_a_young_one() {
        assert_eq!(votes(&[Some(up(3, 1)), None, Some(up(100, 1))]), [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_wrong_makes_no_restarted_master_older_than_it_can_be() {
        let heard = Instant::now();
        tokio::time::advance(Duration::from_secs(2)).await;
        let identity = up(1_000_000, 0);
        assert_eq!(after_restart(&identity, Some(heard), LONGEST), Some(heard + LONGEST));
        assert_eq!(after_restart(&identity, None, LONGEST), None);
    }
}
