//! Installs the lock clients of other languages for the interop tests and for the harness, and a ZooKeeper for ensembles.
//!
//! `tests/peers/` pins their versions. They are installed below the target directory, except for Curator, a package of the
//! system, of which only the program that uses it is compiled. A note of the installed versions is written at the end; the
//! tests check it, so that they never run with other versions.
//!
//! For the harness all of them are optional: in place of a client that cannot be installed the reason is noted, which the report
//! then shows.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::interrupt;
use crate::setup::{
    AGAIN, FailureNote, LIMIT, Part, curator_class_path, ensure_parts, output_of, run_within, try_parts,
};
use crate::steps::{command_line, target_folder, workspace};

/// Installs the clients that are missing in the pinned versions, for the interop tests. Those that only the harness uses are
/// offered.
///
/// # Errors
///
/// When a client of the interop tests or its interpreter cannot be installed: the message says what to do.
pub(crate) fn ensure() -> Result<(), Failure> {
    let (tested, measured): (Vec<&Kind>, Vec<&Kind>) = KINDS.iter().partition(|kind| kind.is_tested);
    let mut tools: Vec<Part> = Vec::new();
    for &tool in tested.iter().flat_map(|kind| kind.tools) {
        if !tools.contains(&tool) {
            tools.push(tool);
        }
    }
    ensure_parts(&tools)?;
    let peers = folder()?;
    for kind in tested {
        kind.ensure(&peers)?;
    }
    measured.iter().try_for_each(|kind| kind.offer(&peers))
}

/// Installs the clients that are missing, for the harness. One that cannot be installed, or takes too long, is left out.
///
/// # Errors
///
/// After Ctrl-C, and when cargo does not know its own target directory.
pub(crate) fn offer() -> Result<(), Failure> {
    let peers = folder()?;
    KINDS.iter().filter(|kind| kind.is_measured).try_for_each(|kind| kind.offer(&peers))
}

/// Installs the ZooKeeper of ensembles if it is missing, for the soak, which kills leaders. It does without.
///
/// # Errors
///
/// As for [`offer`].
pub(crate) fn offer_zookeeper() -> Result<(), Failure> {
    let peers = folder()?;
    KINDS.iter().filter(|kind| kind.folder == "zookeeper-server").try_for_each(|kind| kind.offer(&peers))
}

/// Forgets which clients could not be installed.
pub(crate) fn forget_failures() -> Result<(), Failure> {
    let peers = folder()?;
    KINDS.iter().for_each(|kind| kind.note_of_failure(&peers).remove());
    Ok(())
}

/// The clients of one language, or a server.
pub(crate) struct Kind {
    pub(crate) folder: &'static str,
    /// The files with the versions, and with the program where it is compiled. The note of what is installed is a copy.
    pub(crate) pins: &'static [&'static str],
    pub(crate) clients: &'static str,
    /// Interpreters, compilers and servers.
    pub(crate) tools: &'static [Part],
    /// Whether tests need it.
    pub(crate) is_tested: bool,
    /// Whether the harness runs it.
    pub(crate) is_measured: bool,
    /// The commands that install into the folder.
    pub(crate) install: fn(&Path) -> Result<Vec<Command>, Failure>,
    /// A command that succeeds when the clients can be loaded.
    pub(crate) probe: fn(&Path) -> Command,
    pub(crate) index: &'static str,
}

