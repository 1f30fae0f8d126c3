//! Locks of other languages, each in a program of its own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;

use lock_testkit::history::ReleaseOutcome;
use lock_testkit::now_ns;
use polylock::backend::LockUrl;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::installed::folder_of;
use crate::data::{EventLog, Failure, GrantInfo, Outcome, Peer, TimedHold};
use crate::rig::url;

/// A running program of `benches/peers`, connected and waiting for its order.
#[derive(Debug)]
pub(crate) struct Subprocess {
    /// Killed on drop, and by the kernel when this process dies. While it waits for a lock it does not read its input.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Subprocess {
    /// The program of a library that is not in Rust, with its lock.
    pub(crate) async fn of(peer: Peer, url: &str, lock: &str) -> Outcome<Self> {
        let (mut java, mut node) = (program("java"), program("node"));
        let (mut python, mut go) =
            (program(folder_of("python").join("bin/python")), program(folder_of("go").join("peer")));
        java.args(JVM_FLAGS);
        let command = match peer {
            Peer::Curator => java.current_dir(folder_of("java")).arg("@options").arg(source("Curator.java")),
            Peer::Redisson | Peer::RedissonFair => {
                let kind = if peer == Peer::RedissonFair { "fair" } else { "plain" };
                java.arg("-cp")
                    .arg(folder_of("redisson").join("*"))
                    .arg(source("RedissonLock.java"))
                    .arg(kind)
            }
            Peer::NodeRedlock => node.current_dir(folder_of("node")).arg(source("node_redlock.mjs")),
            Peer::Kazoo => python.arg(source("kazoo_mutex.py")),
            Peer::RedisPy | Peer::Pottery => python.arg(source("redis_lock.py")).arg(peer.as_str()),
            Peer::Redsync | Peer::RedsyncFive => go.arg("redsync"),
            Peer::EtcdConcurrency => go.arg("etcd"),
            _ => return Err(Failure::new(format!("{} is a library of Rust", peer.as_str()))),
        };
        let servers = match peer {
            Peer::Curator | Peer::Kazoo => zookeeper(url)?,
            Peer::EtcdConcurrency => url::first_host(url).to_owned(),
            _ => redis(url),
        };
        Self::start(command, &servers, lock).await
    }

    async fn start(command: &mut Command, servers: &str, lock: &str) -> Outcome<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {:?}: {error}", command.as_std())))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the program has no pipes"));
        };
        let mut program = Self { _child: child, input, output: BufReader::new(output).lines() };
        program.send(&format!("{servers} {lock}")).await?;
        match program.receive().await?.as_str() {
            "ready" => Ok(program),
            other => Err(Failure::new(format!(
                "the program answered {other:?}; `cargo xtask setup` installs what it needs"
            ))),
        }
    }

    /// Has it contend until then, and records its holds.
    pub(crate) async fn contend(&mut self, until_ns: u64, hold_ns: u64, log: &mut EventLog) -> Outcome<()> {
        let ahead_ns = ahead_ns();
        self.send(&format!("{} {hold_ns}", until_ns.saturating_sub(ahead_ns))).await?;
        loop {
            let line = self.receive().await?;
            if line == "end" {
                return Ok(());
            }
            let times = line.split(' ').map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?;
            let [called_ns, acquired_ns, release_called_ns, released_ns] = times[..] else {
                return Err(Failure::new(format!("the program sent {line:?}")));
            };
            log.hold(&TimedHold {
                called_ns: called_ns + ahead_ns,
                acquired_ns: acquired_ns + ahead_ns,
                grant: GrantInfo::default(),
                release_called_ns: release_called_ns + ahead_ns,
                released_ns: released_ns + ahead_ns,
                released: ReleaseOutcome::Unknown,
            });
        }
    }

    async fn send(&mut self, line: &str) -> Outcome<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    async fn receive(&mut self) -> Outcome<String> {
        let line = self.output.next_line().await?;
        line.ok_or_else(|| Failure::new("the program has ended; its error output is above"))
    }
}

/// How far the clock of the histories is ahead of that of the programs. A reading is too large by the time between its two
/// looks at the clocks, so the least is the best.
fn ahead_ns() -> u64 {
    let reading = || {
        // Read first, as it is never ahead of the other clock.
        let theirs_ns = monotonic_ns();
        now_ns() - theirs_ns
    };
    (1..READINGS).map(|_| reading()).fold(reading(), u64::min)
}

/// The clock of the programs, which stops while the machine is suspended.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The servers as clients of ZooKeeper take them: the hosts and the chroot.
fn zookeeper(url: &str) -> Outcome<String> {
    let url = LockUrl::parse(url)?;
    Ok(format!("{}{}", url.hosts, url.path.trim_end_matches('/')))
}

fn redis(url: &str) -> String {
    url::each(url).join(",")
}

/// A program that the kernel kills when this process dies: the standard library sets that signal only by unsafe code.
fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(name);
    command
}

fn source(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/peers")).join(name)
}

/// The options of every Java peer: small, as many run at once, and without the second compiler, which would compete with the
/// measurement for the processors.
pub(crate) const JVM_FLAGS: &[&str] = &["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// How often the two clocks are compared.
const READINGS: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::rig::process::stat;

    #[test]
    fn the_least_difference_of_the_clocks_is_never_above_a_single_one() {
        let single = {
            let theirs_ns = monotonic_ns();
            now_ns() - theirs_ns
        };
        let slack_ns = 1_000_000;
        assert!(ahead_ns() <= single + slack_ns, "{} > {single}", ahead_ns());
    }

    #[tokio::test]
    async fn a_program_dies_with_the_thread_that_started_it() {
        let (pid, started) = tokio::sync::oneshot::channel();
        // For the kernel the parent is the thread.
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut child =
                    program("sh").args(["-c", "echo; exec sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
                BufReader::new(child.stdout.take().unwrap()).lines().next_line().await.unwrap();
                pid.send(child.id().unwrap()).unwrap();
            });
        });
        let pid = started.await.unwrap();
        let gone = async {
            // One that nobody waits for stays as a zombie.
            while stat(pid).is_some_and(|fields| fields[0] != "Z") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), gone).await.expect("it outlives its parent");
    }
}
