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
use crate::data::events::{EventLog, GrantInfo, TimedHold};
use crate::data::failure::{Failure, Outcome};
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
    /// Curator in a Java process.
    pub(crate) async fn curator(url: &str, path: &str) -> Outcome<Self> {
        let mut command = program("java");
        command.current_dir(folder_of("java")).args(JVM_FLAGS).arg("@options");
        Self::start(command.arg(source("Curator.java")), &zookeeper(url)?, path).await
    }

    /// kazoo in a Python process.
    pub(crate) async fn kazoo(url: &str, path: &str) -> Outcome<Self> {
        let mut command = program(folder_of("python").join("bin/python"));
        Self::start(command.arg(source("kazoo_mutex.py")), &zookeeper(url)?, path).await
    }

    /// redis-py or pottery, by its name, in a Python process.
    pub(crate) async fn python(library: &str, url: &str, key: &str) -> Outcome<Self> {
        let mut command = program(folder_of("python").join("bin/python"));
        Self::start(command.arg(source("redis_lock.py")).arg(library), &redis(url), key).await
    }

    /// node-redlock in a Node process.
    pub(crate) async fn node_redlock(url: &str, key: &str) -> Outcome<Self> {
        let mut command = program("node");
        command.current_dir(folder_of("node")).arg(source("node_redlock.mjs"));
        Self::start(&mut command, &redis(url), key).await
    }

    /// Redisson's `RLock`, or its `RFairLock`, in a Java process.
    pub(crate) async fn redisson(fair: bool, url: &str, key: &str) -> Outcome<Self> {
        let mut command = program("java");
        command
            .args(JVM_FLAGS)
            .arg("-cp")
            .arg(folder_of("redisson").join("*"))
            .arg(source("RedissonLock.java"));
        Self::start(command.arg(if fair { "fair" } else { "plain" }), &redis(url), key).await
    }

    /// redsync in a Go process.
    pub(crate) async fn redsync(url: &str, key: &str) -> Outcome<Self> {
        Self::start(program(folder_of("go").join("peer")).arg("redsync"), &redis(url), key).await
    }

    /// The lock of etcd's client in a Go process. It takes the address of the server.
    pub(crate) async fn etcd(address: &str, key: &str) -> Outcome<Self> {
        Self::start(program(folder_of("go").join("peer")).arg("etcd"), address, key).await
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

/// The URLs of the servers, one for each.
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
            while is_running(pid) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), gone).await.expect("it outlives its parent");
    }

    /// Whether it has not ended. One that nobody waits for stays as a zombie.
    fn is_running(pid: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    }
}
