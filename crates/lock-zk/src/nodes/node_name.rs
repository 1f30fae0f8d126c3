//! The names of the nodes of a lock.

use lock_core::{Mode, OwnerId};

/// The names of the nodes in the directory of a lock, which decide which other clients understand them.
///
/// Among clients of this library, all layouts and all modes exclude each other: every node whose name ends in a sequence
/// number counts, and one whose name does not say that it shares the lock is exclusive. Clients of other libraries look
/// only for the names that they know: use mutexes where they use their mutex, and read/write locks where they use theirs.
/// Semaphores work only between clients of this library.
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
    /// `lock-<sequence>`, `read-<sequence>` and `write-<sequence>`, as .NET's DistributedLock. Only the data of a node
    /// names its owner, so the recovery after a lost answer reads every node of the queue. Names are reused when the
    /// directory is deleted and created again, so a release looks first whether the node is still its own. If that
    /// happens just after the look, the same can follow as with [`ZkRecipe::Ephemeral`](crate::ZkRecipe::Ephemeral).
    Plain,
    /// `<uuid>__lock__<sequence>`, as Python's kazoo and tooz by default; Go's `zk.Lock` understands it too.
    /// Curator does not. Readers are `__rlock__`, as kazoo's `ReadLock`, and writers `__write__lock__`, which kazoo takes
    /// for its `WriteLock`.
    Kazoo,
}

impl ZkLayout {
    /// The name of a node of `owner` for this mode, to which the server appends the sequence number. `writes` tells the
    /// write side of a read/write lock from a mutex.
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

/// The mode in the text before the sequence number; a node that names none is exclusive.
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

/// The text before the number of the reader's node that may replace this writer's node. Of Curator's readers it is a
/// part, as they have an id of their own.
pub(crate) fn as_reader(marker: &str) -> Option<String> {
    WRITERS.iter().find_map(|(writer, reader)| {
        let id = marker.strip_suffix(writer)?;
        // Not the end of some other word.
        let whole = writer.starts_with('_') || id.is_empty() || id.ends_with('-');
        whole.then(|| format!("{id}{reader}"))
    })
}

/// The endings of writers, and of the readers that they become.
const WRITERS: [(&str, &str); 3] =
    [("__WRIT__", "__READ__"), ("__write__lock__", "__rlock__"), ("write-", "read-")];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

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
    fn names_tell_the_mode() {
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
    fn only_writers_may_become_readers() {
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

    proptest! {
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
