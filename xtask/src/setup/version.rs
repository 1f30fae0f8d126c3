//! Which parts are installed, in which version.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use super::command::{in_path, output_of};
use super::curator;
use super::part::Part;
use crate::failure::Failure;

/// Every part with its version; `None` when it is missing. An unusable part is an error.
pub(super) type Found = Vec<(Part, Option<String>)>;

pub(super) fn look(parts: &[Part]) -> Result<Found, Failure> {
    let java = if parts.contains(&Part::Java) { java_version() } else { None };
    let version = |part| match part {
        Part::Redis => redis_version(),
        Part::Java => Ok(java.clone()),
        Part::ZooKeeper => zookeeper_version(java.is_some()),
        Part::Postgres => Ok(postgres_version()),
        Part::Setpriv => Ok(setpriv_version()),
        Part::Python => python_version(),
        Part::Node => node_version(),
        Part::Npm => Ok(npm_version()),
        Part::Javac => Ok(javac_version()),
        Part::Curator => Ok(curator::version()),
        Part::Go => Ok(go_version()),
        Part::Maven => Ok(maven_version()),
        Part::Etcd => Ok(etcd_version()),
        Part::Chromium => {
            Ok(BROWSERS.iter().find(|name| in_path(name).is_some()).map(|_| "installed".into()))
        }
    };
    parts.iter().map(|&part| Ok((part, version(part)?))).collect()
}

pub(super) fn missing(found: &Found) -> Vec<Part> {
    found.iter().filter(|(_, version)| version.is_none()).map(|(part, _)| *part).collect()
}

fn redis_version() -> Result<Option<String>, Failure> {
    let Some(program) = in_path("redis-server") else { return Ok(None) };
    let output = output_of(Command::new(&program).arg("--version"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(version) = text.split_whitespace().find_map(|word| word.strip_prefix("v=")) else {
        return Err(unusable(&program, "does not print its version", &output));
    };
    require(&program.display().to_string(), version, REDIS_MINIMUM, "`SET` with both NX and GET")?;
    Ok(Some(version.to_owned()))
}

fn java_version() -> Option<String> {
    // macOS has a `java` that only fails without a Java installation.
    let output = output_of(Command::new(in_path("java")?).arg("-version")).ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Some(text.split('"').nth(1).unwrap_or("of an unknown version").to_owned())
}

fn zookeeper_version(java: bool) -> Result<Option<String>, Failure> {
    let chosen = std::env::var_os(CLASSPATH).filter(|path| !path.is_empty());
    let (class_path, origin) = match chosen {
        Some(path) => {
            let origin = format!("{CLASSPATH}={}", path.display());
            (path, origin)
        }
        None if Path::new(DEBIAN_JAR).is_file() => (OsString::from(DEBIAN_JAR), DEBIAN_JAR.to_owned()),
        None => return Ok(None),
    };
    if !java {
        return Ok(Some("of unknown version, without Java".into()));
    }
    let mut command = Command::new("java");
    // For a fast start: no optimizing compiler.
    command.arg("-XX:TieredStopAtLevel=1").arg("-cp").arg(&class_path).arg(VERSION_CLASS);
    let output = output_of(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text
        .split_once("version ")
        .and_then(|(_, rest)| rest.split([' ', ',', '-', '\n']).next())
        .filter(|_| output.status.success());
    let Some(version) = version else {
        return Err(unusable(Path::new(&origin), "holds no ZooKeeper that Java can load", &output));
    };
    require(&origin, version, ZOOKEEPER_MINIMUM, "container nodes")?;
    Ok(Some(version.to_owned()))
}

/// Debian's packages put no server into `PATH`.
fn postgres_version() -> Option<String> {
    let folders = std::fs::read_dir(DEBIAN_POSTGRES).into_iter().flatten().flatten();
    let packaged =
        folders.map(|version| version.path().join("bin/postgres")).find(|program| program.is_file());
    let output = output_of(Command::new(in_path("postgres").or(packaged)?).arg("--version")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().nth(2);
    output.status.success().then(|| version.unwrap_or("of an unknown version").to_owned())
}

fn setpriv_version() -> Option<String> {
    let output = output_of(Command::new(in_path("setpriv")?).arg("--version")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.split_whitespace().last().unwrap_or("of an unknown version").to_owned())
}

fn python_version() -> Result<Option<String>, Failure> {
    let Some(program) = in_path("python3") else { return Ok(None) };
    let output = output_of(Command::new(&program).args(["-c", PYTHON_VERSION]))?;
    if !output.status.success() {
        return Ok(None);
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    require(&program.display().to_string(), &version, PYTHON_MINIMUM, "redis-py")?;
    Ok(Some(version))
}

fn node_version() -> Result<Option<String>, Failure> {
    let Some(program) = in_path("node") else { return Ok(None) };
    let output = output_of(Command::new(&program).arg("--version"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(version) = text.trim().strip_prefix('v').filter(|_| output.status.success()) else {
        return Err(unusable(&program, "does not print its version", &output));
    };
    require(&program.display().to_string(), version, NODE_MINIMUM, "the clients of the interop test")?;
    Ok(Some(version.to_owned()))
}

fn npm_version() -> Option<String> {
    let output = output_of(Command::new(in_path("npm")?).arg("--version")).ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn javac_version() -> Option<String> {
    let output = output_of(Command::new(in_path("javac")?).arg("-version")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.trim().trim_start_matches("javac ").to_owned())
}

fn go_version() -> Option<String> {
    let output = output_of(Command::new(in_path("go")?).arg("version")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("go1."));
    output.status.success().then(|| format!("1.{}", version.unwrap_or("?")))
}

fn maven_version() -> Option<String> {
    let output = output_of(Command::new(in_path("mvn")?).args(["-B", "--version"])).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    output.status.success().then(|| version.unwrap_or("of an unknown version").to_owned())
}

fn etcd_version() -> Option<String> {
    let output = output_of(Command::new(in_path("etcd")?).arg("--version")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    output.status.success().then(|| version.unwrap_or("of an unknown version").to_owned())
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

fn unusable(path: &Path, problem: &str, output: &Output) -> Failure {
    let said = [&output.stderr[..], &output.stdout[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("(no output)");
    Failure::new(format!("{} {problem}: {first}", path.display()))
}

/// The variable, which the tests read as well, for a ZooKeeper that is not a Debian package.
const CLASSPATH: &str = "ZOOKEEPER_CLASSPATH";
/// Its manifest names its dependencies.
const DEBIAN_JAR: &str = "/usr/share/java/zookeeper.jar";
const VERSION_CLASS: &str = "org.apache.zookeeper.version.VersionInfoMain";
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";
/// The names of Chromium, which the harness looks for as well.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const REDIS_MINIMUM: (u32, u32) = (7, 0);
const ZOOKEEPER_MINIMUM: (u32, u32) = (3, 6);
const PYTHON_MINIMUM: (u32, u32) = (3, 10);
const NODE_MINIMUM: (u32, u32) = (16, 0);
const PYTHON_VERSION: &str = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])))";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_version_is_refused_with_the_reason() {
        require("redis-server", "7.0.15", REDIS_MINIMUM, "x").unwrap();
        require("redis-server", "8.2", REDIS_MINIMUM, "x").unwrap();
        let failure = require("redis-server", "6.2.14", REDIS_MINIMUM, "NX and GET").unwrap_err();
        let text = failure.to_string();
        assert_eq!(text, "redis-server is version 6.2.14, and polylock needs 7.0 or later, for NX and GET");
    }
}
