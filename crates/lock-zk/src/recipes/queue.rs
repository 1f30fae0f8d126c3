//! The wait queue of a lock, as one listing of its directory shows it: who holds it, whose end a waiter waits for, and whether that end is
//! the grant.
//!
//! All modes of a name are one lock and one queue:
//!
//! * A mutex or writer holds the lock when no contender is ahead of it.
//! * A reader does when only readers are ahead.
//! * A permit of n does when only permits are ahead, and fewer than n of them hold one. So a waiter with a smaller number holds up
//!   nobody with a larger one. As it does not count those behind it, it does not starve either.
//!
//! Contenders that are deleted never take the lock from one that holds it. A waiter watches only the nodes that certainly
//! block it while they exist:
//!
//! * A mutex or writer: its predecessor.
//! * A reader: the last contender ahead of it that is no reader.
//! * A permit of n: the n nearest ahead that are permits of n or more; or the last one ahead that wants no permit, if that is
//!   nearer. If smaller numbers leave fewer than n, the n nearest holders.
//!
//! Sources: "Shared Locks" in ZooKeeper's "Recipes and Solutions". For the permits: of any n contenders with a number of n or
//! more, all hold a permit, or n others do.

use futures_util::future::{OptionFuture, join};
use lock_core::Mode;

use crate::error::{Fault, Stop};
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::CreatedNode;
use crate::nodes::node_name::{as_reader, mode_of};
use crate::recipes::recipe::ZkRecipe;
use crate::sessions::session::Session;

/// A node in the directory of a lock: a holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) sequence: i64,
    pub(crate) name: String,
    /// Exclusive unless the name says otherwise.
    pub(crate) mode: Mode,
    /// Whether a downgraded reader may take over its number.
    downgradable: bool,
}

/// The wait queue of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// In the order in which they get the lock.
    pub(crate) contenders: Vec<Contender>,
    /// The nodes without a sequence number, which are not in the queue.
    pub(crate) unnumbered: Vec<String>,
}

/// What blocks a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacles<'a> {
    /// The contenders that certainly block it while they all exist.
    pub(crate) near: Vec<&'a str>,
    /// The contender after whose deletion another listing is useful.
    pub(crate) far: Option<&'a str>,
    /// Whether the deletion of one of the nearest is the grant, without another listing.
    pub(crate) last: bool,
    /// The number of contenders ahead.
    pub(crate) before: usize,
}

impl Queue {
    /// Reads a listing.
    pub(crate) fn parse(children: Vec<String>) -> Self {
        let mut queue = Self::default();
        queue.contenders.reserve(children.len());
        for name in children {
            match sequence(&name) {
                Some(sequence) => {
                    let marker = marker(&name);
                    let (mode, downgradable) = (mode_of(marker), as_reader(marker).is_some());
                    queue.contenders.push(Contender { sequence, name, mode, downgradable });
                }
                None => queue.unnumbered.push(name),
            }
        }
        queue
            .contenders
            .sort_unstable_by(|one, two| (one.sequence, &one.name).cmp(&(two.sequence, &two.name)));
        queue
    }

    /// What blocks the node `own` with this sequence number; nothing if it holds the lock.
    pub(crate) fn obstacles(&self, sequence: i64, own: &str, mode: Mode) -> Option<Obstacles<'_>> {
        let before = self.contenders.iter().filter(|other| other.sequence <= sequence && other.name != own);
        obstacles(&before.collect::<Vec<_>>(), mode)
    }

    /// Whether a new contender has to wait.
    pub(crate) fn is_busy(&self, mode: Mode) -> bool {
        obstacles(&self.contenders.iter().collect::<Vec<_>>(), mode).is_some()
    }

    /// The contenders that hold the lock, and those that wait.
    pub(crate) fn holders_and_waiters(&self) -> (Vec<&Contender>, Vec<&Contender>) {
        let all: Vec<_> = self.contenders.iter().collect();
        let holds = |at: &usize| obstacles(&all[..*at], all[*at].mode).is_none();
        let (holders, waiters): (Vec<_>, Vec<_>) = (0..all.len()).partition(holds);
        let of = |places: Vec<usize>| places.into_iter().map(|at| all[at]).collect();
        (of(holders), of(waiters))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.contenders.iter().any(|contender| contender.name == name)
    }

    /// The node that shows that the sequence numbers are used up, so that the order of the queue is unknown. The server's
    /// counter then neither wraps nor fails: it repeats the same number, mixed with negative ones.
    ///
    /// Below that, two nodes with one number show nothing. A downgrade leaves such a pair for a moment, and a node that no
    /// lock created may have any number: each of the two waits for the other.
    pub(crate) fn exhausted_by(&self) -> Option<&str> {
        let last = self.contenders.last().filter(|last| is_exhausted(last.sequence));
        last.map(|last| last.name.as_str())
    }
}

