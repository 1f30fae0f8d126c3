//! Lock names as file names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lock_core::LockName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::directory::Directory;

/// What is escaped: all but lower-case letters, digits, `-`, `_` and `.`. Upper-case letters too, as some file systems do not
/// tell them from lower-case ones, and two names would be one lock.
const ESCAPED: &AsciiSet = &escaped();
/// File names have at most 255 bytes, lock names many more.
const LONGEST_PART: usize = 200;
/// Ends the name of a directory that is the first part of longer names. No escaped name has it.
const CONTINUED: &str = "+";
/// Ends the name of the file that holders lock.
const LOCK: &str = ".lock";

/// The files of one lock.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    /// Where they are made.
    pub(crate) dir: Arc<Directory>,
    /// Locked by the holders. Other programs may lock it too, as `flock(1)` does.
    pub(crate) lock: PathBuf,
    /// Locked by the next in turn, so that a stream of readers does not starve a writer, nor the other way round.
    pub(crate) turn: PathBuf,
    /// The tokens, and the mutex of all steps on this lock.
    pub(crate) ledger: PathBuf,
}

impl Paths {
    pub(crate) fn new(dir: &Arc<Directory>, name: &LockName) -> Self {
        let file = |suffix| dir.path().join(relative(name, suffix));
        Self { dir: Arc::clone(dir), lock: file(LOCK), turn: file(".turn"), ledger: file(".token") }
    }
}

/// The path of a file of this lock, within the directory.
fn relative(name: &LockName, suffix: &str) -> PathBuf {
    let name = utf8_percent_encode(name.as_str(), ESCAPED).to_string();
    let (mut path, mut rest) = (PathBuf::new(), &name[..]);
    while rest.len() > LONGEST_PART {
        let (part, end) = rest.split_at(LONGEST_PART);
        path.push(format!("{part}{CONTINUED}"));
        rest = end;
    }
    path.join(format!("{rest}{suffix}"))
}

/// The name of the lock that this file belongs to, if it is one that holders lock. `path` is relative to the directory.
pub(crate) fn lock_name(path: &Path) -> Option<LockName> {
    let parts: Option<Vec<_>> = path.iter().map(|part| part.to_str()).collect();
    let (file, dirs) = parts.as_deref()?.split_last()?;
    let mut escaped = String::new();
    for dir in dirs {
        escaped.push_str(dir.strip_suffix(CONTINUED)?);
    }
    escaped.push_str(file.strip_suffix(LOCK)?);
    let name = LockName::new(percent_decode_str(&escaped).decode_utf8().ok()?).ok()?;
    // Not what another program may have called its file.
    (relative(&name, LOCK) == path).then_some(name)
}

/// Whether this may be a directory that is the first part of longer names.
pub(crate) fn is_continued(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(CONTINUED.as_bytes())
}

const fn escaped() -> AsciiSet {
    let mut set = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let mut letter = b'A';
    while letter <= b'Z' {
        set = set.add(letter);
        letter += 1;
    }
    set
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(name: &str) -> PathBuf {
        relative(&LockName::new(name).unwrap(), LOCK)
    }

    #[test]
    fn names_are_escaped_and_long_ones_continue_in_directories() {
        assert_eq!(path("orders/42"), Path::new("orders%2F42.lock"));
        assert_eq!(path(".."), Path::new("...lock"));
        assert_eq!(path("A\0ö"), Path::new("%41%00%C3%B6.lock"));
        let long = path(&"x".repeat(450));
        assert_eq!(long.iter().map(|part| part.len()).collect::<Vec<_>>(), [201, 201, 55]);
    }

    #[test]
    fn files_of_other_programs_are_no_locks() {
        for path in ["readme", "A.lock", "a b.lock", "%2f.lock", ".lock", "dir/a.lock", "%FF.lock", "a.turn"]
        {
            assert_eq!(lock_name(Path::new(path)), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn every_name_has_its_own_files_even_where_case_is_ignored(one in ".{1,300}", two in ".{1,300}") {
            let (first, second) = (path(&one), path(&two));
            let name = lock_name(&first).unwrap();
            prop_assert_eq!(name.as_str(), &one);
            let folded = |path: &Path| path.to_str().unwrap().to_lowercase();
            prop_assert_eq!(folded(&first) == folded(&second), one == two);
            prop_assert!(first.iter().all(|part| part.len() <= 255));
        }
    }
}
