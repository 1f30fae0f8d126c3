//! Which release of ZooKeeper a server is.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The release of a server, unless `ZOOKEEPER_CLASSPATH` has one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Release {
    /// The jars of the Debian package.
    Installed,
    /// Those that the set-up of the project has fetched, if it has.
    ///
    /// Debian's 3.8.0 loses writes that it has acknowledged when a leader dies (ZOOKEEPER-4643, 4646 and 4785).
    ForEnsembles,
}

impl Release {
    pub(super) fn class_path(self) -> Result<OsString> {
        if let Some(path) = env::var_os("ZOOKEEPER_CLASSPATH").filter(|path| !path.is_empty()) {
            return Ok(path);
        }
        let jars = match self {
            Self::ForEnsembles => fetched().and_then(|folder| jars_in(&folder)),
            Self::Installed => None,
        };
        jars.map_or_else(installed, |jars| Ok(joined(jars)))
    }
}

/// The folder of the set-up, below the target directory that this program is in.
fn fetched() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let mut folders = program.ancestors().map(|above| above.join("peers/zookeeper-server"));
    folders.find(|folder| folder.join("installed").is_file())
}

fn jars_in(folder: &Path) -> Option<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut jars: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "jar")).collect();
    jars.sort();
    Some(jars).filter(|jars| !jars.is_empty())
}

fn installed() -> Result<OsString> {
    let jar = |name: &str| Path::new(DEBIAN_JARS).join(name);
    if !jar("zookeeper.jar").is_file() {
        return Err(Error::NotInstalled {
            program: jar("zookeeper.jar").display().to_string(),
            install: "apt-get install zookeeper".to_owned(),
        });
    }
    Ok(joined(JARS.map(jar)))
}

fn joined(jars: impl IntoIterator<Item = PathBuf>) -> OsString {
    jars.into_iter().map(PathBuf::into_os_string).collect::<Vec<_>>().join(&OsString::from(":"))
}

const DEBIAN_JARS: &str = "/usr/share/java";
/// What a server needs without the admin server; Netty is for TLS.
const JARS: [&str; 14] = [
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "metrics-core.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "snappy-java.jar",
    "netty-buffer.jar",
    "netty-codec.jar",
    "netty-common.jar",
    "netty-handler.jar",
    "netty-resolver.jar",
    "netty-transport.jar",
    "netty-transport-native-epoll.jar",
    "netty-transport-native-unix-common.jar",
];
