//! Errors of the file system, for users.

use std::io;
use std::path::Path;

use lock_core::{Error, ErrorKind};

/// The name of this backend in errors, capabilities and results.
pub(crate) const BACKEND: &str = "flock";

/// The error of a call that failed on this file. Nothing was granted.
pub(crate) fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    use io::ErrorKind as Kind;
    let (kind, hint) = match error.kind() {
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            (ErrorKind::Denied, "give this user the right to it; users share locks by `mode` and `group`")
        }
        Kind::Unsupported => (ErrorKind::Unsupported, "use a directory of a local file system"),
        Kind::StorageFull | Kind::QuotaExceeded => (ErrorKind::Unavailable, "make room on the disk"),
        _ if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::LOOP) => (
            ErrorKind::Denied,
            "remove the symbolic link: somebody may have put it there to redirect the write",
        ),
        _ => (ErrorKind::Unavailable, "check the directory and its disk"),
    };
    Error::new(kind, BACKEND)
        .with_message(format!("cannot {what} {}: {error}", path.display()))
        .with_hint(hint)
        .caused_by(error)
}

/// The error of a step whose thread has ended without an answer: its runtime was shut down.
pub(crate) fn no_thread(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message("the runtime was shut down meanwhile")
        .with_hint("call it on a runtime that keeps running")
        .with_can_pass(false)
        .caused_by(error)
}
