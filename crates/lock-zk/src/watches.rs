//! The watches of a session: their events, and how many bytes of paths they may take.
//!
//! After a reconnection all watches are set anew, so a session watches [128 KiB](MOST) of paths at most. (The driver's own
//! reconnection fails beyond that: `docs/BUGS.md`.)
//!
//! A lock claims the bytes of one path when it gets its session: a holder watches its own node, and a waiter at least one
//! ahead of it. Further watches of a waiter are charged on top while they exist. When a session is
//! [full](WatchBudget::has_room), further locks go to another one.

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::BoxFuture;
use zookeeper_client::EventType;

use crate::poison::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Deleted,
    /// Its data changed; the watch has to be set again.
    Changed,
    SessionEnded,
}

impl Event {
    pub(crate) const fn of(event: EventType) -> Self {
        match event {
            EventType::NodeDeleted => Self::Deleted,
            EventType::Session => Self::SessionEnded,
            _ => Self::Changed,
        }
    }
}

/// A watch for one event. Dropping it before that costs a request, which removes it from the server.
pub(crate) type Watch = BoxFuture<'static, Event>;

/// The bytes of paths that a session watches, and that its locks may watch.
#[derive(Debug)]
pub(crate) struct WatchBudget {
    /// The bytes that the chroot adds to every path.
    chroot: usize,
    charged: Mutex<Charged>,
}

/// In bytes.
#[derive(Debug, Default)]
struct Charged {
    /// The sum over all claims of the claimed or the watched bytes, whichever is more.
    claimed: usize,
    /// The bytes that are watched, or soon will be.
    watched: usize,
}

/// The right of one lock to watch a path.
#[derive(Debug)]
pub(crate) struct Claim {
    watches: Arc<WatchBudget>,
    bytes: usize,
    /// The bytes watched for this lock. Changes only under the mutex of `watches`.
    watched: Mutex<usize>,
}

/// Room for one watch. It is held until the driver has removed the watch, or will remove it before any later request.
#[derive(Debug)]
pub(crate) struct Room {
    claim: Arc<Claim>,
    bytes: usize,
}

/// How necessary a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A lock would be late without it. The first watch of a lock has room up to [the limit](MOST), further ones until the
    /// session is [full](FULL).
    Must,
    /// It saves a round trip. It has room while [half](SPARE) of the limit is left.
    Spare,
}

impl WatchBudget {
    pub(crate) fn new(chroot: &str) -> Arc<Self> {
        Arc::new(Self { chroot: chroot.trim_end_matches('/').len(), charged: Mutex::default() })
    }

    /// Whether one more lock may claim this many bytes.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.charged().claimed + self.chroot + bytes <= FULL
    }

    pub(crate) fn claimed(&self) -> usize {
        self.charged().claimed
    }

    /// Claims a path of this many bytes, whether there is room or not: the pool has checked it.
    pub(crate) fn claim(self: &Arc<Self>, bytes: usize) -> Arc<Claim> {
        let bytes = if bytes == 0 { 0 } else { self.chroot + bytes };
        self.charged().claimed += bytes;
        Arc::new(Claim { watches: Arc::clone(self), bytes, watched: Mutex::default() })
    }

    fn charged(&self) -> MutexGuard<'_, Charged> {
        lock(&self.charged)
    }
}

impl Claim {
    /// Room for a watch on this path, if the session has any.
    pub(crate) fn room(self: &Arc<Self>, path: &str, need: Need) -> Option<Arc<Room>> {
        let bytes = self.watches.chroot + path.len();
        let (mut charged, mut watched) = (self.watches.charged(), lock(&self.watched));
        let beyond = self.bytes.max(*watched + bytes) - self.bytes.max(*watched);
        let limit = match need {
            Need::Must if *watched == 0 => MOST,
            Need::Must => FULL,
            Need::Spare => SPARE,
        };
        let claimed = charged.claimed + beyond;
        if charged.watched + bytes > MOST || (beyond > 0 && claimed > limit) {
            return None;
        }
        *charged = Charged { claimed, watched: charged.watched + bytes };
        *watched += bytes;
        Some(Arc::new(Room { claim: Arc::clone(self), bytes }))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let claim = &self.claim;
        let (mut charged, mut watched) = (claim.watches.charged(), lock(&claim.watched));
        let left = *watched - self.bytes;
        charged.claimed -= claim.bytes.max(*watched) - claim.bytes.max(left);
        charged.watched -= self.bytes;
        *watched = left;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.watches.charged().claimed -= self.bytes;
    }
}

