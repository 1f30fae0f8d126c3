//! Where a lock lives in ZooKeeper's tree, and what its nodes are called.

use std::fmt::Write;
use std::str::FromStr;

use lock_core::{LockName, Mode, OwnerId};
use percent_encoding::percent_decode_str;

use crate::ZkRecipe;

/// The names of the nodes in the directory of a lock, which decide what other clients understand.
///
/// All layouts and all modes exclude each other among clients of this library: whatever its name, every node that ends
/// in a sequence number counts, and one that does not say that it shares the lock wants it alone. Clients of other
/// libraries look only for the nodes that they know: use mutexes where they use their mutex, and read/write locks
/// where they use theirs. Semaphores are between clients of this library.
///
/// # Examples
///
/// ```
/// # use lock_zk::{ZkConfig, ZkLayout};
/// let config = ZkConfig::from_url("zk://a:2181?layout=kazoo")?;
/// let same = ZkConfig::new("a:2181").layout(ZkLayout::Kazoo);
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok::<_, lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ZkLayout {
    /// `_c_<uuid>-lock-<sequence>`, as Apache Curator's `InterProcessMutex`. Go's `zk.Lock`, Spring Integration and
    /// kazoo with `extra_lock_patterns=["lock-"]` understand it too. Readers are `__READ__` and writers `__WRIT__`,
    /// as in Curator's `InterProcessReadWriteLock`.
    #[default]
    Curator,
    /// `lock-<sequence>`, `read-<sequence>` and `write-<sequence>`, as .NET's DistributedLock. The node carries its
    /// owner in its data only, so that recovery after a lost answer has to read every node of the queue. And its name comes
    /// again when the directory is removed and made anew, so that a release looks first whether the node is still its own.
    /// If that happens just after the look, it is as with [`ZkRecipe::Ephemeral`](crate::ZkRecipe::Ephemeral).
    Plain,
    /// `<uuid>__lock__<sequence>`, as Python's kazoo and tooz by default; Go's `zk.Lock` understands it too.
    /// Curator does not. Readers are `__rlock__`, as kazoo's `ReadLock`, and writers `__write__lock__`, in which it sees
    /// its own `WriteLock`.
    Kazoo,
}

impl ZkLayout {
    /// The name of a node of `owner` that wants the lock in this mode, to which the server appends the sequence
    /// number. `writes` tells the write side of a read/write lock from a mutex.
    pub(crate) fn prefix(self, owner: OwnerId, mode: Mode, writes: bool) -> String {
        let id = owner.to_string();
        let (id, alone, writer, reader) = match self {
            Self::Curator => {
                let (a, b, c, d, e) = (&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
                (format!("_c_{a}-{b}-{c}-{d}-{e}-"), "lock-", "__WRIT__", "__READ__")
            }
            Self::Plain => (String::new(), "lock-", "write-", "read-"),
            Self::Kazoo => (id, "__lock__", "__write__lock__", "__rlock__"),
        };
        match mode {
            Mode::Shared => id + reader,
            Mode::Permit { max } if self == Self::Kazoo => format!("{id}__permit-{max}-"),
            Mode::Permit { max } => format!("{id}permit-{max}-"),
            _ if writes => id + writer,
            _ => id + alone,
        }
    }
}

impl FromStr for ZkLayout {
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
pub(crate) struct LockPath {
    /// The directory of the lock, or its only node.
    pub(crate) dir: String,
    pub(crate) layout: ZkLayout,
    pub(crate) recipe: ZkRecipe,
    /// The sequence number from which on a holder that is alone starts the directory afresh.
    pub(crate) rotate_from: i64,
}

impl LockPath {
    /// The place of `name` below `base`.
    pub(crate) fn new(base: &str, name: &LockName, layout: ZkLayout) -> Self {
        let parent = if base == "/" { "" } else { base };
        let mut dir = format!("{parent}/");
        append(base, name, &mut dir);
        Self { dir, layout, recipe: ZkRecipe::Queue, rotate_from: ROTATE_FROM }
    }

