//! An archive of the classes of ZooKeeper, with which servers start in two thirds of the time.
//!
//! The first server of a release that is started after a build writes it, beside the test programs. Java goes without an archive that does
//! not fit its version or the jars (`-Xshare:auto`).
//!
//! Source: "Class Data Sharing", the manual of the `java` command.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::ZkOptions;
use super::class_path::Release;
use crate::error::{Error, Result};
use crate::servers::port::Port;
use crate::servers::server_process::StartError;

/// The archive of a release, made now if there is none; `None` if that fails.
pub(super) fn get(release: Release) -> Option<&'static PathBuf> {
    static INSTALLED: OnceLock<Option<PathBuf>> = OnceLock::new();
    static FOR_ENSEMBLES: OnceLock<Option<PathBuf>> = OnceLock::new();
    let archive = match release {
        Release::Installed => &INSTALLED,
        Release::ForEnsembles => &FOR_ENSEMBLES,
    };
    let made = archive.get_or_init(|| match make(release) {
        Ok(path) => Some(path),
        Err(error) => {
            tracing::debug!(?error, "there is no archive of the classes of ZooKeeper");
            None
        }
    });
    made.as_ref()
}

fn make(release: Release) -> Result<PathBuf, StartError> {
    let program = env::current_exe().map_err(|error| Error::io("find the test program", error))?;
    let mut hash = DefaultHasher::new();
    release.class_path()?.hash(&mut hash);
    let name = format!("zookeeper-{:x}", hash.finish());
    let path = program.with_file_name(format!("{name}.jsa"));
    if path.is_file() {
        return Ok(path);
    }
    // Other test programs may do the same now: the last one wins.
    let ours = program.with_file_name(format!("{name}-{}.jsa", std::process::id()));
    let options = ZkOptions { release, archives_to: Some(ours.clone()), ..ZkOptions::default() };
    let server = options.prepare(Arc::new(Port::pick("zookeeper")?), None)?;
    server.launch()?;
    server.wait_ready()?;
    let ended = server.process.terminate(PATIENCE);
    if ended.and_then(|status| status.code()) != Some(AFTER_SIGTERM) {
        // A part of an archive would crash every server.
        let _ = fs::remove_file(&ours);
        let what = format!("it did not write an archive of its classes: {ended:?}");
        return Err(Error::Protocol { peer: server.process.name().to_owned(), what }.into());
    }
    let rename = |error| Error::io(format!("write {}", path.display()), error);
    fs::rename(&ours, &path).map_err(rename)?;
    Ok(path)
}

/// The exit status of Java after SIGTERM, when it has written what it was asked for.
const AFTER_SIGTERM: i32 = 128 + 15;
/// Far more than it takes to write.
const PATIENCE: Duration = Duration::from_secs(30);
