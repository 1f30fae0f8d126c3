//! Finds the servers and interpreters that tests and measurements need, installs what is missing, or prints instructions.
//!
//! Installs only with Debian's own packages. The packaged services of Redis and etcd must not run, as the tests start their own
//! servers. Without systemd (a container) Debian does not start them; under systemd a unit is masked while its package is
//! installed and disabled afterwards. The package `zookeeper` has no service.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::failure::Failure;
use crate::interrupt;
use crate::steps::command_line;

/// Finds what the servers need, installs what is missing, and prints the versions.
///
/// # Errors
///
/// When something is missing and cannot be installed: the message has the commands to type.
pub(crate) fn ensure() -> Result<(), Failure> {
    let linux = cfg!(target_os = "linux").then_some(Part::Setpriv);
    ensure_parts(&[Part::Redis, Part::Java, Part::ZooKeeper].into_iter().chain(linux).collect::<Vec<_>>())
}

/// As [`ensure`], for what the clients of other languages need.
///
/// # Errors
///
/// As for [`ensure`].
pub(crate) fn ensure_interpreters() -> Result<(), Failure> {
    ensure_parts(&[Part::Python, Part::Node, Part::Npm, Part::Javac, Part::Curator])
}

/// As [`ensure`], for the peers in Go, and the etcd server of one of them.
///
/// # Errors
///
/// As for [`ensure`].
pub(crate) fn ensure_go() -> Result<(), Failure> {
    ensure_parts(&[Part::Go, Part::Etcd])
}

/// As [`ensure`], for the peers that Maven installs.
///
/// # Errors
///
/// As for [`ensure`].
pub(crate) fn ensure_maven() -> Result<(), Failure> {
    ensure_parts(&[Part::Maven])
}

/// Installs Chromium where apt has it. The report's tests and screenshots use it, and do without it.
pub(crate) fn offer_browser() {
    let wanted = !has_browser() && in_path("apt-get").is_some();
    if let Some(prefix) = privilege().filter(|_| wanted) {
        eprintln!("    set-up: Chromium is missing: installing with apt-get");
        let words = [&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], APT_OPTIONS].concat();
        attempt(prefix, &[&words[..], &["install", "-y", "--no-install-recommends", "chromium"]].concat());
    }
    if !has_browser() {
        eprintln!(
            "    set-up: Chromium is missing: no screenshots of the report, and its tests in a browser are left out"
        );
    }
}

fn has_browser() -> bool {
    BROWSERS.iter().any(|name| in_path(name).is_some())
}

fn ensure_parts(parts: &[Part]) -> Result<(), Failure> {
    let mut found = look(parts)?;
    let missing = missing(&found);
    if !missing.is_empty() {
        install(&missing)?;
        found = look(parts)?;
    }
    let still: Vec<Part> = self::missing(&found);
    if !still.is_empty() {
        return Err(Failure::new(format!(
            "the packages are installed, but {} not found\n\n{}",
            are(&still),
            instructions(&still)
        )));
    }
    let line: Vec<String> = found
        .iter()
        .filter_map(|(part, version)| Some(format!("{} {}", part.names().name, version.as_ref()?)))
        .collect();
    eprintln!("    set-up: {}", line.join(", "));
    Ok(())
}

/// A required program or package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Redis,
    Java,
    ZooKeeper,
    /// Ends a server with the test that started it.
    Setpriv,
    /// With its modules for virtual environments, a separate package of Debian.
    Python,
    Node,
    Npm,
    /// The compiler, a separate package of Debian.
    Javac,
    Curator,
    Go,
    Etcd,
    Maven,
}

/// The names of a part, for people and for package managers. Without a package it is missing there, or comes with another.
struct Names {
    name: &'static str,
    debian: &'static str,
    /// `dnf` accepts a file in place of a name, which fits Redis and Valkey, and any npm.
    fedora: Option<&'static str>,
    arch: Option<&'static str>,
    brew: Option<&'static str>,
}