    /// The same place, for another recipe.
    pub(crate) fn with_recipe(mut self, recipe: ZkRecipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// Whether no two acquisitions ever have a node of the same name.
    pub(crate) fn is_unique(&self) -> bool {
        self.recipe == ZkRecipe::Queue && self.layout != ZkLayout::Plain
    }

    /// How many bytes the path of our node has, at most; with a permit of many a few more.
    pub(crate) const fn node_bytes(&self) -> usize {
        match self.recipe {
            ZkRecipe::Queue => {
                self.dir.len() + "/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__0123456789".len()
            }
            ZkRecipe::Ephemeral(_) => self.dir.len(),
        }
    }

    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}

/// Appends the name of the directory of a lock below `base`.
fn append(base: &str, name: &LockName, path: &mut String) {
    // ZooKeeper keeps that name at the root of its tree.
    if base == "/" && name.as_str() == "zookeeper" {
        path.push_str("%7Aookeeper");
    } else {
        escape(name.as_str(), path);
    }
}

/// The lock whose directory below `base` is called so; `None` when that is no directory of a lock.
pub(crate) fn name_of(base: &str, child: &str) -> Option<LockName> {
    let name = percent_decode_str(child).decode_utf8().ok()?;
    let (name, mut path) = (LockName::new(name).ok()?, String::new());
    append(base, &name, &mut path);
    (path == child).then_some(name)
}

/// What the text before its number says how a node wants the lock. One that says nothing wants it alone.
pub(crate) fn mode_of(marker: &str) -> Mode {
    let reads = ["__READ__", "__rlock__", "-read-"].iter().any(|ending| marker.ends_with(ending));
    if reads || marker == "read-" {
        return Mode::Shared;
    }
    let permit = marker.strip_suffix('-').and_then(|marker| marker.rsplit_once('-'));
    let max = permit.filter(|(text, _)| is_permit(text)).and_then(|(_, max)| max.parse().ok());
    max.map_or(Mode::Exclusive, |max| Mode::Permit { max })
}

fn is_permit(text: &str) -> bool {
    text.strip_suffix("permit").is_some_and(|id| id.is_empty() || id.ends_with(['-', '_']))
}

/// What stands before the number of the node of a reader that takes the place of this one, if this is a writer's: one of ours,
/// or of Curator's in part, whose readers have an id of their own.
pub(crate) fn as_reader(marker: &str) -> Option<String> {
    WRITERS.iter().find_map(|(writer, reader)| {
        let id = marker.strip_suffix(writer)?;
        // Not the end of some other word.
        let whole = writer.starts_with('_') || id.is_empty() || id.ends_with('-');
        whole.then(|| format!("{id}{reader}"))
    })
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

pub(crate) const ROTATE_FROM: i64 = 1 << 30;
/// What ends the markers of writers, and those of the readers that they become.
const WRITERS: [(&str, &str); 3] =
    [("__WRIT__", "__READ__"), ("__write__lock__", "__rlock__"), ("write-", "read-")];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn escaped(name: &str) -> String {
        let mut path = String::new();
        escape(name, &mut path);
        path
    }

    const ALL: [ZkLayout; 3] = [ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo];

    #[test]
    fn prefixes() {
        let owner = OwnerId::random();
        let id = owner.to_string();
        let curator = ZkLayout::Curator.prefix(owner, Mode::Exclusive, false);
        assert_eq!(curator.len(), "_c_".len() + 36 + "-lock-".len());
        assert_eq!(curator.replace('-', ""), format!("_c_{id}lock"));
        let max = NonZeroU32::new(4).unwrap();
        for (layout, before, names) in [
            (
                ZkLayout::Curator,
                curator.trim_end_matches("lock-"),
                ["lock-", "__WRIT__", "__READ__", "permit-4-"],
            ),
            (ZkLayout::Plain, "", ["lock-", "write-", "read-", "permit-4-"]),
            (ZkLayout::Kazoo, &id, ["__lock__", "__write__lock__", "__rlock__", "__permit-4-"]),
        ] {
            let modes = [(Mode::Exclusive, false), (Mode::Exclusive, true), (Mode::Shared, false)];
            let modes = modes.into_iter().chain([(Mode::Permit { max }, false)]);
            for ((mode, writes), name) in modes.zip(names) {
                assert_eq!(layout.prefix(owner, mode, writes), format!("{before}{name}"), "{layout:?}");
            }
        }
    }

    #[test]
    fn nodes_say_how_they_want_the_lock() {
        let mode = |name: &str| mode_of(name);
        for reader in ["_c_1-__READ__", "a__rlock__", "read-", "guid-read-"] {
            assert_eq!(mode(reader), Mode::Shared, "{reader}");
        }
        let max = NonZeroU32::new(12).unwrap();
        for permit in ["permit-12-", "_c_1-permit-12-", "a__permit-12-"] {
            assert_eq!(mode(permit), Mode::Permit { max }, "{permit}");
        }
        for alone in [
            "",
            "lock-",
            "thread-",
            "rlock__",
            "write-",
            "_c_1-__WRIT__",
            "_c_1-lease-",
            "semaphore-",
            "permit-0-",
            "permit--",
            "permit-12",
            "permit-99999999999-",
            "nopermit-12-",
        ] {
            assert_eq!(mode(alone), Mode::Exclusive, "{alone}");
        }
    }

    #[test]
    fn who_came_to_write_may_become_a_reader_and_nobody_else() {
        for layout in ALL {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { max: NonZeroU32::MIN }] {
                for writes in [false, true] {
                    let owner = OwnerId::random();
                    let marker = layout.prefix(owner, mode, writes);
                    let reader = layout.prefix(owner, Mode::Shared, false);
                    let writer = writes && mode == Mode::Exclusive;
                    assert_eq!(as_reader(&marker), writer.then_some(reader), "{marker}");
                }
            }
        }
        assert_eq!(as_reader("guid-write-").as_deref(), Some("guid-read-"));
        assert_eq!(as_reader("overwrite-"), None);
    }

