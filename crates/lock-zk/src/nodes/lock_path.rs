//! The path of a lock in the tree of ZooKeeper.

use std::fmt::Write;

use lock_core::LockName;
use percent_encoding::percent_decode_str;

use crate::nodes::node_name::ZkLayout;
use crate::recipes::recipe::ZkRecipe;

/// The path of one lock, and how the lock is represented there.
#[derive(Debug)]
pub(crate) struct LockPath {
    /// The directory of the lock, or its only node.
    pub(crate) dir: String,
    pub(crate) layout: ZkLayout,
    pub(crate) recipe: ZkRecipe,
    /// How many tasks of the process may hold the lock in a row.
    pub(crate) local_handovers: u32,
    /// The sequence number from which on a release replaces the directory, if nobody waits.
    pub(crate) rotate_from: i64,
}

impl LockPath {
    pub(crate) fn new(base: &str, name: &LockName, layout: ZkLayout) -> Self {
        let parent = if base == "/" { "" } else { base };
        let mut dir = format!("{parent}/");
        append(base, name, &mut dir);
        Self { dir, layout, recipe: ZkRecipe::Queue, local_handovers: 1, rotate_from: ROTATE_FROM }
    }

    pub(crate) fn with_recipe(mut self, recipe: ZkRecipe) -> Self {
        self.recipe = recipe;
        self
    }

    pub(crate) fn with_local_handovers(mut self, most: u32) -> Self {
        self.local_handovers = most;
        self
    }

    /// Whether no two acquisitions ever have a node of the same name.
    pub(crate) fn has_unique_names(&self) -> bool {
        self.recipe == ZkRecipe::Queue && self.layout != ZkLayout::Plain
    }

    /// The maximum length of the path of a node, in bytes; a permit of many may take a few more.
    pub(crate) const fn node_bytes(&self) -> usize {
        match self.recipe {
            ZkRecipe::Queue => {
                self.dir.len() + "/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__0123456789".len()
            }
            ZkRecipe::Ephemeral(_) => self.dir.len(),
        }
    }

    /// The path of the node of this name. The only node of `recipe=ephemeral` has none: it is the lock itself.
    pub(crate) fn child(&self, name: &str) -> String {
        if name.is_empty() { self.dir.clone() } else { format!("{}/{name}", self.dir) }
    }

    /// The name of the node at this path.
    pub(crate) fn node_name<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(&self.dir).unwrap_or(path).trim_start_matches('/')
    }
}

fn append(base: &str, name: &LockName, path: &mut String) {
    // ZooKeeper reserves this name at the root.
    if base == "/" && name.as_str() == "zookeeper" {
        path.push_str("%7Aookeeper");
    } else {
        escape(name.as_str(), path);
    }
}

/// The lock that has this directory below `base`; `None` if it is no directory of a lock.
pub(crate) fn name_of(base: &str, child: &str) -> Option<LockName> {
    let name = percent_decode_str(child).decode_utf8().ok()?;
    let (name, mut path) = (LockName::new(name).ok()?, String::new());
    append(base, &name, &mut path);
    (path == child).then_some(name)
}

/// Appends `name` so that it is one level of a path: `%XX` for every byte that is not a letter, a digit or one of
/// `-_.~:@+=,`, and for the first byte of `.` and `..`.
///
/// The server refuses control characters, private-use characters and all that take two UTF-16 units. All other non-ASCII
/// characters are escaped too, so that a name looks the same in all tools.
pub(crate) fn escape(name: &str, path: &mut String) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(name: &str) -> String {
        let mut path = String::new();
        escape(name, &mut path);
        path
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
        fn a_directory_name_round_trips(child in ".{1,40}|[a-z%0-9A-F]{1,40}") {
            if let Some(name) = name_of("/locks", &child) {
                prop_assert_eq!(escaped(name.as_str()), child);
            }
        }
    }
}
