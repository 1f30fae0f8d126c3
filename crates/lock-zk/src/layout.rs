//! Where a lock lives in ZooKeeper's tree, and what its nodes are called.

use std::fmt::Write;
use std::str::FromStr;

use lock_core::{LockName, OwnerId};

/// The names of the nodes in the directory of a lock, which decide what other clients understand.
///
/// All layouts exclude each other: whatever its name, every node that ends in a sequence number counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// `_c_<uuid>-lock-<sequence>`, as Apache Curator's `InterProcessMutex`. Go's `zk.Lock`, Spring Integration and
    /// kazoo with `extra_lock_patterns=["lock-"]` understand it too.
    #[default]
    Curator,
    /// `lock-<sequence>`, as .NET's DistributedLock. The node carries its owner in its data only, so that recovery
    /// after a lost answer has to read every node of the queue.
    Plain,
    /// `<uuid>__lock__<sequence>`, as Python's kazoo and tooz by default; Go's `zk.Lock` understands it too.
    /// Curator does not.
    Kazoo,
}

impl Layout {
    /// The name of the node of `owner`, to which the server appends the sequence number.
    pub(crate) fn prefix(self, owner: OwnerId) -> String {
        let id = owner.to_string();
        match self {
            Self::Curator => {
                let (a, b, c, d, e) = (&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
                format!("_c_{a}-{b}-{c}-{d}-{e}-lock-")
            }
            Self::Plain => "lock-".to_owned(),
            Self::Kazoo => format!("{id}__lock__"),
        }
    }

    /// Whether no two acquisitions ever have a node of the same name.
    pub(crate) const fn is_unique(self) -> bool {
        !matches!(self, Self::Plain)
    }
}

impl FromStr for Layout {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "curator" => Ok(Self::Curator),
            "plain" => Ok(Self::Plain),
            "kazoo" => Ok(Self::Kazoo),
            _ => Err(()),
        }
    }
}

/// The place of one lock in the tree.
#[derive(Debug)]
pub(crate) struct Spot {
    /// The directory of the lock.
    pub(crate) dir: String,
    pub(crate) layout: Layout,
    /// The sequence number from which on a holder that is alone starts the directory afresh.
    pub(crate) rotate_from: i64,
}

impl Spot {
    /// The place of `name` below `base`.
    pub(crate) fn new(base: &str, name: &LockName, layout: Layout) -> Self {
        let parent = if base == "/" { "" } else { base };
        let mut dir = format!("{parent}/");
        // ZooKeeper keeps that name at the root of its tree.
        if base == "/" && name.as_str() == "zookeeper" {
            dir.push_str("%7Aookeeper");
        } else {
            escape(name.as_str(), &mut dir);
        }
        Self { dir, layout, rotate_from: ROTATE_FROM }
    }

    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}

/// A place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) sequence: i64,
    pub(crate) name: String,
}

/// The queue of a lock, as one listing showed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// In the order in which they get the lock.
    pub(crate) contenders: Vec<Contender>,
    /// Whether every node is one of an exclusive lock, as far as their names tell.
    pub(crate) exclusive: bool,
}

impl Queue {
    /// Reads a listing. Nodes that do not end in a sequence number are not in the queue.
    pub(crate) fn parse(children: Vec<String>) -> Self {
        let mut exclusive = true;
        let mut contenders = Vec::with_capacity(children.len());
        for name in children {
            let Some(sequence) = sequence(&name) else {
                tracing::debug!(name, "a node without a sequence number in the directory of a lock");
                continue;
            };
            let marker = &name[..name.len() - DIGITS];
            exclusive &= !FOREIGN_MARKERS.iter().any(|shared| marker.ends_with(shared));
            contenders.push(Contender { sequence, name });
        }
        contenders.sort_unstable_by(|one, two| (one.sequence, &one.name).cmp(&(two.sequence, &two.name)));
        Self { contenders, exclusive }
    }

    /// Those that get the lock before the node `own` with this sequence number does, the next last.
    pub(crate) fn before(&self, sequence: i64, own: &str) -> Vec<&Contender> {
        self.contenders.iter().filter(|other| other.sequence <= sequence && other.name != own).collect()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.contenders.iter().any(|contender| contender.name == name)
    }

    /// Whether the server has no more numbers to give, so that the order of the queue cannot be trusted: its counter
    /// neither wraps nor fails, it gives the same number again and again, mixed with negative ones.
    ///
    /// In a directory of read/write locks two nodes may share a number by design: a lock that was downgraded.
    pub(crate) fn is_exhausted(&self) -> bool {
        let twins = |pair: &[Contender]| pair[0].sequence == pair[1].sequence;
        self.contenders.last().is_some_and(|last| is_exhausted(last.sequence))
            || (self.exclusive && self.contenders.windows(2).any(twins))
    }
}

/// Whether a sequence number is so near to the end that it cannot be told from one beyond it.
pub(crate) const fn is_exhausted(sequence: i64) -> bool {
    sequence < 0 || sequence >= EXHAUSTED_FROM
}