/// The queue of a lock, as the server of the session knows it; `None` without a directory.
pub(crate) async fn list(session: &Session, lock: &LockPath) -> Result<Option<Queue>, Fault> {
    match session.retry_until_definite(|| names(session, lock)).await {
        Ok(names) => Ok(Some(Queue::parse(names))),
        Err(fault) if fault.is_no_node() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The names of the nodes of a lock. With `recipe=ephemeral` it is one node, [without a name](LockPath::child).
pub(crate) async fn names(session: &Session, lock: &LockPath) -> Result<Vec<String>, Fault> {
    match lock.recipe {
        ZkRecipe::Queue => session.children(&lock.dir).await,
        ZkRecipe::Ephemeral(_) => {
            let exists = session.exists(&lock.dir).await?;
            Ok(exists.then(String::new).into_iter().collect())
        }
    }
}

/// The queue with this node. Where names are reused, the listing alone does not tell it from a later node.
pub(crate) async fn list_around(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
) -> Result<Queue, Stop> {
    let reused = !lock.has_unique_names();
    let listed = session.retry_until_definite(|| async {
        let own = OptionFuture::from(reused.then(|| session.stat(&node.path)));
        let (children, own) = join(session.children(&lock.dir), own).await;
        Ok((children?, own.transpose()?.flatten()))
    });
    match listed.await {
        Ok((_, own)) if reused && own.is_none_or(|own| own.czxid != node.czxid) => Err(Stop::StartOver),
        Ok((children, _)) => Ok(Queue::parse(children)),
        Err(fault) if fault.is_no_node() => Err(Stop::StartOver),
        Err(fault) => Err(Stop::of(fault, &lock.dir)),
    }
}

fn obstacles<'a>(before: &[&'a Contender], mode: Mode) -> Option<Obstacles<'a>> {
    let name = |at: usize| before[at].name.as_str();
    let count = before.len();
    let found =
        |near, far: Option<usize>, last| Some(Obstacles { near, far: far.map(name), last, before: count });
    match mode {
        Mode::Shared => {
            let at = before.iter().rposition(|other| other.mode != Mode::Shared)?;
            // One reader that looks ahead is enough: the first behind it.
            let far = at.checked_sub(1).filter(|_| at + 1 == count);
            found(vec![name(at)], far, at == 0)
        }
        Mode::Permit { max } => {
            let max = max.get() as usize;
            let other = before.iter().rposition(|other| permits(other).is_none());
            let from = other.map_or(0, |at| at + 1);
            let nearest = |of: &[usize]| of.len().checked_sub(max).map(|first| of[first..].to_vec());
            let alike = (from..count).filter(|at| permits(before[*at]).is_some_and(|its| its >= max));
            let alike = nearest(&alike.collect::<Vec<_>>());
            if let (None, Some(other)) = (&alike, other) {
                return found(vec![name(other)], None, false);
            }
            let holders = if other.is_some() { Vec::new() } else { holders_of(before) };
            let near = alike.or_else(|| nearest(&holders))?;
            // A waiter ahead may get the permit that a holder returns.
            let last = count == max && holders.len() == max;
            found(near.iter().map(|at| name(*at)).collect(), near[0].checked_sub(1), last)
        }
        _ => {
            let last = count.checked_sub(1)?;
            // A downgraded reader keeps the number of the writer.
            found(vec![name(last)], last.checked_sub(1), last == 0 && !before[last].downgradable)
        }
    }
}

