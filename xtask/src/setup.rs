//! Finds the servers and interpreters that tests and measurements need, installs what is missing with Debian's own packages, or
//! prints what to type.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use crate::command::{Result, shell, succeed, target_folder};
use crate::interrupt;

/// All parts: their packages, or `-`, the service in that of Debian, the least version, and what prints the version.
const PARTS: &str = r#"
part         | Debian                  | Fedora, RHEL          | Arch                 | macOS      | service      | least | version
redis-server | redis-server            | /usr/bin/redis-server | valkey               | redis      | redis-server | 7.0   | redis-server --version
java         | default-jre-headless    | java-headless         | jre-openjdk-headless | openjdk    | -            | -     | java -version
javac        | default-jdk-headless    | java-devel            | jdk-openjdk          | openjdk    | -            | -     | javac -version
ZooKeeper    | zookeeper               | -                     | -                    | zookeeper  | -            | 3.6   | java -XX:TieredStopAtLevel=1 -cp "${ZOOKEEPER_CLASSPATH:-/usr/share/java/zookeeper.jar}" org.apache.zookeeper.version.VersionInfoMain
Curator      | libcurator-recipes-java | -                     | -                    | -          | -            | -     | test -n "$CURATOR_CLASSPATH" || ls /usr/share/java/curator-recipes-*.jar
mvn          | maven                   | maven                 | maven                | maven      | -            | -     | mvn -B --version
PostgreSQL   | postgresql              | postgresql-server     | postgresql           | postgresql | postgresql   | -     | PATH="$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; postgres --version
pgbouncer    | pgbouncer               | pgbouncer             | pgbouncer            | pgbouncer  | pgbouncer    | -     | PATH="$PATH:/usr/sbin"; pgbouncer --version
setpriv      | util-linux              | util-linux            | util-linux           | -          | -            | -     | test $(uname) != Linux || setpriv --version
python3-venv | python3-venv            | python3               | python               | python     | -            | 3.10  | python3 -c 'import sys, venv, ensurepip; print(sys.version)'
node         | nodejs                  | nodejs                | nodejs               | node       | -            | 16.0  | node --version
npm          | npm                     | /usr/bin/npm          | npm                  | -          | -            | -     | npm --version
go           | golang-go               | golang                | go                   | go         | -            | -     | go version
etcd         | etcd-server             | etcd                  | -                    | etcd       | etcd         | -     | etcd --version
MariaDB      | mariadb-server          | mariadb-server        | mariadb              | mariadb    | mariadb      | 10.6  | PATH="$PATH:/usr/sbin"; mariadbd --version
"#;
/// In the order of the columns.
const SYSTEMS: [(&str, &str); 4] = [
    ("Debian, Ubuntu", "sudo apt-get update && sudo apt-get install -y --no-install-recommends"),
    ("Fedora, RHEL", "sudo dnf install -y"),
    ("Arch", "sudo pacman -S --needed"),
    ("macOS", "brew install"),
];
/// What other systems than Debian have no package of, or one that is not found.
const BY_HAND: &str = r#"
ZooKeeper of brew:
    export ZOOKEEPER_CLASSPATH="$(brew --prefix zookeeper)/libexec/lib/*"

ZooKeeper elsewhere:
    curl -fsSL https://archive.apache.org/dist/zookeeper/zookeeper-3.8.4/apache-zookeeper-3.8.4-bin.tar.gz | tar xz
    export ZOOKEEPER_CLASSPATH="$PWD/apache-zookeeper-3.8.4-bin/lib/*"