impl Part {
    fn names(self) -> Names {
        let (name, debian, [fedora, arch, brew]) = match self {
            Self::Redis => (
                "redis-server",
                REDIS_PACKAGE,
                [Some("/usr/bin/redis-server"), Some("valkey"), Some("redis")],
            ),
            Self::Java => (
                "java",
                "default-jre-headless",
                [Some("java-headless"), Some("jre-openjdk-headless"), Some("openjdk")],
            ),
            Self::ZooKeeper => ("ZooKeeper", "zookeeper", [None, None, Some("zookeeper")]),
            Self::Setpriv => ("setpriv", "util-linux", [Some("util-linux"), Some("util-linux"), None]),
            Self::Python => {
                ("python3 with venv", "python3-venv", [Some("python3"), Some("python"), Some("python")])
            }
            Self::Node => ("node", "nodejs", [Some("nodejs"), Some("nodejs"), Some("node")]),
            Self::Npm => ("npm", "npm", [Some("/usr/bin/npm"), Some("npm"), None]),
            Self::Javac => {
                ("javac", "default-jdk-headless", [Some("java-devel"), Some("jdk-openjdk"), Some("openjdk")])
            }
            Self::Curator => ("Curator", "libcurator-recipes-java", [None, None, None]),
            Self::Go => ("go", "golang-go", [Some("golang"), Some("go"), Some("go")]),
            Self::Maven => ("mvn", "maven", [Some("maven"), Some("maven"), Some("maven")]),
            Self::Etcd => ("etcd", "etcd-server", [Some("etcd"), None, Some("etcd")]),
        };
        Names { name, debian, fedora, arch, brew }
    }

    /// The service in its package of Debian.
    fn unit(self) -> Option<&'static str> {
        match self {
            Self::Redis => Some("redis-server.service"),
            Self::Etcd => Some("etcd.service"),
            _ => None,
        }
    }
}

/// Every part with its version; `None` when it is missing. An unusable part is an error.
type Found = Vec<(Part, Option<String>)>;

fn look(parts: &[Part]) -> Result<Found, Failure> {
    let java = if parts.contains(&Part::Java) { java_version() } else { None };
    let version = |part| match part {
        Part::Redis => redis_version(),
        Part::Java => Ok(java.clone()),
        Part::ZooKeeper => zookeeper_version(java.is_some()),
        Part::Setpriv => Ok(setpriv_version()),
        Part::Python => python_version(),
        Part::Node => node_version(),
        Part::Npm => Ok(npm_version()),
        Part::Javac => Ok(javac_version()),
        Part::Curator => Ok(curator_version()),
        Part::Go => Ok(go_version()),
        Part::Maven => Ok(maven_version()),
        Part::Etcd => Ok(etcd_version()),
    };
    parts.iter().map(|&part| Ok((part, version(part)?))).collect()
}

fn missing(found: &Found) -> Vec<Part> {
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

/// Compiling the program that uses it shows whether it is usable.
fn curator_version() -> Option<String> {
    if curator_chosen().is_some() {
        return Some("of an unknown version".into());
    }
    let jars = Path::new(DEBIAN_JARS).read_dir().ok()?;
    let names = jars.filter_map(|jar| jar.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| Some(name.strip_prefix("curator-recipes-")?.strip_suffix(".jar")?.to_owned()))
        .next()
}

/// The class path of Curator and its dependencies.
pub(crate) fn curator_class_path() -> String {
    // The manifest of the first jar names its dependencies, except for a logger.
    curator_chosen().unwrap_or_else(|| {
        ["curator-recipes", "slf4j-simple"].map(|jar| format!("{DEBIAN_JARS}/{jar}.jar")).join(":")
    })
}

fn curator_chosen() -> Option<String> {
    std::env::var(CURATOR_CLASSPATH).ok().filter(|path| !path.is_empty())
}

fn install(missing: &[Part]) -> Result<(), Failure> {
    let why_not = match privilege() {
        _ if in_path("apt-get").is_none() => "this system has no apt-get",
        None => "this is not root, and sudo is missing or asks for a password",
        Some(prefix) => return install_with_apt(missing, prefix),
    };
    Err(Failure::new(format!(
        "{} missing, and cannot be installed: {why_not}\n\n{}",
        are(missing),
        instructions(missing)
    )))
}

fn install_with_apt(missing: &[Part], prefix: &[&str]) -> Result<(), Failure> {
    eprintln!("    set-up: {} missing: installing with apt-get", are(missing));
    let systemd = Path::new("/run/systemd/system").is_dir();
    let units = missing.iter().filter_map(|part| part.unit()).filter(|_| systemd).collect::<Vec<_>>();
    for unit in &units {
        attempt(prefix, &["systemctl", "--quiet", "mask", "--runtime", unit]);
    }
    let installed = apt(prefix, missing);
    for unit in &units {
        attempt(prefix, &["systemctl", "--quiet", "unmask", "--runtime", unit]);
        if installed.is_ok() {
            attempt(prefix, &["systemctl", "--quiet", "disable", unit]);
        }
    }
    installed
}

fn apt(prefix: &[&str], missing: &[Part]) -> Result<(), Failure> {
    let apt = [&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], APT_OPTIONS].concat();
    // An unreachable package source fails the update, but need not fail the installation.
    attempt(prefix, &[&apt[..], &["update"]].concat());
    interrupt::check()?;
    let packages: Vec<&str> = missing.iter().map(|part| part.names().debian).collect();
    let install = [&apt[..], &["install", "-y", "--no-install-recommends"], &packages].concat();
    let line = [prefix, &install].concat().join(" ");
    let done = attempt(prefix, &install);
    interrupt::check()?;
    if done { Ok(()) } else { Err(Failure::new(format!("`{line}` failed; its output is above"))) }
}