/// Which of these contenders, which all want a permit, hold one: each while fewer than its own number are held ahead of it.
fn holders_of(contenders: &[&Contender]) -> Vec<usize> {
    let mut holders = Vec::new();
    for (at, contender) in contenders.iter().enumerate() {
        if permits(contender).is_some_and(|max| holders.len() < max) {
            holders.push(at);
        }
    }
    holders
}

fn permits(contender: &Contender) -> Option<usize> {
    match contender.mode {
        Mode::Permit { max } => Some(max.get() as usize),
        _ => None,
    }
}

/// Whether a sequence number is so near to the limit that it cannot be told from one beyond it.
pub(crate) const fn is_exhausted(sequence: i64) -> bool {
    sequence < 0 || sequence >= EXHAUSTED_FROM
}

/// Whether a node of this name is a reader's.
pub(crate) fn is_readers(name: &str) -> bool {
    sequence(name).is_some() && mode_of(marker(name)) == Mode::Shared
}

/// The name of the reader's node that replaces this one in a downgrade, if this is a writer's.
pub(crate) fn downgraded_name(writer: &str) -> Option<String> {
    sequence(writer)?;
    let (marker, digits) = writer.split_at(marker(writer).len());
    as_reader(marker).map(|reader| reader + digits)
}

/// The text before the sequence number.
fn marker(name: &str) -> &str {
    &name[..name.len().saturating_sub(DIGITS)]
}

