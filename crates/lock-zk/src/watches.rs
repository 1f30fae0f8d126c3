//! How many bytes of paths a session watches.
//!
//! After every reconnection the driver tells the next server what it watches. It does so in one request for up to
//! [128 KiB](MOST) of paths; what is beyond goes into further requests that have the same number, and their answers end the
//! new connection, again and again, until the session has expired (`docs/BUGS.md`). So a session never watches more.
//!
//! A lock claims the bytes of one path when it [takes a handle](crate::session::SessionHandle) in a session: a holder watches its own
//! node, and a waiter at least one before it. What a waiter watches beyond that is charged on top, while it is watched.
//! When a session is [full](Watches::has_room), further locks go to another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a session watches, and what its locks may watch.
#[derive(Debug)]
pub(crate) struct Watches {
    /// The bytes that the chroot adds to every path.
    chroot: usize,
    charged: Mutex<Charged>,
}

/// Both are in bytes.
#[derive(Debug, Default)]
struct Charged {
    /// The sum, over all claims, of what is claimed or watched, whichever is more.
    claimed: usize,
    /// What is watched, or soon will be.
    watched: usize,
}

/// The right of one lock to watch a path.
#[derive(Debug)]
pub(crate) struct Claim {
    watches: Arc<Watches>,
    bytes: usize,
    /// What is watched for this lock. Changes only under the lock of `watches`.
    watched: Mutex<usize>,
}

/// Room for one watch. It is held until the driver has no such watch any more, or is about to remove it before it carries
/// out any later request.
#[derive(Debug)]
pub(crate) struct Room {
    claim: Arc<Claim>,
    bytes: usize,
}

/// How much a watch is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A lock would be late without it. One watch there is room for up to [the end](MOST), further ones of the same lock
    /// until the session is [full](FULL).
    Must,
    /// It saves a round trip. There is room while [half](SPARE) of it is left.
    Spare,
}

impl Watches {
    pub(crate) fn new(chroot: &str) -> Arc<Self> {
        Arc::new(Self { chroot: chroot.trim_end_matches('/').len(), charged: Mutex::default() })
    }

    /// Whether one more lock may claim so many bytes.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.charged().claimed + self.chroot + bytes <= FULL
    }

    /// The bytes that are claimed.
    pub(crate) fn claimed(&self) -> usize {
        self.charged().claimed
    }

    /// Claims a path of so many bytes, whether there is room or not: the placement of locks has looked before.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the driver watches anew in one request.
const MOST: usize = 128 * 1024;
/// From here on a session is full. The rest is for the bases of tokens, for nodes of others with longer names, and for locks
/// that took their handles at the same moment.
const FULL: usize = MOST - 8 * 1024;
/// Up to here there is room for watches that a lock can do without.
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
        let watches = Watches::new("/app");
        let claim = watches.claim(96);
        assert_eq!(watches.claimed(), 100);
        let one = claim.room(&path(90), Need::Must).unwrap();
        assert_eq!(watches.claimed(), 100);
        let other = claim.room(&path(90), Need::Spare).unwrap();
        assert_eq!(watches.claimed(), 188);
        drop(one);
        assert_eq!(watches.claimed(), 100);
        drop(claim);
        assert_eq!(watches.claimed(), 100, "the watch is there");
        drop(other);
        assert_eq!(watches.claimed(), 0);
    }

    #[test]
    fn spare_watches_leave_room_and_claims_are_kept() {
        let watches = Watches::new("/");
        let mut claims = Vec::new();
        while watches.has_room(300) {
            claims.push(watches.claim(300));
        }
        assert_eq!(claims.len(), FULL / 300);
        // Nothing beyond the claims is spared, but what they cover is there for each.
        let rooms: Vec<_> = claims.iter().map(|claim| claim.room(&path(300), Need::Spare).unwrap()).collect();
        assert!(claims[0].room(&path(300), Need::Spare).is_none());
        // Nor is a further one of the same lock, if it must be; a first one of another lock or of a base is.
        assert!(claims[0].room(&path(300), Need::Must).is_none());
        let bases: Vec<_> = (0..MOST / 300).map(|_| watches.claim(0)).collect();
        let mut more: Vec<_> = bases.iter().map_while(|base| base.room(&path(300), Need::Must)).collect();
        assert_eq!(rooms.len() + more.len(), MOST / 300);
        drop(more.pop());
        assert!(bases.last().unwrap().room(&path(300), Need::Must).is_some());
    }

    #[test]
    fn claims_without_room_do_not_raise_the_limit() {
        let watches = Watches::new("");
        let claims: Vec<_> = (0..10).map(|_| watches.claim(MOST / 4)).collect();
        let rooms: Vec<_> =
            claims.iter().filter_map(|claim| claim.room(&path(MOST / 4), Need::Must)).collect();
        assert_eq!(rooms.len(), 4);
    }

    proptest! {
        /// Whatever is claimed, watched and dropped in whatever order: no more is watched than the driver can watch anew,
        /// and in the end nothing is charged.
        #[test]
        fn no_more_is_watched_than_one_request_has(steps in prop::collection::vec((0..4_u8, 0..64_usize, 1..5_000_usize), 1..400)) {
            let watches = Watches::new("/app");
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
