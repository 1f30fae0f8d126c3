//! Quarantine: keeps restarted masters from voting while they may lack locks that they granted.
//!
//! A restarted master may have lost its locks. It does not vote until all of them have expired: until `longest_ttl` has
//! passed.
//!
//! * A restart **after this client connected** shows in the `run_id`. Every new connection reads it first, and a vote counts
//!   only if the server of that connection may vote. The time counts from when the new server was first seen, by the clock of this
//!   client: a server counts its uptime by its wall clock, which may have been stepped since.
//! * The same holds for a master that **was a replica** meanwhile, and has the data of another server.
//! * A restart **before this client first connected** shows only in the uptime. If fewer masters than a quorum are young,
//!   the young ones were restarted or replaced, and are quarantined. If a quorum is young, and no
//!   master has keys or all that answer are young, the fleet is new, and must be able to vote: then only young masters without any
//!   key are quarantined, if another master has keys. (A lock leaves its last token on every master that granted it.) A master that
//!   was down at first is quarantined while it is young.
//!
//! A client that connects for the first time does not notice:
//!
//! * in the first `longest_ttl` of a fleet, a master that restarted with a part of its data;
//! * a fleet that lost its data in a restart of all masters, or of a majority while the others are down: it looks new;
//! * a restart on a host whose wall clock was set ahead afterwards: a server counts its uptime by that clock.
//!
//! A quarantined master does not count for renewals either, even if it has the key: another client may still count a vote
//! from before the restart, and have a quorum with it. Unless that client is the one that asks: a quarantined master confirms a
//! lease for which it voted before, if that vote has not expired when the answer comes, by the clock of the holder. Until then
//! no other lease can count the master: before the restart it had the key, and since then nothing new counts.
//!
//! A master that was emptied while it ran (FLUSHALL, eviction) is not noticed at all, nor is one that was a replica while this client
//! sent it nothing over a connection that lasted.
//!
//! Source: the Redis documentation, "Distributed Locks with Redis", on delayed restarts.

use std::time::Duration;

use redis_link::greeting::Identity;
use tokio::time::Instant;

use crate::voting::quorum::quorum;

/// The resolution of the uptime: whole seconds.
pub(crate) const GRAIN: Duration = Duration::from_secs(1);

/// The end of the quarantine of a master that has restarted since this client knew it. Nothing that its clock says makes it shorter.
pub(crate) fn after_restart(identity: &Identity, longest_ttl: Duration) -> Instant {
    identity.at + longest_ttl
}

/// The end of the quarantine of a master that was down at the first connection, if it needs one.
pub(crate) fn at_first_answer(identity: &Identity, longest_ttl: Duration) -> Option<Instant> {
    waits(identity, age(identity), longest_ttl)
}

/// The end of the quarantine of each master at the first connection, if it needs one. `None` is a master that is down.
pub(crate) fn at_first_connect(fleet: &[Option<&Identity>], longest_ttl: Duration) -> Vec<Option<Instant>> {
    let known = || fleet.iter().flatten();
    let young = known().filter(|identity| age(identity) < longest_ttl).count();
    // A master that is down may be old, and may have granted a lock that a young one has lost.
    let is_used = known().any(|identity| identity.keys > 0);
    let is_new = young >= quorum(fleet.len()) && (!is_used || young == known().count());
    let judge = |identity: &Identity| {
        let may_have_lost = !is_new || (is_used && identity.keys == 0);
        may_have_lost.then(|| waits(identity, age(identity), longest_ttl)).flatten()
    };
    fleet.iter().map(|identity| identity.and_then(judge)).collect()
}

/// The shortest uptime that is possible.
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
        at_first_connect(&fleet, LONGEST).iter().map(Option::is_none).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_master_among_old_ones_is_quarantined() {
        let fleet = [Some(up(100, 1)), Some(up(100, 1)), Some(up(5, 1)), None, Some(up(100, 1))];
        assert_eq!(votes(&fleet), [true, true, false, true, true]);
        let identity = fleet[2].clone().unwrap();
        let until = at_first_answer(&identity, LONGEST).unwrap();
        assert_eq!(until, identity.at + Duration::from_secs(26));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_fleet_votes_except_an_empty_master_while_another_has_keys() {
        assert_eq!(votes(&[Some(up(0, 0)), Some(up(1, 0)), Some(up(0, 0))]), [true; 3]);
        assert_eq!(votes(&[Some(up(3, 2)), Some(up(3, 2)), Some(up(1, 0))]), [true, true, false]);
        assert_eq!(votes(&[Some(up(3, 2)), Some(up(3, 2)), Some(up(1, 1))]), [true; 3]);
        assert_eq!(votes(&[Some(up(3, 2)), None, Some(up(3, 2))]), [true; 3]);
        let rolled = [3, 5, 7, 100, 100].map(|seconds| Some(up(seconds, 1)));
        assert_eq!(
            votes(&rolled),
            [false, false, false, true, true],
            "a majority was restarted, and not all"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_is_down_does_not_count_as_young() {
        assert_eq!(votes(&[Some(up(3, 1)), None, Some(up(100, 1))]), [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_clock_does_not_shorten_the_quarantine() {
        for uptime in [0, 2, 125, 1_000_000] {
            let identity = up(uptime, 0);
            assert_eq!(after_restart(&identity, LONGEST), identity.at + LONGEST);
        }
        assert_eq!(at_first_answer(&up(125, 0), LONGEST), None);
    }
}
