//! The directories of locks that may be written, as what is in them is ours alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zookeeper_client::Stat;

/// What a session knows of the directories of its locks: the versions of those that have no data and have had nobody in them
/// but one node of ours.
///
/// An acquisition writes such a directory to learn from the answer who else is in it, see
/// [`Session::enter`](crate::session::Session::enter). A directory may belong to somebody who keeps data there; so it is
/// written over only if it is empty and as it was, and one that others write too, or that we may not write, is left
/// alone from then on.
#[derive(Debug, Default)]
pub(crate) struct Directories(Mutex<HashMap<Box<str>, Option<i32>>>);

impl Directories {
    /// The version that a directory has if it may be written.
    pub(crate) fn version(&self, dir: &str) -> Option<i32> {
        self.lock().get(dir).copied().flatten()
    }

    /// Notes what a server says of a directory in which a node of ours is.
    pub(crate) fn note(&self, dir: &str, stat: &Stat) {
        let mut known = self.lock();
        let writable = stat.data_length == 0 && stat.num_children == 1;
        match known.get_mut(dir) {
            Some(None) => {}
            Some(version) if writable => *version = Some(stat.version),
            Some(_) => drop(known.remove(dir)),
            None if writable => {
                if known.len() >= MOST {
                    known.clear();
                }
                known.insert(dir.into(), Some(stat.version));
            }
            None => {}
        }
    }

    /// Notes that a directory is not to be written.
    pub(crate) fn spare(&self, dir: &str) {
        self.lock().insert(dir.into(), None);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Option<i32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks with many names are mostly taken once each.
const MOST: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(version: i32, data_length: i32, num_children: i32) -> Stat {
        let mut stat = Stat { version, data_length, num_children, ..EMPTY };
        stat.cversion = version;
        stat
    }

    const EMPTY: Stat = Stat {
        czxid: 1,
        mzxid: 1,
        ctime: 0,
        mtime: 0,
        version: 0,
        cversion: 0,
        aversion: 0,
        ephemeral_owner: 0,
        data_length: 0,
        num_children: 0,
        pzxid: 1,
    };

    #[test]
    fn only_what_is_empty_and_ours_may_be_written() {
        let directories = Directories::default();
        assert_eq!(directories.version("/a"), None);
        directories.note("/a", &stat(3, 0, 1));
        assert_eq!(directories.version("/a"), Some(3));
        directories.note("/a", &stat(4, 0, 1));
        assert_eq!(directories.version("/a"), Some(4));
        // Others wait: it is listed.
        directories.note("/a", &stat(4, 0, 2));
        assert_eq!(directories.version("/a"), None);
        directories.note("/a", &stat(4, 5, 1));
        assert_eq!(directories.version("/a"), None, "somebody's data");
        directories.note("/a", &stat(5, 0, 1));
        directories.spare("/a");
        directories.note("/a", &stat(6, 0, 1));
        assert_eq!(directories.version("/a"), None);
    }

    #[test]
    fn no_more_are_known_than_are_of_use() {
        let directories = Directories::default();
        for number in 0..5 * MOST {
            directories.note(&number.to_string(), &stat(0, 0, 1));
            directories.spare(&number.to_string());
        }
        assert!(directories.lock().len() <= MOST);
    }
}