    #[test]
    fn paths() {
        let dir = |base: &str, name: &str| {
            LockPath::new(base, &LockName::new(name).unwrap(), ZkLayout::Curator).dir
        };
        assert_eq!(dir("/locks", "orders/42"), "/locks/orders%2F42");
        assert_eq!(dir("/", "a.b"), "/a.b");
        assert_eq!(dir("/locks", "."), "/locks/%2E");
        assert_eq!(dir("/locks", ".."), "/locks/%2E%2E");
        assert_eq!(dir("/locks", "a b\0\u{1f600}%"), "/locks/a%20b%00%F0%9F%98%80%25");
        assert_eq!(dir("/locks", "zookeeper"), "/locks/zookeeper");
        assert_eq!(dir("/", "zookeeper"), "/%7Aookeeper");
        let name = |base: &str, child: &str| name_of(base, child).map(|name| name.to_string());
        assert_eq!(name("/locks", "orders%2F42").as_deref(), Some("orders/42"));
        assert_eq!(name("/", "%7Aookeeper").as_deref(), Some("zookeeper"));
        assert_eq!(name("/locks", "zookeeper").as_deref(), Some("zookeeper"));
        for (base, other) in [
            ("/", "zookeeper"),
            ("/locks", "%7Aookeeper"),
            ("/locks", "!token-base"),
            ("/locks", "a%2f"),
            ("/locks", "a%"),
            ("/locks", "%FF"),
            ("/locks", "%61"),
            ("/locks", ""),
        ] {
            assert_eq!(name(base, other), None, "{base} {other}");
        }
    }

    proptest! {
        #[test]
        fn escaping_is_reversible_and_safe(name in "[\\x00-\\u{10ffff}]{1,40}") {
            let path = escaped(&name);
            prop_assert!(path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
            prop_assert!(path != "." && path != "..");
            let name = LockName::new(name).unwrap();
            prop_assert_eq!(name_of("/locks", &path), Some(name));
        }

        #[test]
        fn what_is_read_is_written_so(child in ".{1,40}|[a-z%0-9A-F]{1,40}") {
            if let Some(name) = name_of("/locks", &child) {
                prop_assert_eq!(escaped(name.as_str()), child);
            }
        }

        #[test]
        fn modes_round_trip(max: NonZeroU32, writes: bool) {
            for layout in ALL {
                for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { max }] {
                    prop_assert_eq!(mode_of(&layout.prefix(OwnerId::random(), mode, writes)), mode);
                }
            }
        }
    }
}
