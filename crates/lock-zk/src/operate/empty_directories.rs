//! Which directories of locks may be written, because they are empty.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use zookeeper_client::Stat;

use crate::poison::lock;

/// The versions of directories that had no data, and at most one node, when this session saw them last.
///
/// An acquisition writes such a directory to learn from the answer how many nodes it has, see
/// [`create_and_count`](crate::sessions::session::Session::create_and_count). A directory may belong to somebody who keeps data in
/// it. So it is written only at the version at which it was empty, and only within [a short time](FRESH): one that is
/// deleted and created again starts with the same versions. For the same reason it is not written while there is no
/// connection, for which the request would wait. A directory that others write too, or whose ACL forbids it, is not
/// written for [a while](SPARED).
///
/// One case remains: the network or the driver holds back the request, for at most as long as the session lasts, while a
/// directory is deleted, created again, and written as often as before. Then the request overwrites that data.
#[derive(Debug, Default)]
pub(crate) struct EmptyDirectories(Mutex<HashMap<Box<str>, Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// `None` if it must not be written.
    version: Option<i32>,
    until: Instant,
}

impl EmptyDirectories {
    /// The version of a directory that may be written.
    pub(crate) fn version(&self, dir: &str) -> Option<i32> {
        let known = *lock(&self.0).get(dir)?;
        known.version.filter(|_| Instant::now() < known.until)
    }

    /// Takes in the stat of a directory.
    pub(crate) fn note(&self, dir: &str, stat: &Stat) {
        let writable = stat.data_length == 0 && stat.num_children <= 1;
        let now = Instant::now();
        let mut all = lock(&self.0);
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

    /// Leaves a directory alone for a while.
    pub(crate) fn spare(&self, dir: &str) {
        lock(&self.0).insert(dir.into(), Known { version: None, until: Instant::now() + SPARED });
    }
}

/// Where there are more names, each lock is mostly taken once.
const MOST: usize = 1_000;
/// Far shorter than it takes to delete a directory, create it again and put data into it.
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
    async fn only_empty_directories_may_be_written() {
        let directories = EmptyDirectories::default();
        assert_eq!(directories.version("/a"), None);
        directories.note("/a", &stat(3, 0, 1));
        assert_eq!(directories.version("/a"), Some(3));
        directories.note("/a", &stat(4, 0, 0));
        assert_eq!(directories.version("/a"), Some(4));
        // Others wait: the directory is listed.
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
    async fn old_stats_are_not_relied_on() {
        let directories = EmptyDirectories::default();
        directories.note("/a", &stat(3, 0, 1));
        advance(FRESH).await;
        assert_eq!(directories.version("/a"), None);
        directories.spare("/a");
        advance(SPARED).await;
        directories.note("/a", &stat(3, 0, 1));
        assert_eq!(directories.version("/a"), Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_known_directories_is_limited() {
        let directories = EmptyDirectories::default();
        for number in 0..5 * MOST {
            directories.note(&number.to_string(), &stat(0, 0, 1));
            directories.spare(&number.to_string());
        }
        assert!(lock(&directories.0).len() <= MOST);
    }
}