const KINDS: &[Kind] = &[
    Kind {
        folder: "python",
        pins: &["requirements.txt"],
        clients: "redis-py, python-redis-lock, pottery, kazoo",
        tools: &[Part::Python],
        is_tested: true,
        is_measured: true,
        install: |folder| Ok(python_packages(folder, "requirements.txt")),
        probe: |folder| imports(folder, "kazoo, pottery, redis, redis_lock"),
        index: "pip can reach a package index",
    },
    Kind {
        folder: "s3",
        pins: &["s3/requirements.txt"],
        clients: "boto3 and moto, a server that answers as S3 does",
        tools: &[Part::Python],
        is_tested: true,
        is_measured: false,
        // Apart from the lock clients, which need none of it.
        install: |folder| Ok(python_packages(folder, "s3/requirements.txt")),
        probe: |folder| imports(folder, "boto3, moto.server"),
        index: "pip can reach a package index",
    },
    Kind {
        folder: "postgres",
        pins: &["postgres/requirements.txt"],
        clients: "psycopg",
        tools: &[Part::Python],
        is_tested: true,
        is_measured: false,
        install: |folder| Ok(python_packages(folder, "postgres/requirements.txt")),
        probe: |folder| imports(folder, "psycopg"),
        index: "pip can reach a package index",
    },
    Kind {
        folder: "node",
        pins: &["package-lock.json"],
        clients: "ioredis, node-redlock",
        tools: &[Part::Node, Part::Npm],
        is_tested: true,
        is_measured: true,
        install: install_node,
        probe: probe_node,
        index: "npm can reach a registry",
    },
    Kind {
        folder: "java",
        pins: &["zookeeper/Peer.java"],
        clients: "Curator",
        tools: &[Part::Javac, Part::Curator],
        is_tested: true,
        is_measured: true,
        install: install_java,
        // It prints that it is ready, and ends with its input.
        probe: |folder| command("java", [&format!("@{}", folder.join(OPTIONS).display()), "Peer"]),
        index: "it compiles with the Curator that is installed",
    },
    Kind {
        folder: "redisson",
        pins: &["redisson/pom.xml", "redisson/Peer.java"],
        clients: "Redisson",
        tools: &[Part::Javac, Part::Maven],
        is_tested: true,
        is_measured: true,
        install: install_redisson,
        // As above.
        probe: |folder| command("java", ["-cp", &format!("{0}:{0}/*", folder.display()), "Peer"]),
        index: "Maven can reach a repository",
    },
    Kind {
        folder: "go",
        pins: &["go/go.mod", "go/go.sum", "go/main.go"],
        clients: "redsync, etcd's client",
        tools: &[Part::Go],
        is_tested: false,
        is_measured: true,
        install: install_go,
        probe: |folder| command(folder.join("peer"), ["version"]),
        index: "go can reach a module proxy",
    },
    Kind {
        folder: "zookeeper-server",
        pins: &["zookeeper-server/pom.xml"],
        clients: "ZooKeeper 3.9.5 for ensembles, as others may lose writes when a leader dies",
        tools: &[Part::Maven],
        is_tested: false,
        is_measured: true,
        // The test kit finds them there.
        install: |folder| Ok(vec![copy_jars("zookeeper-server/pom.xml", folder)]),
        probe: probe_zookeeper,
        index: "Maven can reach a repository",
    },
];

impl Kind {
    /// As [`ensure`](Self::ensure), but leaves the clients out when that fails, and does not try it again on the same day.
    fn offer(&self, peers: &Path) -> Result<(), Failure> {
        let note = self.note_of_failure(peers);
        if let Some(why) = note.of_today() {
            eprintln!("    peers: without {}: {why} ({AGAIN})", self.clients);
            return Ok(());
        }
        if let Err(failure) = self.fetch(peers) {
            interrupt::check()?;
            eprintln!("    peers: without {}: {failure}", self.clients);
            make_empty(&peers.join(self.folder))?;
            note.write(&failure);
        }
        Ok(())
    }

    /// As [`ensure`](Self::ensure), with its tools.
    pub(crate) fn fetch(&self, peers: &Path) -> Result<(), Failure> {
        try_parts(self.tools).and_then(|()| self.ensure(peers))
    }

    /// The harness reads it.
    fn note_of_failure(&self, peers: &Path) -> FailureNote {
        FailureNote::new(peers.join(self.folder).join("missing"))
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
            let ended = run_within(LIMIT, &mut command);
            interrupt::check()?;
            ended.map_err(|why| self.failure(&command, &why))?;
        }
        let note = folder.join(NOTE);
        fs::write(&note, self.wanted()?).map_err(|error| cannot("write", &note, &error))?;
        if self.is_installed(&folder)? {
            return Ok(());
        }
        Err(self.failure(&(self.probe)(&folder), "failed"))
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

    fn failure(&self, command: &Command, what: &str) -> Failure {
        Failure::new(format!(
            "`{}` {what}; its output is above\n\nThe tests and the harness need {}, in the versions of tests/peers/{}. Make sure that \
             {}, then run the same command again.",
            command_line(command),
            self.clients,
            self.pins[0],
            self.index,
        ))
    }
}

