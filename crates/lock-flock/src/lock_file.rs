//! A file and its `flock`.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use lock_core::Result;
use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW, flock, futimens};
use rustix::io::Errno;

use crate::error::failed;

/// An open file that can be locked. A `flock` belongs to the open file, not to the process or the thread: so two of them
/// exclude each other within one process too, unlike the locks of `fcntl`.
///
/// # Drop
///
/// Dropping it unlocks and closes it. The kernel does the same at the end of the process.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    id: FileId,
    /// The process that has opened it.
    process: u32,
}

/// Which file it is, whatever its path leads to later. Its number is not used again while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    path: PathBuf,
    device: u64,
    number: u64,
}

/// With whom a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Alone,
    Shared,
}

impl LockFile {
    /// Opens the file at this path, if it exists.
    pub(crate) fn open_existing(path: &Path) -> Result<Option<Self>> {
        Self::opened(path, OpenOptions::new().read(true).write(true))
    }

    /// Opens the file at this path, if it exists, for a user that may not write it.
    pub(crate) fn open_to_read(path: &Path) -> Result<Option<Self>> {
        Self::opened(path, OpenOptions::new().read(true))
    }

    fn opened(path: &Path, options: &mut OpenOptions) -> Result<Option<Self>> {
        // A link may lead to a file that somebody else wants this process to overwrite, and a pipe may have no other end.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match options.custom_flags(flags.bits().cast_signed()).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| failed("open", path, error))?,
        };
        let metadata = file.metadata().map_err(|error| failed("look at", path, error))?;
        let id = FileId { path: path.to_owned(), device: metadata.dev(), number: metadata.ino() };
        Ok(Some(Self { file, id, process: process::id() }))
    }

    /// Locks it if nobody else has it, and returns whether it is locked now. Call it again to change the sharing; if that
    /// fails, it is not locked any more.
    pub(crate) fn try_lock(&self, sharing: Sharing) -> Result<bool> {
        let operation = match sharing {
            Sharing::Alone => FlockOperation::NonBlockingLockExclusive,
            Sharing::Shared => FlockOperation::NonBlockingLockShared,
        };
        loop {
            match flock(&self.file, operation) {
                Ok(()) => return Ok(true),
                Err(Errno::WOULDBLOCK) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed("lock", &self.id.path, error.into())),
            }
        }
    }

    /// Unlocks it, and keeps it open.
    pub(crate) fn unlock(&self) {
        // It cannot fail for an open file, and closing it unlocks it in any case.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    /// Wakes those who watch the file: a change of the lock alone is no event.
    pub(crate) fn touch(&self) {
        // Another time than now is for the owner of the file to set. Without the event they look a little later.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let _ = futimens(&self.file, &Timestamps { last_access: now, last_modification: now });
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn id(&self) -> &FileId {
        &self.id
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A child after `fork` has the open file too: this call unlocks it for both, and the lock is its parent's.
        if process::id() == self.process {
            self.unlock();
        }
    }
}

impl FileId {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path still leads to this file: not if somebody has deleted or replaced it.
    pub(crate) fn is_current(&self) -> Result<bool> {
        let is_it = |metadata: Metadata| (metadata.dev(), metadata.ino()) == (self.device, self.number);
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) => Ok(is_it(metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("look at", &self.path, error)),
        }
    }
}
