//! Installs the lock clients of other languages for the interop tests and for the harness.
//!
//! `tests/peers/` pins their versions. They are installed below the target directory, except for Curator, a package of the
//! system, of which only the program that uses it is compiled. A note of the installed versions is written at the end; the
//! tests check it, so that they never run with other versions.
//!
//! What only the harness uses is optional: in place of a client that cannot be installed the reason is noted, which the
//! report then shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::failure::Failure;
use crate::interrupt;
use crate::setup::{curator_class_path, ensure_go, ensure_interpreters, ensure_maven, output_of, succeeds};
use crate::steps::{cargo, command_line, workspace};

/// Installs the clients that are missing in the pinned versions.
///
/// # Errors
///
/// When a client of the interop tests or its interpreter cannot be installed: the message says what to do.
pub(crate) fn ensure() -> Result<(), Failure> {
    ensure_interpreters()?;
    let peers = target()?.join("peers");
    for kind in KINDS {
        kind.ensure(&peers)?;
    }
    for (kind, tools) in OPTIONAL {
        if let Err(failure) = tools().and_then(|()| kind.ensure(&peers)) {
            interrupt::check()?;
            eprintln!("    peers: without {}: {failure}", kind.clients);
            kind.note_missing(&peers.join(kind.folder), &failure)?;
        }
    }
    Ok(())
}

/// The clients of one language.
struct Kind {
    folder: &'static str,
    /// The files with the versions, and with the program where it is compiled. The note of what is installed is a copy.
    pins: &'static [&'static str],
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
        pins: &["requirements.txt"],
        clients: "redis-py, python-redis-lock, pottery, kazoo",
        install: install_python,
        probe: probe_python,
        index: "pip can reach a package index",
    },
    Kind {
        folder: "node",
        pins: &["package-lock.json"],
        clients: "ioredis, node-redlock",
        install: install_node,
        probe: probe_node,
        index: "npm can reach a registry",
    },
    Kind {
        folder: "java",
        pins: &["zookeeper/Peer.java"],
        clients: "Curator",
        install: install_java,
        probe: probe_java,
        index: "it compiles with the Curator that is installed",
    },
];

/// Installs interpreters, compilers and servers.
type Tools = fn() -> Result<(), Failure>;

/// What only the harness uses, with the tools that it needs.
const OPTIONAL: &[(Kind, Tools)] = &[
    (
        Kind {
            folder: "go",
            pins: &["go/go.mod", "go/go.sum", "go/main.go"],
            clients: "redsync, etcd's client",
            install: install_go,
            probe: probe_go,
            index: "go can reach a module proxy",
        },
        ensure_go,
    ),
    (
        Kind {
            folder: "redisson",
            pins: &["redisson/pom.xml"],
            clients: "Redisson",
            install: install_redisson,
            probe: probe_redisson,
            index: "Maven can reach a repository",
        },
        ensure_maven,
    ),
];

impl Kind {
    /// Notes why it is missing. Its first line is enough: the rest is advice for a terminal.
    fn note_missing(&self, folder: &Path, failure: &Failure) -> Result<(), Failure> {
        make_empty(folder)?;
        let file = folder.join(MISSING);
        let text = failure.to_string();
        let line = text.lines().next().unwrap_or_default();
        fs::write(&file, line).map_err(|error| cannot("write", &file, &error))
    }

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
        let note = folder.join(NOTE);
        fs::write(&note, self.wanted()?).map_err(|error| cannot("write", &note, &error))?;
        if self.is_installed(&folder)? {
            return Ok(());
        }
        Err(self.failure(&(self.probe)(&folder)))
    }

    fn wanted(&self) -> Result<Vec<u8>, Failure> {
        let files = self.pins.iter().map(|file| read(&pins(file))).collect::<Result<Vec<_>, _>>()?;
        Ok(files.concat())
    }

    fn is_installed(&self, folder: &Path) -> Result<bool, Failure> {
        let wanted = self.wanted()?;
        let noted = fs::read(folder.join(NOTE)).is_ok_and(|noted| noted == wanted);
        // The interpreter may have changed since.
        Ok(noted && output_of(&mut (self.probe)(folder)).is_ok_and(|output| output.status.success()))
    }

    fn failure(&self, command: &Command) -> Failure {
        Failure::new(format!(
            "`{}` failed; its output is above\n\nThe tests and the harness need {}, in the versions of tests/peers/{}. Make sure that \
             {}, then run the same command again.",
            command_line(command),
            self.clients,
            self.pins[0],
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

/// The exact versions are in go.mod, their checksums in go.sum.
fn install_go(folder: &Path) -> Result<Vec<Command>, Failure> {
    let mut program = Command::new("go");
    program.args(["build", "-mod=readonly", "-o"]).arg(folder.join("peer")).arg(".");
    program.current_dir(pins("go"));
    Ok(vec![program])
}

/// It ends with its input.
fn probe_go(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("peer"));
    command.arg("version");
    command
}

/// The jars of Redisson and of what it needs.
fn install_redisson(folder: &Path) -> Result<Vec<Command>, Failure> {
    let mut jars = Command::new("mvn");
    jars.args(["--quiet", "--batch-mode", "--file"]).arg(pins("redisson/pom.xml")).arg(COPY_JARS);
    jars.arg(format!("-DoutputDirectory={}", folder.display()));
    Ok(vec![jars])
}

/// Java loads the class of its clients.
fn probe_redisson(folder: &Path) -> Command {
    let mut command = Command::new("javap");
    command.arg("-cp").arg(folder.join("*")).arg("org.redisson.Redisson");
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
const COPY_JARS: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
/// The file with the reason why they are not installed.
const MISSING: &str = "missing";
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
    fn the_reason_of_a_missing_client_is_noted() {
        let folder = std::env::temp_dir().join(format!("xtask-peers-{}", std::process::id()));
        let failure = Failure::new("`go build` failed\n\nMake sure that ...");
        OPTIONAL[0].0.note_missing(&folder, &failure).unwrap();
        assert_eq!(fs::read_to_string(folder.join(MISSING)).unwrap(), "`go build` failed");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_incomplete_installation_is_repeated() {
        for kind in KINDS.iter().chain(OPTIONAL.iter().map(|(kind, _)| kind)) {
            assert!(!kind.is_installed(Path::new("/nowhere")).unwrap());
        }
    }
}
