//! Which parts are installed, in which version.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::command::{in_path, output_of};
use super::curator;
use super::part::Part;
use crate::failure::Failure;

/// Every part with its version; `None` when it is missing. An unusable part is an error.
pub(super) type Found = Vec<(Part, Option<String>)>;

pub(super) fn look(parts: &[Part]) -> Result<Found, Failure> {
    parts.iter().map(|&part| Ok((part, version(part)?))).collect()
}

pub(super) fn missing(found: &Found) -> Vec<Part> {
    found.iter().filter(|(_, version)| version.is_none()).map(|(part, _)| *part).collect()
}

fn version(part: Part) -> Result<Option<String>, Failure> {
    // What prints the version, and the text before it.
    let (program, args, before): (_, &[&str], _) = match part {
        Part::Redis => (in_path("redis-server"), &["--version"], "v="),
        Part::Java => (in_path("java"), &["-version"], "version \""),
        Part::Postgres => (in_path("postgres").or_else(packaged_postgres), &["--version"], "(PostgreSQL) "),
        Part::PgBouncer => (in_path("pgbouncer").or_else(packaged_pgbouncer), &["--version"], "PgBouncer "),
        Part::Setpriv => (in_path("setpriv"), &["--version"], "util-linux "),
        Part::Python => (in_path("python3"), &["-c", PYTHON_VERSION], ""),
        Part::Node => (in_path("node"), &["--version"], "v"),
        Part::Npm => (in_path("npm"), &["--version"], ""),
        Part::Javac => (in_path("javac"), &["-version"], "javac "),
        Part::Go => (in_path("go"), &["version"], "go version go"),
        Part::Maven => (in_path("mvn"), &["-B", "--version"], "Apache Maven "),
        Part::Etcd => (in_path("etcd"), &["--version"], "etcd Version: "),
        Part::ZooKeeper => return zookeeper_version(),
        Part::Curator => return Ok(curator::version()),
        Part::Chromium => {
            return Ok(BROWSERS.iter().find(|name| in_path(name).is_some()).map(|_| "installed".into()));
        }
    };
    let Some(program) = program else { return Ok(None) };
    let output = output_of(Command::new(&program).args(args))?;
    // macOS has a `java` that only fails without a Java installation.
    if !output.status.success() {
        return Ok(None);
    }
    let version = version_in(&output, before).unwrap_or_else(|| "of an unknown version".into());
    let origin = program.display().to_string();
    match part {
        Part::Redis => require(&origin, &version, (7, 0), "`SET` with both NX and GET")?,
        Part::Python => require(&origin, &version, (3, 10), "redis-py")?,
        Part::Node => require(&origin, &version, (16, 0), "the clients of the interop test")?,
        _ => {}
    }
    Ok(Some(version))
}

fn version_in(output: &Output, before: &str) -> Option<String> {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let (_, rest) = said.split_once(before)?;
    let version = rest.split([' ', ',', '-', '"', '\n', '\u{1b}']).next()?;
    (!version.is_empty()).then(|| version.to_owned())
}

fn zookeeper_version() -> Result<Option<String>, Failure> {
    let chosen = std::env::var_os(CLASSPATH).filter(|path| !path.is_empty());
    let (class_path, origin) = match chosen {
        Some(path) => {
            let origin = format!("{CLASSPATH}={}", path.display());
            (path, origin)
        }
        None if Path::new(DEBIAN_JAR).is_file() => (OsString::from(DEBIAN_JAR), DEBIAN_JAR.to_owned()),
        None => return Ok(None),
    };
    if version(Part::Java)?.is_none() {
        return Ok(Some("of unknown version, without Java".into()));
    }
    let mut command = Command::new("java");
    // For a fast start: no optimizing compiler.
    command.arg("-XX:TieredStopAtLevel=1").arg("-cp").arg(&class_path).arg(VERSION_CLASS);
    let output = output_of(&mut command)?;
    let Some(version) = version_in(&output, "version ").filter(|_| output.status.success()) else {
        let said = [&output.stderr[..], &output.stdout[..]].concat();
        let said = String::from_utf8_lossy(&said);
        let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("(no output)");
        return Err(Failure::new(format!("{origin} holds no ZooKeeper that Java can load: {first}")));
    };
    require(&origin, &version, (3, 6), "container nodes")?;
    Ok(Some(version))
}

/// Debian's packages put no server into `PATH`.
fn packaged_postgres() -> Option<PathBuf> {
    let folders = std::fs::read_dir(DEBIAN_POSTGRES).into_iter().flatten().flatten();
    folders.map(|version| version.path().join("bin/postgres")).find(|program| program.is_file())
}

/// Debian puts it where only root looks.
fn packaged_pgbouncer() -> Option<PathBuf> {
    Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|program| program.is_file())
}

fn require(what: &str, version: &str, minimum: (u32, u32), for_what: &str) -> Result<(), Failure> {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let have = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if have >= minimum {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what} is version {version}, and polylock needs {}.{} or later, for {for_what}",
        minimum.0, minimum.1
    )))
}

/// The variable, which the tests read as well, for a ZooKeeper that is not a Debian package.
const CLASSPATH: &str = "ZOOKEEPER_CLASSPATH";
/// Its manifest names its dependencies.
const DEBIAN_JAR: &str = "/usr/share/java/zookeeper.jar";
const VERSION_CLASS: &str = "org.apache.zookeeper.version.VersionInfoMain";
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";
/// The names of Chromium, which the harness looks for as well.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const PYTHON_VERSION: &str = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])))";

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_version_is_what_follows_a_text() {
        for (text, before, version) in [
            ("Redis server v=7.0.15 sha=0", "v=", "7.0.15"),
            ("openjdk version \"17.0.17\" 2025-10-21\n", "version \"", "17.0.17"),
            ("go version go1.19.8 linux/amd64", "go version go", "1.19.8"),
            ("Apache ZooKeeper, version 3.8.0-1 2022", "version ", "3.8.0"),
            ("9.2.0\n", "", "9.2.0"),
        ] {
            let output = |stdout: &str, stderr: &str| {
                let [stdout, stderr] = [stdout, stderr].map(|text| text.as_bytes().to_vec());
                Output { status: ExitStatus::from_raw(0), stdout, stderr }
            };
            assert_eq!(version_in(&output(text, ""), before).as_deref(), Some(version));
            assert_eq!(version_in(&output("", text), before).as_deref(), Some(version));
        }
    }

    #[test]
    fn an_old_version_is_refused_with_the_reason() {
        require("redis-server", "7.0.15", (7, 0), "x").unwrap();
        require("redis-server", "8.2", (7, 0), "x").unwrap();
        let failure = require("redis-server", "6.2.14", (7, 0), "NX and GET").unwrap_err();
        let text = failure.to_string();
        assert_eq!(text, "redis-server is version 6.2.14, and polylock needs 7.0 or later, for NX and GET");
    }
}
