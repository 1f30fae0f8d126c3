//! Where the file is: SQLite writes to what it has opened, while others may have come to use something else.

use std::fs;
use std::path::{Path, PathBuf};

use lock_core::{Error, ErrorKind, Outcome, Result};

use super::NAME;

/// The endings of the file and of those beside it, which hold its values and locks: a file with others beside it is another one.
const FILES: [&str; 3] = ["", "-wal", "-shm"];

/// The files that were opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    path: PathBuf,
    /// Without links: where SQLite has the others.
    real: PathBuf,
    files: [Option<FileId>; 3],
}

/// What tells a file from another one at the same path.
type FileId = (u64, u64);

impl Place {
    /// What is at this path now.
    ///
    /// # Errors
    ///
    /// If not all processes that use the file need have the same ones beside it.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let real = fs::canonicalize(path).map_err(|error| moved(Outcome::NotApplied).caused_by(error))?;
        check_alone(&real)?;
        let files = look(path, &real);
        Ok(Self { path: path.to_owned(), real, files })
    }

    /// Whether the file itself is the same.
    pub(super) fn has_the_file_of(&self, other: &Self) -> bool {
        self.files[0] == other.files[0]
    }

    /// Fails if any of the files is not there any more.
    pub(super) fn check(&self, outcome: Outcome) -> Result<()> {
        if look(&self.path, &self.real) == self.files { Ok(()) } else { Err(moved(outcome)) }
    }
}

fn look(path: &Path, real: &Path) -> [Option<FileId>; 3] {
    FILES.map(|ending| match ending {
        "" => file_at(path),
        ending => file_at(&beside(real, ending)),
    })
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(unix)]
fn file_at(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// An open file can be neither deleted nor replaced.
#[cfg(not(unix))]
fn file_at(_: &Path) -> Option<FileId> {
    None
}

/// Fails if the file can be reached by several paths, as far as that can be known: each has its own files beside it.
#[cfg(unix)]
fn check_alone(real: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if is_mount_point(&mounts, real) {
        return Err(apart("the file is mounted without its directory", "mount its directory"));
    }
    match fs::metadata(real) {
        Ok(file) if file.nlink() > 1 => {
            Err(apart("the file has several names", "remove the other hard links"))
        }
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn check_alone(_: &Path) -> Result<()> {
    Ok(())
}

/// Whether something is mounted at this path, by `/proc/self/mountinfo`, which has spaces and the like as octal numbers.
#[cfg(unix)]
fn is_mount_point(mounts: &str, path: &Path) -> bool {
    let plain = |text: &str| {
        let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        escapes.iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
    };
    mounts.lines().filter_map(|mount| mount.split(' ').nth(4)).any(|at| Path::new(&plain(at)) == path)
}

#[cfg(unix)]
fn apart(what: &str, hint: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, NAME)
        .with_message(format!("{what}: others may use it without the -wal and -shm files of this process"))
        .with_hint(hint)
}

pub(super) fn moved(outcome: Outcome) -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message(
            "the file, or its -wal or -shm, was deleted, moved or replaced while its locks were in use",
        )
        .with_hint("nobody may do that while a process uses them; connect again once all have ended")
        .with_outcome(outcome)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_mounted_alone_is_found() {
        let mounts = "\
            1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 8:1 /srv/locks.db /data/locks.db rw,relatime shared:2 master:1 - ext4 /dev/sda1 rw\n\
            3 1 8:1 /srv/my\\040locks.db /data/my\\040locks.db rw - ext4 /dev/sda1 rw\n";
        for (path, is_one) in [
            ("/data/locks.db", true),
            ("/data/my locks.db", true),
            ("/data", false),
            ("/srv/locks.db", false),
            ("/data/locks.db-wal", false),
        ] {
            assert_eq!(is_mount_point(mounts, Path::new(path)), is_one, "{path}");
        }
    }

    #[test]
    fn a_file_with_two_names_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks.db");
        fs::write(&path, "").unwrap();
        assert!(Place::of(&path).is_ok());
        fs::hard_link(&path, dir.path().join("other.db")).unwrap();
        assert_eq!(Place::of(&path).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