fn attempt(prefix: &[&str], words: &[&str]) -> bool {
    let words = [prefix, words].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    succeeds(&mut command)
}

/// Runs a command that may fail. Its output goes to standard error.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(std::io::stderr());
    eprintln!("    {}", command_line(command));
    match command.status() {
        Ok(status) if status.success() => true,
        Ok(status) => {
            eprintln!("    (ended with {status})");
            false
        }
        Err(error) => {
            eprintln!("    (cannot be run: {error})");
            false
        }
    }
}

/// The prefix of a command that must run as root, if that is possible without a password.
fn privilege() -> Option<&'static [&'static str]> {
    let root = output_of(Command::new("id").arg("-u")).is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if root {
        return Some(&[]);
    }
    in_path("sudo")?;
    let allowed = output_of(Command::new("sudo").args(["-n", "true"])).ok()?.status.success();
    allowed.then_some(&["sudo", "-n"])
}

fn instructions(missing: &[Part]) -> String {
    let debian: Vec<&str> = missing.iter().map(|part| part.names().debian).collect();
    let debian = format!(
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends {}",
        debian.join(" ")
    );
    let lines = |part, lines: &'static [&'static str]| if missing.contains(&part) { lines } else { &[] };
    let curator = lines(Part::Curator, DOWNLOAD_CURATOR);
    let by_hand = [lines(Part::ZooKeeper, DOWNLOAD), curator].concat();
    let from_brew = [lines(Part::ZooKeeper, FROM_BREW), curator].concat();
    let packages = |command: &str, of: fn(Names) -> Option<&'static str>| {
        let names: Vec<&str> = missing.iter().filter_map(|part| of(part.names())).collect();
        (!names.is_empty()).then(|| format!("{command} {}", names.join(" ")))
    };
    let mut text = String::from("Install what is missing, then run the same command again.\n");
    section(&mut text, "Debian, Ubuntu:", Some(debian), &[]);
    section(&mut text, "Fedora, RHEL:", packages("sudo dnf install -y", |names| names.fedora), &by_hand);
    section(&mut text, "Arch:", packages("sudo pacman -S --needed", |names| names.arch), &by_hand);
    section(&mut text, "macOS:", packages("brew install", |names| names.brew), &from_brew);
    text
}

fn section(text: &mut String, title: &str, install: Option<String>, more: &[&str]) {
    let lines: Vec<&str> = install.as_deref().into_iter().chain(more.iter().copied()).collect();
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for line in lines {
        let _ = writeln!(text, "    {line}");
    }
}

fn names(parts: &[Part]) -> String {
    parts.iter().map(|part| part.names().name).collect::<Vec<_>>().join(", ")
}

fn are(parts: &[Part]) -> String {
    format!("{} {}", names(parts), if parts.len() == 1 { "is" } else { "are" })
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

/// Runs a command without input, and returns its output.
pub(crate) fn output_of(command: &mut Command) -> Result<Output, Failure> {
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new(format!("cannot run `{}`: {error}", command_line(command))))
}

/// Finds a program in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    find(program, &path)
}

fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| {
        file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    })
}