Curator elsewhere than on Debian:
    mvn() { curl -fsSL --create-dirs --output-dir curator -O https://repo1.maven.org/maven2/$1/$2/$3/$2-$3.jar; }
    for part in client framework recipes; do mvn org/apache/curator curator-$part 5.4.0; done
    mvn com/google/guava guava 31.1-jre; mvn com/google/guava failureaccess 1.0.1
    export CURATOR_CLASSPATH="$PWD/curator/*:$ZOOKEEPER_CLASSPATH"
"#;

/// The stores of locks, and what starts and ends them.
const SERVERS: &str = "redis-server java ZooKeeper PostgreSQL pgbouncer setpriv";
/// What the harness and its tests do without, and what is left out then.
const OPTIONAL: &[(&str, &str)] = &[("etcd", "etcd is neither tested nor measured")];
/// What the first tier does without as well, as it takes a minute to install.
const OF_THE_FULL_TIER: &[(&str, &str)] = &[("MariaDB", "MySQL and MariaDB are not tested")];
/// How long a command may take that installs something optional.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Finds what the servers need, installs what is missing, and prints the versions.
pub(crate) fn ensure() -> Result {
    ensure_parts(SERVERS, Duration::from_secs(3600))
}

/// As [`ensure`], for the parts of these names. A command may take so long.
pub(crate) fn ensure_parts(names: &str, limit: Duration) -> Result {
    let parts = parts(names);
    let look = || parts.iter().map(Part::version).collect::<Result<Vec<_>>>();
    let (mut found, mut missing) = (look(), Vec::new());
    if found.is_err() {
        missing = parts.iter().filter(|part| part.version().is_err()).collect();
        install(&missing, limit)?;
        found = look();
    }
    let found = found
        .map_err(|why| format!("the packages are installed, but {why}\n\n{}", instructions(&missing)))?;
    eprintln!("    set-up: {}", found.join(", "));
    Ok(())
}

/// Installs what the harness and its tests do without: where apt has it, and not twice on a day when it failed.
pub(crate) fn offer_optional() -> Result {
    offer_optional_of_first_tier()?;
    offer(OF_THE_FULL_TIER)
}

/// The same for the first tier.
pub(crate) fn offer_optional_of_first_tier() -> Result {
    offer(OPTIONAL)
}

fn offer(parts: &[(&str, &str)]) -> Result {
    for (name, without) in parts {
        let why = once_a_day(&note_of(name)?, || ensure_parts(name, LIMIT))?;
        why.inspect(|why| eprintln!("    set-up: {without}: {why}"));
    }
    Ok(())
}

/// Forgets which optional parts could not be installed.
pub(crate) fn forget_failures() -> Result {
    // Mostly there is no note.
    OPTIONAL
        .iter()
        .chain(OF_THE_FULL_TIER)
        .try_for_each(|(name, _)| note_of(name).map(|note| drop(fs::remove_file(note))))
}

fn note_of(name: &str) -> Result<PathBuf> {
    Ok(target_folder()?.join(format!("setup/no-{name}")))
}

/// Installs something optional, or returns why it is missing. That is noted, and on the same day it is not tried again.
pub(crate) fn once_a_day(note: &Path, install: impl FnOnce() -> Result) -> Result<Option<String>> {
    let days = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400)
    };
    let noted = note.metadata().and_then(|data| data.modified());
    if noted.is_ok_and(|noted| days(noted) == days(SystemTime::now())) {
        let why = fs::read_to_string(note).unwrap_or_default();
        return Ok(Some(format!("{why} (not tried again today, but by `cargo xtask setup`)")));
    }
    let Err(why) = install() else { return Ok(None) };
    interrupt::check()?;
    // What is optional fails no run: without a note it is tried again.
    let _ = note.parent().map_or(Ok(()), fs::create_dir_all);
    let _ = fs::write(note, why.lines().next().unwrap_or_default());
    Ok(Some(why))
}

/// A row of the table.
struct Part {
    name: &'static str,
    /// In the order of [`SYSTEMS`].
    packages: [&'static str; 4],
    service: &'static str,
    least: &'static str,
    version: &'static str,
}

/// Those of these names.
fn parts(names: &str) -> Vec<Part> {
    let read = |row: &'static str| {
        let mut cells = row.splitn(8, '|').map(str::trim);
        let mut next = || cells.next().unwrap_or_default();
        let (name, packages) = (next(), [next(), next(), next(), next()]);
        Part { name, packages, service: next(), least: next(), version: next() }
    };
    let is_named = |part: &Part| names.split_whitespace().any(|name| name == part.name);
    PARTS.trim().lines().map(read).filter(is_named).collect()
}

impl Part {
    /// Its name and version, or why it cannot be used.
    fn version(&self) -> Result<String> {
        let output = shell(self.version).output().map_err(|error| error.to_string())?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if !output.status.success() {
            return Err(format!("not {}: {}", self.name, said.lines().next().unwrap_or_default()));
        }
        // The first number with a point.
        let mut numbers =
            said.split(|c: char| !c.is_ascii_digit() && c != '.').map(|number| number.trim_matches('.'));
        let version = numbers.find(|number| number.contains('.')).unwrap_or_default();
        if numbers_of(version) < numbers_of(self.least) {
            return Err(format!("not {} {}: version {version} is too old", self.name, self.least));
        }
        Ok(format!("{} {version}", self.name).trim().to_owned())
    }
}

fn numbers_of(version: &str) -> Vec<u32> {
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

fn install(missing: &[&Part], limit: Duration) -> Result {
    interrupt::check()?;
    let names = missing.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    eprintln!("    set-up: without {names}: installing with apt-get");
    let mut apt = shell(include_str!("install.sh"));
    apt.env("PACKAGES", join(missing, |part| part.packages[0]))
        .env("SERVICES", join(missing, |part| part.service));
    let is_installed = succeed(apt.env("LIMIT", limit.as_secs().to_string()).stdout(io::stderr())).is_ok();
    interrupt::check()?;
    if is_installed {
        Ok(())
    } else {
        Err(format!("{names}: cannot be installed\n\n{}", instructions(missing)))
    }
}

/// The words in these cells.
fn join(parts: &[&Part], cell: impl Fn(&Part) -> &'static str) -> String {
    parts.iter().map(|part| cell(part)).filter(|cell| *cell != "-").collect::<Vec<_>>().join(" ")
}

/// What to type where the set-up cannot install.
fn instructions(missing: &[&Part]) -> String {
    let mut text = String::from("Install what is missing, then run the same command again.\n");
    for (at, (system, command)) in SYSTEMS.iter().enumerate() {
        let packages = join(missing, |part| part.packages[at]);
        if !packages.is_empty() {
            let _ = write!(text, "\n{system}:\n    {command} {packages}\n");
        }
    }
    let is_missing = |how: &&str| missing.iter().any(|part| how.starts_with(part.name));
    BY_HAND.trim().split("\n\n").filter(is_missing).fold(text, |text, how| format!("{text}\n{how}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_version_is_not_used() {
        let part = |version| Part { version, ..parts("redis-server").remove(0) };
        assert_eq!(part("echo v=10.0").version().unwrap(), "redis-server 10.0");
        assert!(part("echo v=6.2.14").version().unwrap_err().contains("6.2.14 is too old"));
        assert!(part("echo v=7.0.15; exit 1").version().is_err());
    }
}
