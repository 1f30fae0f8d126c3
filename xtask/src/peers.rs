//! Installs the lock clients of other languages for the interop tests.
//!
//! `tests/peers/` pins their versions. They are installed below the target directory, except for Curator, a package of the
//! system, of which only the program that uses it is compiled. A note of the installed versions is written at the end; the
//! tests check it, so that they never run with other versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::failure::Failure;
use crate::interrupt;
use crate::setup::{curator_class_path, ensure_interpreters, output_of, succeeds};
use crate::steps::{cargo, command_line, workspace};

/// Installs the clients that are missing in the pinned versions.
///
/// # Errors
///
/// When a client or its interpreter cannot be installed: the message says what to do.
pub(crate) fn ensure() -> Result<(), Failure> {
    ensure_interpreters()?;
    let target = target()?;
    for kind in KINDS {
        kind.ensure(&target.join("peers"))?;
    }
    Ok(())
}

/// The clients of one language.
struct Kind {
    folder: &'static str,
    /// The file with the versions. The note of installed versions is a copy of it.
    pins: &'static str,
    clients: &'static str,
    /// The commands that install into the folder.
    install: fn(&Path) -> Result<Vec<Command>, Failure>,
    /// A command that succeeds when the clients can be loaded.
    probe: fn(&Path) -> Command,
    index: &'static str,
}

const KINDS: &[Kind] = &[
    Kind {
        folder: "python",
        pins: "requirements.txt",
        clients: "redis-py, python-redis-lock, pottery, kazoo",
        install: install_python,
        probe: probe_python,
        index: "pip can reach a package index",
    },
    Kind {
        folder: "node",
        pins: "package-lock.json",
        clients: "ioredis, node-redlock",
        install: install_node,
        probe: probe_node,
        index: "npm can reach a registry",
    },
    Kind {
        folder: "java",
        pins: "zookeeper/Peer.java",
        clients: "Curator",
        install: install_java,
        probe: probe_java,
        index: "it compiles with the Curator that is installed",
    },
];

impl Kind {
    fn ensure(&self, peers: &Path) -> Result<(), Failure> {
        let folder = peers.join(self.folder);
        if self.is_installed(&folder)? {
            eprintln!("    peers: {}", self.clients);
            return Ok(());
        }
        eprintln!("    peers: installing {}", self.clients);
        make_empty(&folder)?;
        for mut command in (self.install)(&folder)? {
            let done = succeeds(&mut command);
            interrupt::check()?;
            if !done {
                return Err(self.failure(&command));
            }
        }
        copy(&pins(self.pins), &folder.join(NOTE))?;
        if self.is_installed(&folder)? {
            return Ok(());
        }
        Err(self.failure(&(self.probe)(&folder)))
    }

    fn is_installed(&self, folder: &Path) -> Result<bool, Failure> {
        let wanted = read(&pins(self.pins))?;
        let noted = fs::read(folder.join(NOTE)).is_ok_and(|noted| noted == wanted);
        // The interpreter may have changed since.
        Ok(noted && output_of(&mut (self.probe)(folder)).is_ok_and(|output| output.status.success()))
    }

    fn failure(&self, command: &Command) -> Failure {
        Failure::new(format!(
            "`{}` failed; its output is above\n\nThe interop tests need {}, in the versions of tests/peers/{}. Make sure that \
             {}, then run the same command again.",
            command_line(command),
            self.clients,
            self.pins,
            self.index,
        ))
    }
}

fn install_python(folder: &Path) -> Result<Vec<Command>, Failure> {
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv"]).arg(folder);
    let mut packages = Command::new(folder.join("bin/python"));
    packages.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
    packages.arg("--requirement").arg(pins("requirements.txt"));
    Ok(vec![environment, packages])
}

fn probe_python(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("bin/python"));
    command.args(["-c", "import kazoo, pottery, redis, redis_lock"]);
    command
}

fn install_node(folder: &Path) -> Result<Vec<Command>, Failure> {
    for file in ["package.json", "package-lock.json"] {
        copy(&pins(file), &folder.join(file))?;
    }
    let mut packages = Command::new("npm");
    packages.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]);
    packages.current_dir(folder);
    Ok(vec![packages])
}

fn probe_node(folder: &Path) -> Command {
    let mut command = Command::new("node");
    command.args(["-e", "require('ioredis'), require('redlock')"]).current_dir(folder);
    command
}

/// Writes Java's options into a file, so that the tests need not know where Curator is.
fn install_java(folder: &Path) -> Result<Vec<Command>, Failure> {
    let class_path = format!("{}:{}", folder.display(), curator_class_path());
    let options = folder.join(OPTIONS);
    // In such a file a backslash takes the next character as it is.
    let text = format!("-cp \"{}\"\n", class_path.replace('\\', "\\\\"));
    fs::write(&options, text).map_err(|error| cannot("write", &options, &error))?;
    let mut program = Command::new("javac");
    program.arg(format!("@{}", options.display())).arg("-d").arg(folder);
    program.arg(pins("zookeeper/Peer.java"));
    Ok(vec![program])
}

/// It prints that it is ready, and ends with its input.
fn probe_java(folder: &Path) -> Command {
    let mut command = Command::new("java");
    command.arg(format!("@{}", folder.join(OPTIONS).display())).arg("Peer");
    command
}

/// Cargo's target directory.
fn target() -> Result<PathBuf, Failure> {
    let mut command = cargo(["metadata", "--no-deps", "--format-version", "1"]);
    let output = output_of(&mut command)?;
    target_in(&output.stdout)
        .ok_or_else(|| Failure::new(format!("`{}` names no target directory", command_line(&command))))
}

fn target_in(metadata: &[u8]) -> Option<PathBuf> {
    let metadata: Value = serde_json::from_slice(metadata).ok()?;
    metadata["target_directory"].as_str().map(PathBuf::from)
}

fn pins(file: &str) -> PathBuf {
    workspace().join("tests/peers").join(file)
}

fn make_empty(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| cannot("remove", folder, &error))?;
    }
    fs::create_dir_all(folder).map_err(|error| cannot("make", folder, &error))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(|error| cannot("read", file, &error))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| cannot("write", to, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {error}", path.display()))
}

/// The file beside the installed packages with their versions.
const NOTE: &str = "installed";
/// The file beside a compiled program with Java's options.
const OPTIONS: &str = "options";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_directory_is_read_from_what_cargo_says() {
        let metadata = r#"{"packages":[],"target_directory":"/somewhere/target","version":1}"#;
        assert_eq!(target_in(metadata.as_bytes()), Some("/somewhere/target".into()));
        assert_eq!(target_in(b"error: no such command"), None);
    }

    #[test]
    fn every_version_is_pinned() {
        let requirements = fs::read_to_string(pins("requirements.txt")).unwrap();
        let packages = requirements.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for package in packages {
            assert!(package.contains("=="), "{package}");
        }
        let manifest = fs::read_to_string(pins("package.json")).unwrap();
        assert!(!manifest.contains(['^', '~', '*', '>']), "{manifest}");
    }

    #[test]
    fn an_incomplete_installation_is_repeated() {
        for kind in KINDS {
            assert!(!kind.is_installed(Path::new("/nowhere")).unwrap());
        }
    }
}
