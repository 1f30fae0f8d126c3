//! Installs the lock clients of other languages for the interop tests and for the harness, a ZooKeeper for ensembles, and other
//! releases of servers.
//!
//! `tests/peers/` pins their versions. They are installed below the target directory by `peers.sh`, except for Curator, a package
//! of the system, of which only the program that uses it is compiled. A note of the installed versions is written at the end; the
//! tests check it, so that they never run with other versions.
//!
//! For the harness all of them are optional: in place of a client that cannot be installed the reason is noted, which the report
//! then shows.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use crate::command::{Result, shell, succeed_within, target_folder, workspace};
use crate::interrupt;
use crate::setup::{LIMIT, ensure_parts, once_a_day};

/// All peers: their folders, who needs them or is offered them, the tools that install them, the files with the versions, of which
/// the note is a copy (and the program, where it is compiled), and what is in it.
const PEERS: &str = "\
python           | tests, harness | python3-venv  | requirements.txt                   | redis-py, python-redis-lock, pottery, kazoo
s3               | tests, harness | python3-venv  | s3/requirements.txt                | boto3 and moto, a server that answers as S3 does
postgres         | tests          | python3-venv  | postgres/requirements.txt          | psycopg
node             | tests, harness | node npm      | package-lock.json                  | ioredis, node-redlock
java             | tests, harness | javac Curator | zookeeper/Peer.java                | Curator
redisson         | tests, harness | javac mvn     | redisson/pom.xml redisson/Peer.java | Redisson
go               | harness        | go            | go/go.mod go/go.sum go/main.go     | redsync, etcd's client
zookeeper-server | harness, soak  | mvn           | zookeeper-server/pom.xml           | ZooKeeper 3.9.5 for ensembles, as others may lose writes when a leader dies
redis-6.2        | servers        | python3-venv  | servers/redis-6.2.txt              | Redis 6.2
redis-8.2        | servers        | python3-venv  | servers/redis-8.2.txt              | Redis 8.2
valkey-9.1       | servers        | python3-venv  | servers/valkey-9.1.txt             | Valkey 9.1
zk-3.5           | servers        | mvn           | zookeeper-server/pom.xml           | ZooKeeper 3.5
zk-3.9           | servers        | mvn           | zookeeper-server/pom.xml           | ZooKeeper 3.9
";

/// A row of the table.
#[derive(Clone, Copy)]
struct Peer {
    folder: &'static str,
    users: &'static str,
    tools: &'static str,
    pins: &'static str,
    what: &'static str,
}

/// Those of this user.
fn peers_of(user: &str) -> impl Iterator<Item = Peer> {
    let read = |row: &'static str| {
        let mut cells = row.split('|').map(str::trim);
        let mut next = || cells.next().unwrap_or_default();
        Peer { folder: next(), users: next(), tools: next(), pins: next(), what: next() }
    };
    PEERS.lines().map(read).filter(move |peer| peer.users.contains(user))
}

/// Installs what is missing in the pinned versions for the interop tests. What only the harness uses is offered.
pub(crate) fn ensure() -> Result {
    let tools: Vec<_> = peers_of("tests").map(|peer| peer.tools).collect();
    ensure_parts(&tools.join(" "), LIMIT)?;
    peers_of("tests").try_for_each(Peer::ensure)?;
    peers_of("harness").filter(|peer| !peer.users.contains("tests")).try_for_each(Peer::offer)
}

/// Installs what is missing for the harness, or for the soak. What cannot be installed, or takes too long, is left out.
pub(crate) fn offer_to(user: &str) -> Result {
    peers_of(user).try_for_each(Peer::offer)
}

/// Forgets what could not be installed.
pub(crate) fn forget_failures() -> Result {
    // Mostly there is no note.
    peers_of("").try_for_each(|peer| peer.missing().map(|note| drop(fs::remove_file(note))))
}

/// The names of the servers of `test --servers`.
pub(crate) fn servers() -> Vec<&'static str> {
    peers_of("servers").map(|peer| peer.folder).collect()
}

/// Installs a server, unless it is there, and returns the variable by which the test kit finds it.
///
/// # Errors
///
/// When it cannot be installed, as on a platform that nobody has built it for.
pub(crate) fn fetch_server(name: &str) -> Result<(&'static str, OsString)> {
    peers_of("servers").filter(|peer| peer.folder == name).try_for_each(Peer::fetch)?;
    let installed = folder()?.join(name);
    Ok(match name.starts_with("zk") {
        true => ("ZOOKEEPER_CLASSPATH", installed.join("*").into()),
        false => ("REDIS_SERVER", installed.join("server").into()),
    })
}

impl Peer {
    /// As [`fetch`](Self::fetch), but does without when that fails.
    fn offer(self) -> Result {
        let why = once_a_day(&self.missing()?, || self.fetch())?;
        why.inspect(|why| eprintln!("    peers: without {}: {why}", self.what));
        Ok(())
    }

    /// As [`ensure`](Self::ensure), with its tools.
    fn fetch(self) -> Result {
        ensure_parts(self.tools, LIMIT).and_then(|()| self.ensure())
    }

    /// The note of why it cannot be installed. The harness reads it.
    fn missing(self) -> Result<PathBuf> {
        Ok(folder()?.join(self.folder).join("missing"))
    }

    fn ensure(self) -> Result {
        let cannot = |why: String| format!("cannot install {}: {why}", self.what);
        let failed = |error: std::io::Error| cannot(error.to_string());
        let (folder, pins) = (folder()?.join(self.folder), workspace().join("tests/peers"));
        let installed = folder.join("installed");
        let pinned =
            self.pins.split(' ').map(|pin| fs::read(pins.join(pin))).collect::<std::io::Result<Vec<_>>>();
        let pinned = pinned.map_err(failed)?.concat();
        let run = |what: &str| {
            let mut command = shell(include_str!("peers.sh"));
            command
                .args(["peers.sh", what, self.folder])
                .arg(&pins)
                .args(self.pins.split(' '))
                .current_dir(&folder);
            succeed_within(LIMIT, &mut command, &folder.with_file_name(format!("{}.log", self.folder)))
        };
        // The interpreter may have changed since.
        if fs::read(&installed).is_ok_and(|noted| noted == pinned) && run("probe").is_ok() {
            eprintln!("    peers: {}", self.what);
            return Ok(());
        }
        interrupt::check()?;
        eprintln!("    peers: installing {}", self.what);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(failed)?;
        }
        fs::create_dir_all(&folder).map_err(failed)?;
        let ended = run("install").and_then(|()| run("probe"));
        interrupt::check()?;
        let again = "Make sure that the package index can be reached, then run the same command again.";
        ended.map_err(|why| cannot(format!("{why}\n{again}")))?;
        fs::write(installed, pinned).map_err(failed)
    }
}

/// The folder of all of them.
fn folder() -> Result<PathBuf> {
    Ok(target_folder()?.join("peers"))
}