/// The sequence number that a name ends in.
///
/// The only node of its lock needs none. Ten digits; the sign is ignored, as `-` also ends prefixes. Negative numbers come only after the largest one, and from
/// the lower end, so their digits are beyond [`EXHAUSTED_FROM`] too.
fn sequence(name: &str) -> Option<i64> {
    if name.is_empty() {
        return Some(0);
    }
    let digits = name.get(name.len().checked_sub(DIGITS)?..)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

const DIGITS: usize = 10;
/// The server counts up to `i32::MAX`.
const EXHAUSTED_FROM: i64 = i32::MAX as i64 - (1 << 20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::lock_path::ROTATE_FROM;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn queue(names: &[&str]) -> Queue {
        Queue::parse(names.iter().map(ToString::to_string).collect())
    }

    fn permit(max: u32) -> Mode {
        Mode::Permit { max: NonZeroU32::new(max).unwrap() }
    }

    /// A queue written as letters: `x` a mutex, `w` a writer, `r` a reader, a digit a permit of that many.
    fn written(letters: &str) -> Queue {
        let name = |(at, letter)| match letter {
            'x' => format!("_c_{at}-lock-{at:010}"),
            'w' => format!("_c_{at}-__WRIT__{at:010}"),
            'r' => format!("_c_{at}-__READ__{at:010}"),
            max => format!("_c_{at}-permit-{max}-{at:010}"),
        };
        Queue::parse(letters.chars().enumerate().map(name).collect())
    }

    /// What blocks the last of them: the positions of near and far, and whether that is all.
    fn blocked_by(letters: &str) -> Option<(Vec<i64>, Option<i64>, bool)> {
        let queue = written(letters);
        let own = queue.contenders.last().unwrap();
        let position = |name: &str| sequence(name).unwrap();
        let obstacles = queue.obstacles(own.sequence, &own.name, own.mode)?;
        assert_eq!(obstacles.before, letters.len() - 1);
        let near = obstacles.near.iter().map(|name| position(name)).collect();
        Some((near, obstacles.far.map(position), obstacles.last))
    }

    #[test]
    fn every_name_that_ends_in_ten_digits_is_in_the_queue() {
        let queue = queue(&[
            "x-0000000009",
            "_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-0000000003",
            "lock-0000000002",
            "7c9e6679f3424db7a8f5e2f6b1c1d1e1__lock__0000000001",
            "config",
            "lock-12345",
            "é000000001",
        ]);
        assert_eq!(queue.contenders.iter().map(|at| at.sequence).collect::<Vec<_>>(), [1, 2, 3, 9]);
        assert!(queue.contenders.iter().all(|at| at.mode == Mode::Exclusive));
        assert_eq!(queue.unnumbered, ["config", "lock-12345", "é000000001"]);
        assert!(queue.has("x-0000000009") && !queue.has("config") && queue.exhausted_by().is_none());
        let obstacles = queue.obstacles(3, &queue.contenders[2].name, Mode::Exclusive).unwrap();
        assert_eq!((&obstacles.near[..], obstacles.before), (&["lock-0000000002"][..], 2));
    }

    #[test]
    fn a_mutex_waits_for_its_predecessor() {
        assert_eq!(blocked_by("x"), None);
        assert_eq!(blocked_by("xx"), Some((vec![0], None, true)));
        assert_eq!(blocked_by("rx"), Some((vec![0], None, true)));
        assert_eq!(blocked_by("wx"), Some((vec![0], None, false)), "it may become a reader");
        assert_eq!(blocked_by("xxxx"), Some((vec![2], Some(1), false)));
    }

    #[test]
    fn a_reader_waits_for_the_last_that_is_none() {
        assert_eq!(blocked_by("rrr"), None);
        assert_eq!(blocked_by("wr"), Some((vec![0], None, true)), "a writer that becomes a reader shares");
        assert_eq!(blocked_by("xrr"), Some((vec![0], None, true)));
        assert_eq!(blocked_by("rxr"), Some((vec![1], Some(0), false)));
        assert_eq!(blocked_by("xxrrr"), Some((vec![1], None, false)), "the first reader looks ahead");
        assert_eq!(blocked_by("5r"), Some((vec![0], None, true)));
    }

    #[test]
    fn a_permit_waits_for_the_nearest_holders() {
        assert_eq!(blocked_by("333"), None);
        assert_eq!(blocked_by("11"), Some((vec![0], None, true)));
        assert_eq!(blocked_by("111"), Some((vec![1], Some(0), false)));
        assert_eq!(blocked_by("3333"), Some((vec![0, 1, 2], None, true)));
        assert_eq!(blocked_by("33333"), Some((vec![1, 2, 3], Some(0), false)));
        assert_eq!(blocked_by("x33"), Some((vec![0], None, false)));
        assert_eq!(blocked_by("x3333"), Some((vec![1, 2, 3], Some(0), false)));
        assert_eq!(blocked_by("r3r3"), Some((vec![2], None, false)));
    }

    #[test]
    fn a_waiter_with_a_smaller_number_blocks_no_larger_one() {
        // The third waits for the first two, and the fourth for nobody.
        assert_eq!(blocked_by("221"), Some((vec![1], Some(0), false)));
        assert_eq!(blocked_by("2214"), None);
        assert_eq!(blocked_by("224"), None);
        assert_eq!(blocked_by("222"), Some((vec![0, 1], None, true)));
        // Three hold, two of them with smaller numbers; then also a waiter, which does not count.
        assert_eq!(blocked_by("1233"), Some((vec![0, 1, 2], None, true)));
        assert_eq!(blocked_by("12133"), Some((vec![0, 1, 3], None, false)));
    }

    #[test]
    fn sharers_hold_the_lock_together() {
        let holders = |letters| written(letters).holders_and_waiters().0.len();
        assert_eq!((holders(""), holders("xx"), holders("wr"), holders("rrwr")), (0, 1, 1, 2));
        assert_eq!((holders("2222"), holders("2214"), holders("r22"), holders("224")), (2, 3, 1, 3));
    }

    #[test]
    fn a_saturated_queue_is_exhausted() {
        for name in ["2147483647", "-2147483648", "-2147483647", "2147483648", "9999999999"] {
            let name = format!("lock-{name}");
            assert_eq!(queue(&["lock-0000000001", &name]).exhausted_by(), Some(&name[..]));
        }
        assert!(is_exhausted(-1) && is_exhausted(i64::from(i32::MAX)) && !is_exhausted(ROTATE_FROM));
    }

    #[test]
    fn two_nodes_with_one_number_wait_for_each_other() {
        let twins = ["a-lock-0000000007", "b-lock-0000000007"];
        let queue = queue(&twins);
        assert_eq!(queue.exhausted_by(), None);
        for (own, other) in [(twins[0], twins[1]), (twins[1], twins[0])] {
            assert_eq!(queue.obstacles(7, own, Mode::Exclusive).unwrap().near, [other]);
        }
    }

    #[test]
    fn a_downgrade_leaves_two_nodes_with_one_number() {
        let downgrade = queue(&["_c_1-__READ__0000000005", "_c_2-__WRIT__0000000005", "lock-0000000006"]);
        assert_eq!(downgrade.exhausted_by(), None);
        let obstacles = downgrade.obstacles(6, "lock-0000000006", Mode::Exclusive).unwrap();
        assert_eq!((obstacles.before, obstacles.last), (2, false));
        assert_eq!(downgrade.obstacles(5, "lock-0000000005", Mode::Exclusive).unwrap().before, 2);
    }

    /// Whether a contender holds the lock, by definition.
    fn holds(queue: &Queue, at: usize) -> bool {
        let ahead = &queue.contenders[..at];
        match queue.contenders[at].mode {
            Mode::Shared => ahead.iter().all(|other| other.mode == Mode::Shared),
            Mode::Permit { max } => {
                ahead.iter().all(|other| permits(other).is_some())
                    && (0..at).filter(|other| holds(queue, *other)).count() < max.get() as usize
            }
            _ => ahead.is_empty(),
        }
    }

    /// The watches suffice, and the grants without a listing are right: in this queue, when these are deleted.
    fn check(queue: &Queue, letters: &str, gone: u32) {
        for (at, own) in queue.contenders.iter().enumerate() {
            let obstacles = queue.obstacles(own.sequence, &own.name, own.mode);
            assert_eq!(obstacles.is_none(), holds(queue, at), "{letters} at {at}");
            let mut later = queue.clone();
            later.contenders.retain(|other| (gone >> other.sequence) & 1 == 0 || other.name == own.name);
            let position = later.contenders.iter().position(|other| other.name == own.name).unwrap();
            let Some(obstacles) = obstacles else {
                assert!(holds(&later, position), "{letters} at {at} lost it without {gone:b}");
                continue;
            };
            assert!(!obstacles.near.is_empty());
            let near_gone = obstacles.near.iter().any(|name| !later.has(name));
            if !near_gone || obstacles.last {
                assert_eq!(holds(&later, position), near_gone, "{letters} at {at} without {gone:b}");
            }
        }
        let holders: Vec<_> = (0..letters.len()).filter(|at| holds(queue, *at)).collect();
        let most = queue.contenders.iter().filter_map(permits).max().unwrap_or(letters.len());
        assert!(holders.len() <= most || !holders.iter().any(|at| permits(&queue.contenders[*at]).is_some()));
        let found = queue.holders_and_waiters().0;
        assert!(
            found.iter().map(|holder| holder.sequence).eq(holders.iter().map(|at| *at as i64)),
            "{letters}"
        );
        for mode in [Mode::Exclusive, Mode::Shared, permit(2)] {
            let free = queue.obstacles(99, "a newcomer", mode).is_none();
            assert_eq!(queue.is_busy(mode), !free, "{letters}");
        }
    }

    #[test]
    fn obstacles_keep_waiters_waiting_in_every_short_queue() {
        let mut queues = vec![String::new()];
        for _ in 0..4 {
            let longer =
                queues.iter().flat_map(|queue| "xwr123".chars().map(move |last| format!("{queue}{last}")));
            queues = longer.collect();
            for letters in &queues {
                let queue = written(letters);
                (0..1 << letters.len()).for_each(|gone| check(&queue, letters, gone));
            }
        }
    }

    proptest! {
        #[test]
        fn obstacles_keep_waiters_waiting(letters in "[xwr1234]{5,9}", gone in 0_u32..512) {
            check(&written(&letters), &letters, gone);
        }

        #[test]
        fn sequences_round_trip(prefix in "[ -~]{0,20}", number in 0..EXHAUSTED_FROM) {
            prop_assert_eq!(sequence(&format!("{prefix}{number:010}")), Some(number));
        }

        #[test]
        fn listings_never_panic(names in proptest::collection::vec(".{0,30}", 0..5)) {
            let queue = Queue::parse(names);
            let _ = (queue.exhausted_by(), queue.holders_and_waiters(), queue.obstacles(3, "x", permit(2)), queue.is_busy(Mode::Shared));
        }
    }
}