/// The paths that a session watches at most.
const MOST: usize = 128 * 1024;
/// From here on a session is full. The rest is for token bases, for longer node names of other clients, and for locks
/// that got the session at the same moment.
const FULL: usize = MOST - 8 * 1024;
/// Up to here there is room for spare watches.
const SPARE: usize = MOST / 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(bytes: usize) -> String {
        "/".repeat(bytes)
    }

    #[test]
    fn a_lock_watches_one_path_for_what_it_has_claimed() {
        let watches = WatchBudget::new("/app");
        let claim = watches.claim(96);
        assert_eq!(watches.claimed(), 100);
        let one = claim.room(&path(90), Need::Must).unwrap();
        assert_eq!(watches.claimed(), 100);
        let other = claim.room(&path(90), Need::Spare).unwrap();
        assert_eq!(watches.claimed(), 188);
        drop(one);
        assert_eq!(watches.claimed(), 100);
        drop(claim);
        assert_eq!(watches.claimed(), 100, "the watch exists");
        drop(other);
        assert_eq!(watches.claimed(), 0);
    }

    #[test]
    fn spare_watches_leave_room_and_claims_are_kept() {
        let watches = WatchBudget::new("/");
        let mut claims = Vec::new();
        while watches.has_room(300) {
            claims.push(watches.claim(300));
        }
        assert_eq!(claims.len(), FULL / 300);
        // Spare watches have no room beyond the claims, but each lock has the room that it claimed.
        let rooms: Vec<_> = claims.iter().map(|claim| claim.room(&path(300), Need::Spare).unwrap()).collect();
        assert!(claims[0].room(&path(300), Need::Spare).is_none());
        // Nor has a further necessary watch of the same lock; a first one of another lock or of a base has.
        assert!(claims[0].room(&path(300), Need::Must).is_none());
        let bases: Vec<_> = (0..MOST / 300).map(|_| watches.claim(0)).collect();
        let mut more: Vec<_> = bases.iter().map_while(|base| base.room(&path(300), Need::Must)).collect();
        assert_eq!(rooms.len() + more.len(), MOST / 300);
        drop(more.pop());
        assert!(bases.last().unwrap().room(&path(300), Need::Must).is_some());
    }

    #[test]
    fn claims_without_room_do_not_raise_the_limit() {
        let watches = WatchBudget::new("");
        let claims: Vec<_> = (0..10).map(|_| watches.claim(MOST / 4)).collect();
        let rooms: Vec<_> =
            claims.iter().filter_map(|claim| claim.room(&path(MOST / 4), Need::Must)).collect();
        assert_eq!(rooms.len(), 4);
    }

    proptest! {
        /// In any order of claims, watches and drops: no more is watched than the limit, and in the end
        /// nothing is charged.
        #[test]
        fn no_more_is_watched_than_the_limit(steps in prop::collection::vec((0..4_u8, 0..64_usize, 1..5_000_usize), 1..400)) {
            let watches = WatchBudget::new("/app");
            let (mut claims, mut rooms) = (Vec::new(), Vec::<Arc<Room>>::new());
            for (what, at, bytes) in steps {
                match what {
                    0 => claims.push(watches.claim(bytes)),
                    1 if !claims.is_empty() => drop(claims.swap_remove(at % claims.len())),
                    2 if !rooms.is_empty() => drop(rooms.swap_remove(at % rooms.len())),
                    _ if !claims.is_empty() => {
                        let need = if bytes % 2 == 0 { Need::Must } else { Need::Spare };
                        rooms.extend(claims[at % claims.len()].room(&path(bytes), need));
                    }
                    _ => {}
                }
                let watched: usize = rooms.iter().map(|room| room.bytes).sum();
                prop_assert_eq!(watches.charged().watched, watched);
                prop_assert!(watched <= MOST && watched <= watches.claimed());
            }
            drop((claims, rooms));
            prop_assert_eq!((watches.claimed(), watches.charged().watched), (0, 0));
        }
    }
}