/// The names of Chromium, which the harness looks for as well.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// The variable, which the tests read as well, for a ZooKeeper that is not a Debian package.
const CLASSPATH: &str = "ZOOKEEPER_CLASSPATH";
/// The same for Curator.
const CURATOR_CLASSPATH: &str = "CURATOR_CLASSPATH";
const DEBIAN_JARS: &str = "/usr/share/java";
/// Its manifest names its dependencies.
const DEBIAN_JAR: &str = "/usr/share/java/zookeeper.jar";
const VERSION_CLASS: &str = "org.apache.zookeeper.version.VersionInfoMain";
const REDIS_PACKAGE: &str = "redis-server";
const REDIS_MINIMUM: (u32, u32) = (7, 0);
const ZOOKEEPER_MINIMUM: (u32, u32) = (3, 6);
const PYTHON_MINIMUM: (u32, u32) = (3, 10);
const NODE_MINIMUM: (u32, u32) = (16, 0);
const PYTHON_VERSION: &str = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])))";
/// Another apt-get may be running, above all on a new machine.
const APT_OPTIONS: &[&str] = &["-q", "-o", "DPkg::Lock::Timeout=300"];
const DOWNLOAD: &[&str] = &[
    "curl -fsSL https://archive.apache.org/dist/zookeeper/zookeeper-3.8.4/apache-zookeeper-3.8.4-bin.tar.gz | tar xz",
    "export ZOOKEEPER_CLASSPATH=\"$PWD/apache-zookeeper-3.8.4-bin/lib/*\"",
];
const FROM_BREW: &[&str] = &["export ZOOKEEPER_CLASSPATH=\"$(brew --prefix zookeeper)/libexec/lib/*\""];
const DOWNLOAD_CURATOR: &[&str] = &[
    "mvn() { curl -fsSL --create-dirs --output-dir curator -O https://repo1.maven.org/maven2/$1/$2/$3/$2-$3.jar; }",
    "for part in client framework recipes; do mvn org/apache/curator curator-$part 5.4.0; done",
    "mvn com/google/guava guava 31.1-jre; mvn com/google/guava failureaccess 1.0.1",
    "export CURATOR_CLASSPATH=\"$PWD/curator/*:$ZOOKEEPER_CLASSPATH\"",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_name_only_what_is_missing() {
        let text = instructions(&[Part::Redis]);
        assert!(text.contains("apt-get install -y --no-install-recommends redis-server\n"), "{text}");
        assert!(text.contains("sudo dnf install -y /usr/bin/redis-server\n"), "{text}");
        assert!(text.contains("sudo pacman -S --needed valkey\n"), "{text}");
        assert!(text.contains("brew install redis\n"), "{text}");
        assert!(!text.to_lowercase().contains("zookeeper"), "{text}");
    }

    #[test]
    fn instructions_for_zookeeper_are_complete_where_it_is_not_packaged() {
        let text = instructions(&[Part::ZooKeeper]);
        assert_eq!(text.matches("apache-zookeeper-3.8.4-bin.tar.gz").count(), 2, "{text}");
        assert_eq!(text.matches("export ZOOKEEPER_CLASSPATH=").count(), 3, "{text}");
        assert!(!text.contains("dnf install"), "{text}");
    }

    #[test]
    fn instructions_for_interpreters_name_each_package_once() {
        let text = instructions(&[Part::Python, Part::Node, Part::Npm]);
        assert!(text.contains("--no-install-recommends python3-venv nodejs npm\n"), "{text}");
        assert!(text.contains("sudo dnf install -y python3 nodejs /usr/bin/npm\n"), "{text}");
        assert!(text.contains("brew install python node\n"), "{text}");
    }

    #[test]
    fn instructions_for_curator_are_complete_where_it_is_not_packaged() {
        let text = instructions(&[Part::Javac, Part::Curator]);
        assert!(text.contains("default-jdk-headless libcurator-recipes-java\n"), "{text}");
        assert_eq!(text.matches("export CURATOR_CLASSPATH=").count(), 3, "{text}");
        assert!(!text.contains("export ZOOKEEPER_CLASSPATH="), "{text}");
    }

    #[test]
    fn an_old_version_is_refused_with_the_reason() {
        require("redis-server", "7.0.15", REDIS_MINIMUM, "x").unwrap();
        require("redis-server", "8.2", REDIS_MINIMUM, "x").unwrap();
        let failure = require("redis-server", "6.2.14", REDIS_MINIMUM, "NX and GET").unwrap_err();
        let text = failure.to_string();
        assert_eq!(text, "redis-server is version 6.2.14, and polylock needs 7.0 or later, for NX and GET");
    }

    #[test]
    fn programs_are_executable_files() {
        assert!(find("sh", OsStr::new("/nowhere:/bin:/usr/bin")).is_some());
        assert_eq!(find("passwd", OsStr::new("/etc")), None);
        assert_eq!(find("etc", OsStr::new("/")), None);
    }
}
