//! The names of the locks that have moved here: nodes below the record of the migration, a directory for each part of the
//! names, as the list of the children of one node must not exceed `jute.maxbuffer`.

use futures_util::future::try_join_all;
use lock_core::{LockName, Result};
use zookeeper_client::{self as zk, CreateMode};

use crate::error::{Fault, Stop};
use crate::nodes::lock_path::{escape, name_of};
use crate::operate::membership::record_path;
use crate::sessions::session::Session;

/// How many requests are sent at once.
const AT_ONCE: usize = 200;

/// Notes these names in the store whose locks are in this directory.
pub(crate) async fn note(session: &Session, dir: &str, names: &[LockName]) -> Result<(), Stop> {
    for names in names.chunks(AT_ONCE) {
        try_join_all(names.iter().map(|name| note_one(session, dir, name))).await?;
    }
    Ok(())
}

async fn note_one(session: &Session, dir: &str, name: &LockName) -> Result<(), Stop> {
    let (part, path) = paths(dir, name);
    loop {
        match session.retry_until_definite(|| session.create(&path, &[], CreateMode::Persistent)).await {
            Ok(_) | Err(Fault::Refused(zk::Error::NodeExists)) => return Ok(()),
            Err(fault) if fault.is_no_node() => {
                session.make_directories(&part, CreateMode::Persistent).await?;
            }
            Err(fault) => return Err(Stop::of(fault, &path)),
        }
    }
}

/// Reads all names.
pub(crate) async fn list(session: &Session, dir: &str) -> Result<Vec<LockName>, Fault> {
    let all = directory(dir);
    session.retry_until_definite(|| session.pass_quorum("/")).await?;
    let parts = children(session, &all).await?;
    let listed = parts.iter().map(async |part| children(session, &format!("{all}/{part}")).await);
    let listed = try_join_all(listed).await?;
    Ok(listed.iter().flatten().filter_map(|child| name_of(&all, child)).collect())
}

/// Deletes these names.
pub(crate) async fn forget(session: &Session, dir: &str, names: &[LockName]) -> Result<(), Fault> {
    for names in names.chunks(AT_ONCE) {
        let deletions = names.iter().map(async |name| {
            let (_, path) = paths(dir, name);
            match session.retry_until_definite(|| session.delete(&path)).await {
                Err(fault) if !fault.is_no_node() => Err(fault),
                _ => Ok(()),
            }
        });
        try_join_all(deletions).await?;
    }
    Ok(())
}

async fn children(session: &Session, dir: &str) -> Result<Vec<String>, Fault> {
    match session.retry_until_definite(|| session.children(dir)).await {
        Err(fault) if fault.is_no_node() => Ok(Vec::new()),
        names => names,
    }
}

fn directory(dir: &str) -> String {
    format!("{}/moved", record_path(dir))
}

/// The directory of a name, and its node.
fn paths(dir: &str, name: &LockName) -> (String, String) {
    let hash = name.as_str().bytes().fold(0_u8, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte));
    let part = format!("{}/{hash:02x}", directory(dir));
    let mut path = format!("{part}/");
    escape(name.as_str(), &mut path);
    (part, path)
}