/// The sequence number that a name ends in.
///
/// Ten digits; the sign is not looked at, as `-` also ends prefixes. Numbers below zero come only after the largest
/// one and from the lower end, so that their digits are beyond [`EXHAUSTED_FROM`] all the same.
fn sequence(name: &str) -> Option<i64> {
    let digits = name.get(name.len().checked_sub(DIGITS)?..)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Appends `name` so that it is one level of a path: `%XX` for every byte that is not a letter, a digit or one of
/// `-_.~:@+=,`, and for the first byte of `.` and `..`.
///
/// The server refuses control characters, private-use ones and everything that takes two UTF-16 units. Any other
/// non-ASCII letter is escaped as well, so that a name looks alike in all tools.
fn escape(name: &str, path: &mut String) {
    let relative = matches!(name, "." | "..");
    for byte in name.bytes() {
        if (byte.is_ascii_alphanumeric() || b"-_.~:@+=,".contains(&byte)) && !relative {
            path.push(byte.into());
        } else {
            // Writing to a string does not fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

const DIGITS: usize = 10;
/// The server counts up to `i32::MAX`.
const EXHAUSTED_FROM: i64 = i32::MAX as i64 - (1 << 20);
const ROTATE_FROM: i64 = 1 << 30;
/// What stands before the number in the nodes of read/write locks (Curator, kazoo, DistributedLock).
const FOREIGN_MARKERS: [&str; 6] = ["__READ__", "__WRIT__", "__rlock__", "read-", "write-", "lease-"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(name: &str) -> String {
        let mut path = String::new();
        escape(name, &mut path);
        path
    }

    fn queue(names: &[&str]) -> Queue {
        Queue::parse(names.iter().map(ToString::to_string).collect())
    }

    fn unescaped(path: &str) -> String {
        let (mut bytes, mut rest) = (Vec::new(), path);
        while let Some(first) = rest.bytes().next() {
            let (byte, length) =
                if first == b'%' { (u8::from_str_radix(&rest[1..3], 16).unwrap(), 3) } else { (first, 1) };
            bytes.push(byte);
            rest = &rest[length..];
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn prefixes() {
        let owner = OwnerId::random();
        let id = owner.to_string();
        let curator = Layout::Curator.prefix(owner);
        assert_eq!(curator.len(), "_c_".len() + 36 + "-lock-".len());
        assert_eq!(curator.replace('-', ""), format!("_c_{id}lock"));
        assert_eq!(Layout::Kazoo.prefix(owner), format!("{id}__lock__"));
        assert_eq!(Layout::Plain.prefix(owner), "lock-");
    }

    #[test]
    fn paths() {
        let dir =
            |base: &str, name: &str| Spot::new(base, &LockName::new(name).unwrap(), Layout::Curator).dir;
        assert_eq!(dir("/locks", "orders/42"), "/locks/orders%2F42");
        assert_eq!(dir("/", "a.b"), "/a.b");
        assert_eq!(dir("/locks", "."), "/locks/%2E");
        assert_eq!(dir("/locks", ".."), "/locks/%2E%2E");
        assert_eq!(dir("/locks", "a b\0\u{1f600}%"), "/locks/a%20b%00%F0%9F%98%80%25");
        assert_eq!(dir("/locks", "zookeeper"), "/locks/zookeeper");
        assert_eq!(dir("/", "zookeeper"), "/%7Aookeeper");
    }

    #[test]
    fn every_name_with_ten_digits_is_in_the_queue() {
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
        assert!(queue.exclusive && !queue.is_exhausted());
        assert!(queue.has("x-0000000009") && !queue.has("config"));
        let before: Vec<_> =
            queue.before(3, &queue.contenders[2].name).iter().map(|at| at.sequence).collect();
        assert_eq!(before, [1, 2]);
    }

    #[test]
    fn a_saturated_queue_is_exhausted() {
        for name in ["2147483647", "-2147483648", "-2147483647", "2147483648", "9999999999"] {
            assert!(queue(&["lock-0000000001", &format!("lock-{name}")]).is_exhausted(), "{name}");
        }
        assert!(queue(&["a-lock-0000000007", "b-lock-0000000007"]).is_exhausted());
        assert!(is_exhausted(-1) && is_exhausted(i64::from(i32::MAX)) && !is_exhausted(ROTATE_FROM));
    }

    #[test]
    fn nodes_of_read_write_locks_are_told() {
        for name in ["_c_1-__READ__0000000005", "a__rlock__0000000005", "write-0000000005"] {
            assert!(!queue(&["lock-0000000001", name]).exclusive, "{name}");
        }
        // Curator's downgrade leaves two nodes with one number.
        let downgrade = queue(&["_c_1-__READ__0000000005", "_c_2-__WRIT__0000000005", "lock-0000000005"]);
        assert!(!downgrade.is_exhausted());
        assert_eq!(downgrade.before(5, "lock-0000000005").len(), 2);
    }

    proptest! {
        #[test]
        fn escaping_is_reversible_and_safe(name in "[\\x00-\\u{10ffff}]{1,40}") {
            let path = escaped(&name);
            prop_assert!(path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
            prop_assert!(path != "." && path != "..");
            prop_assert_eq!(unescaped(&path), name);
        }

        #[test]
        fn sequences_round_trip(prefix in "[ -~]{0,20}", number in 0..EXHAUSTED_FROM) {
            prop_assert_eq!(sequence(&format!("{prefix}{number:010}")), Some(number));
        }

        #[test]
        fn listings_never_panic(names in proptest::collection::vec(".{0,30}", 0..5)) {
            let queue = Queue::parse(names);
            let _ = (queue.is_exhausted(), queue.before(3, "x"));
        }
    }
}