fn python_packages(folder: &Path, requirements: &str) -> Vec<Command> {
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv"]).arg(folder);
    let mut packages = Command::new(folder.join("bin/python"));
    packages.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
    packages.arg("--requirement").arg(pins(requirements));
    vec![environment, packages]
}

/// Whether Python finds these modules.
fn imports(folder: &Path, modules: &str) -> Command {
    command(folder.join("bin/python"), ["-c", &format!("import {modules}")])
}

fn install_node(folder: &Path) -> Result<Vec<Command>, Failure> {
    for file in ["package.json", "package-lock.json"] {
        copy(&pins(file), &folder.join(file))?;
    }
    let words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"];
    let mut packages = command("npm", words);
    packages.current_dir(folder);
    Ok(vec![packages])
}

fn probe_node(folder: &Path) -> Command {
    let mut node = command("node", ["-e", "require('ioredis'), require('redlock')"]);
    node.current_dir(folder);
    node
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

/// The exact versions are in go.mod, their checksums in go.sum.
fn install_go(folder: &Path) -> Result<Vec<Command>, Failure> {
    let mut program = Command::new("go");
    program.args(["build", "-mod=readonly", "-o"]).arg(folder.join("peer")).arg(".");
    // Another tool chain would be a download of minutes.
    program.current_dir(pins("go")).env("GOTOOLCHAIN", "local");
    Ok(vec![program])
}

/// The jars of Redisson and of what it needs, and the program of the interop tests.
fn install_redisson(folder: &Path) -> Result<Vec<Command>, Failure> {
    let jars = copy_jars("redisson/pom.xml", folder);
    let mut program = Command::new("javac");
    program.arg("-cp").arg(folder.join("*")).arg("-d").arg(folder).arg(pins("redisson/Peer.java"));
    Ok(vec![jars, program])
}

pub(crate) fn probe_zookeeper(folder: &Path) -> Command {
    command("java", ["-cp", &format!("{}/*", folder.display()), "org.apache.zookeeper.Version", "--full"])
}

pub(crate) fn copy_jars(manifest: &str, folder: &Path) -> Command {
    let mut jars = Command::new("mvn");
    jars.args(["--quiet", "--batch-mode", "--file"]).arg(pins(manifest)).arg(COPY_JARS);
    jars.arg(format!("-DoutputDirectory={}", folder.display()));
    jars
}

fn command<const N: usize>(program: impl AsRef<OsStr>, args: [&str; N]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// The folder of all clients.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    Ok(target_folder()?.join("peers"))
}

pub(crate) fn pins(file: &str) -> PathBuf {
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
/// The file beside a compiled program with Java's options.
const OPTIONS: &str = "options";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_pinned() {
        for file in ["requirements.txt", "s3/requirements.txt"] {
            let requirements = fs::read_to_string(pins(file)).unwrap();
            let packages = requirements.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            for package in packages {
                assert!(package.contains("=="), "{package}");
            }
        }
        let manifest = fs::read_to_string(pins("package.json")).unwrap();
        assert!(!manifest.contains(['^', '~', '*', '>']), "{manifest}");
    }

    #[test]
    fn a_client_that_cannot_be_installed_is_left_out_with_the_reason() {
        let peers = std::env::temp_dir().join(format!("xtask-peers-{}", std::process::id()));
        let fails = |_: &Path| Ok(vec![Command::new("false")]);
        let kind = Kind { install: fails, tools: &[], ..KINDS[0] };
        kind.offer(&peers).unwrap();
        let noted = fs::read_to_string(peers.join("python/missing")).unwrap();
        assert_eq!(noted, "`false` ended with exit status: 1; its output is above");
        // On the same day it is not tried again.
        let repaired = Kind { install: |_| panic!("it is tried again"), tools: &[], ..KINDS[0] };
        repaired.offer(&peers).unwrap();
        fs::remove_dir_all(peers).unwrap();
    }

    #[test]
    fn an_incomplete_installation_is_repeated() {
        for kind in KINDS {
            assert!(!kind.is_installed(Path::new("/nowhere")).unwrap());
        }
    }
}
