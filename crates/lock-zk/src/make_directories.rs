//! Creates the directories of locks.

use zookeeper_client::{self as zk, CreateMode};

use crate::error::{Fault, Stop, no_chroot};
use crate::session::Session;

/// Creates a directory in this mode, and missing nodes above it as persistent ones. Returns without an error if an answer is
/// lost; the caller notices if the directory does not exist. The directory of a lock is a container, which the server
/// removes once it has been empty for a while.
pub(crate) async fn make_directories(session: &Session, dir: &str, mut mode: CreateMode) -> Result<(), Stop> {
    let mut missing = vec![dir];
    while let Some(&path) = missing.last() {
        let mode_here = if path == dir { mode } else { CreateMode::Persistent };
        match session.create(path, &[], mode_here).await {
            Ok(_) | Err(Fault::Refused(zk::Error::NodeExists)) => {
                missing.pop();
            }
            Err(fault) if fault.is_no_node() => match path.rfind('/') {
                Some(at) if at > 0 && missing.len() <= dir.len() => missing.push(&path[..at]),
                _ => return Err(Stop::Failed(no_chroot(&session.chroot))),
            },
            Err(Fault::Refused(zk::Error::Unimplemented)) if mode == CreateMode::Container => {
                mode = CreateMode::Persistent;
            }
            Err(Fault::Unknown(_)) => return Ok(()),
            Err(fault) => return Err(Stop::of(fault, path)),
        }
    }
    Ok(())
}
