//! The directories of locks that may be written, as nobody keeps anything in them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use zookeeper_client::Stat;

/// What a session knows of the directories of its locks: the versions of those that have no data and had one node in them at
/// most when they were seen last.
///
/// An acquisition writes such a directory to learn from the answer who else is in it, see
/// [`Session::enter`](crate::session::Session::enter). A directory may belong to somebody who keeps data there; so it is
/// written only at the version at which it was empty, and only for a moment after that: one that is removed and made again
/// begins with the same versions. For that reason it is not written either while there is no connection, for which the
/// request would wait. One that others write too, or that we may not write, is left alone for a while.
///
/// What is left is a request that the network holds back, or the driver as a connection breaks, which may be as long as a
/// session lasts: it writes over what somebody has put meanwhile into a directory that was removed, made again, and written
/// as often as the one before.
#[derive(Debug, Default)]
pub(crate) struct Directories(Mutex<HashMap<Box<str>, Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Without one it is not to be written.
    version: Option<i32>,
    until: Instant,
}

impl Directories {
    /// The version that a directory has if it may be written.
    pub(crate) fn version(&self, dir: &str) -> Option<i32> {
        let known = *self.lock().get(dir)?;
        known.version.filter(|_| Instant::now() < known.until)
    }

    /// Notes what a server says of a directory.
    pub(crate) fn note(&self, dir: &str, stat: &Stat) {
        let writable = stat.data_length == 0 && stat.num_children <= 1;
        let now = Instant::now();
        let mut all = self.lock();
        let spared = all.get(dir).is_some_and(|known| known.version.is_none() && now < known.until);
        if spared {
            return;
        }
        if !writable {
            all.remove(dir);
            return;
        }
        if all.len() >= MOST && !all.contains_key(dir) {
            all.clear();
        }
        all.insert(dir.into(), Known { version: Some(stat.version), until: now + FRESH });
    }

    /// Notes that a directory is not to be written for a while.
    pub(crate) fn spare(&self, dir: &str) {
        self.lock().insert(dir.into(), Known { version: None, until: Instant::now() + SPARED });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks with many names are mostly taken once each.
const MOST: usize = 1_000;
/// Far shorter than what it takes to remove a directory and to keep something in another of the same name.
const FRESH: Duration = Duration::from_secs(5);
const SPARED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

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

    fn stat(version: i32, data_length: i32, num_children: i32) -> Stat {
        Stat { version, data_length, num_children, ..EMPTY }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_empty_and_ours_may_be_written() {
        let directories = Directories::default();
        assert_eq!(directories.version("/a"), None);
        directories.note("/a", &stat(3, 0, 1));
        assert_eq!(directories.version("/a"), Some(3));
        directories.note("/a", &stat(4, 0, 0));
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

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_long_ago_is_not_relied_on() {
        let directories = Directories::default();
        directories.note("/a", &stat(3, 0, 1));
        advance(FRESH).await;
        assert_eq!(directories.version("/a"), None);
        directories.spare("/a");
        advance(SPARED).await;
        directories.note("/a", &stat(3, 0, 1));
        assert_eq!(directories.version("/a"), Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_known_than_are_of_use() {
        let directories = Directories::default();
        for number in 0..5 * MOST {
            directories.note(&number.to_string(), &stat(0, 0, 1));
            directories.spare(&number.to_string());
        }
        assert!(directories.lock().len() <= MOST);
    }
}
