//! The release of ZooKeeper that the tests run on.

use std::process::Command;
use std::sync::LazyLock;

use super::ZooKeeper;
use super::class_path::Release;
use crate::servers::process::locate;
use crate::servers::server_version::{is_before, leave_out};

impl ZooKeeper {
    /// Whether standalone servers are older than the version that brought `what`. If so, the run reports that it leaves out the
    /// test that asks, which has to end then.
    pub fn lacks(what: &str, since: (u32, u32)) -> bool {
        let lacks = is_before(&VERSION, since);
        if lacks {
            leave_out(&format!("ZooKeeper {}", *VERSION), what);
        }
        lacks
    }
}

static VERSION: LazyLock<String> = LazyLock::new(|| read().unwrap_or_else(|| "of an unknown version".into()));

/// Reads `3.5.10-a32c7183, built on 05/29/2022 16:59 GMT`.
fn read() -> Option<String> {
    let mut java = Command::new(locate("java", "apt-get install default-jre-headless").ok()?);
    java.arg("-XX:TieredStopAtLevel=1").arg("-cp").arg(Release::Installed.class_path().ok()?);
    let output = java.args(["org.apache.zookeeper.Version", "--full"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.split(['-', ',']).next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_that_is_supported_has_containers() {
        assert!(!ZooKeeper::lacks("containers", (3, 5)), "{}", *VERSION);
    }
}
