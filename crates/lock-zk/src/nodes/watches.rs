//! The watches of a session: their events, and how many bytes of paths they may take.
//!
//! After a reconnection all watches are set anew, so a session watches [128 KiB](MOST) of paths at most. (The driver's own
//! reconnection fails beyond that: `docs/BUGS.md`.)
//!
//! A lock claims the bytes of one path when it gets its session: a holder watches its own node, and a waiter at least one
//! ahead of it. Further watches of a waiter are charged on top while they exist. When a session is
//! [full](WatchBudget::has_room), further locks go to another one.
//!
//! A path is watched for its own changes or for its children, never for both at a time: the driver would use memory that it has
//! freed (`docs/BUGS.md`, Z13).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
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
    /// Hashes paths.
    hasher: RandomState,
}

/// In bytes.
#[derive(Debug, Default)]
struct Charged {
    /// The sum over all claims of the claimed or the watched bytes, whichever is more.
    claimed: usize,
    /// The bytes that are watched, or soon will be.
    watched: usize,
    /// What each path is watched for, and how many times, by the hash of the path. Should two have one hash, a watch finds no
    /// room.
    subjects: HashMap<u64, (Subject, usize)>,
}

/// What a path is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Its creation, its deletion, and changes of its data.
    Node,
    /// The creation and deletion of its children.
    Children,
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
    /// The hash of the path.
    path: u64,
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
        let chroot = chroot.trim_end_matches('/').len();
        Arc::new(Self { chroot, charged: Mutex::default(), hasher: RandomState::new() })
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
    /// Room for a watch of the node at this path, if the session has any.
    pub(crate) fn room(self: &Arc<Self>, path: &str, need: Need) -> Option<Arc<Room>> {
        self.room_for(Subject::Node, path, need)
    }

    /// Room for a watch of this path, if the session has any, and does not watch the path for anything else.
    pub(crate) fn room_for(self: &Arc<Self>, subject: Subject, path: &str, need: Need) -> Option<Arc<Room>> {
        let bytes = self.watches.chroot + path.len();
        let path = self.watches.hasher.hash_one(path);
        let (mut charged, mut watched) = (self.watches.charged(), lock(&self.watched));
        let times = match charged.subjects.get(&path) {
            Some((other, _)) if *other != subject => return None,
            Some((_, times)) => *times,
            None => 0,
        };
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
        (charged.claimed, charged.watched) = (claimed, charged.watched + bytes);
        charged.subjects.insert(path, (subject, times + 1));
        *watched += bytes;
        Some(Arc::new(Room { claim: Arc::clone(self), bytes, path }))
    }
}

impl Room {
    pub(crate) fn is_for(&self, subject: Subject) -> bool {
        let charged = self.claim.watches.charged();
        charged.subjects.get(&self.path).is_some_and(|(watched, _)| *watched == subject)
    }
}

impl Charged {
    /// One watch less.
    fn forget(&mut self, path: u64) {
        if let Some((_, times)) = self.subjects.get_mut(&path) {
            *times -= 1;
            if *times == 0 {
                self.subjects.remove(&path);
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let claim = &self.claim;
        let (mut charged, mut watched) = (claim.watches.charged(), lock(&claim.watched));
        let left = *watched - self.bytes;
        charged.claimed -= claim.bytes.max(*watched) - claim.bytes.max(left);
        charged.watched -= self.bytes;
        charged.forget(self.path);
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

    #[test]
    fn a_path_is_watched_for_itself_or_for_its_children() {
        let watches = WatchBudget::new("");
        let claims = [watches.claim(0), watches.claim(0)];
        let room = |claim: usize, subject| claims[claim].room_for(subject, "/locks/a", Need::Must);
        for (one, other) in [(Subject::Node, Subject::Children), (Subject::Children, Subject::Node)] {
            let twice = (room(0, one).unwrap(), room(1, one).unwrap());
            assert!(room(1, other).is_none());
            assert!(claims[0].room_for(other, "/locks/b", Need::Must).is_some());
            drop(twice.0);
            assert!(room(1, other).is_none(), "the other one watches it");
            drop(twice.1);
            assert!(room(1, other).is_some());
        }
        assert!(watches.charged().subjects.is_empty());
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
            prop_assert!(watches.charged().subjects.is_empty());
        }
    }
}
