//! Programs in other languages that speak JSON lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_testkit::Worker;
use serde_json::Value;

/// What there is to run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    RedisPython,
    RedisNode,
    Redisson,
    ZooKeeperPython,
    ZooKeeperJava,
}

/// A program behind the pipes of a process of its own.
pub struct Program {
    kind: Kind,
    idle: Arc<Idle>,
    worker: Option<Worker>,
    /// A call has been sent and not been answered: the next client would take the late answer for its own.
    calling: bool,
}

/// Processes that are ready for the next client: to start one costs more than most of what it is asked.
#[derive(Debug, Default)]
pub struct Idle(Mutex<Vec<(Kind, Worker)>>);

impl Program {
    pub async fn start(kind: Kind, idle: &Arc<Idle>) -> Self {
        let worker = match idle.take(kind) {
            Some(worker) => worker,
            None => kind.start().await,
        };
        Self { kind, idle: Arc::clone(idle), worker: Some(worker), calling: false }
    }

    /// What it answers to a request, within `patience` and the time that an answer takes on a busy machine.
    pub async fn call(&mut self, request: Value, patience: Duration) -> bool {
        let Some(worker) = &self.worker else { unreachable!("a program has its worker until it ends") };
        self.calling = true;
        worker.send(&request).await.unwrap_or_else(|error| panic!("{:?}: {error}", self.kind));
        let answer = answer(worker, patience + ANSWER).await;
        let answer = answer.unwrap_or_else(|error| panic!("{:?}: {request}: {error}", self.kind));
        self.calling = false;
        answer
    }

    /// Has it do this.
    pub async fn does(&mut self, request: Value) {
        assert!(self.call(request, Duration::ZERO).await);
    }

    /// Ends it by SIGKILL.
    pub fn kill(mut self) {
        if let Some(worker) = self.worker.take() {
            worker.kill();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take()
            && !self.calling
        {
            self.idle.put(self.kind, worker);
        }
    }
}

impl Idle {
    fn take(&self, kind: Kind) -> Option<Worker> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|(of, _)| *of == kind)?;
        Some(idle.swap_remove(at).1)
    }

    fn put(&self, kind: Kind, worker: Worker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((kind, worker));
    }
}

impl Kind {
    async fn start(self) -> Worker {
        let folder = self.installed();
        let mut command = match self {
            Self::RedisPython | Self::ZooKeeperPython => Command::new(folder.join("bin/python")),
            Self::RedisNode => Command::new("node"),
            Self::Redisson | Self::ZooKeeperJava => Command::new("java"),
        };
        match self {
            Self::Redisson => command.args(SMALL_JVM).args(["-cp", ".:*", "Peer"]),
            Self::ZooKeeperJava => command.args(SMALL_JVM).args(["@options", "Peer"]),
            _ => command.arg(sources().join(self.program())),
        };
        command.current_dir(&folder);
        let worker = Worker::spawn(&command).unwrap_or_else(|error| panic!("{error}"));
        answer(&worker, START).await.unwrap_or_else(|error| panic!("{}: {error}", self.program()));
        worker
    }

    /// Where the packages are, in the versions that are pinned.
    fn installed(self) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers").join(self.folder());
        let read = |pin: &&str| fs::read(sources().join(pin)).expect("the versions are in the sources");
        let pins: Vec<u8> = self.pins().iter().flat_map(read).collect();
        let installed = fs::read(folder.join("installed")).is_ok_and(|installed| installed == pins);
        assert!(
            installed,
            "{} does not hold what tests/peers/{} asks for: install it with `cargo xtask setup`",
            folder.display(),
            self.pins()[0]
        );
        folder
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::RedisPython | Self::ZooKeeperPython => "python",
            Self::RedisNode => "node",
            Self::Redisson => "redisson",
            Self::ZooKeeperJava => "java",
        }
    }

    /// The files with the versions, and the program where it is compiled, as it is where it is installed.
    const fn pins(self) -> &'static [&'static str] {
        match self {
            Self::RedisPython | Self::ZooKeeperPython => &["requirements.txt"],
            Self::RedisNode => &["package-lock.json"],
            Self::Redisson => &["redisson/pom.xml", "redisson/Peer.java"],
            Self::ZooKeeperJava => &["zookeeper/Peer.java"],
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::RedisPython => "redis/peer.py",
            Self::RedisNode => "redis/peer.mjs",
            Self::Redisson => "redisson/Peer.java",
            Self::ZooKeeperPython => "zookeeper/peer.py",
            Self::ZooKeeperJava => "zookeeper/Peer.java",
        }
    }
}

async fn answer(worker: &Worker, patience: Duration) -> Result<bool, String> {
    let answer = worker.recv_deadline(patience).await.map_err(|error| error.to_string())?;
    answer["ok"].as_bool().ok_or_else(|| answer["error"].to_string())
}

fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers"))
}

/// As the programs want their times.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("tests do not last for ages")
}

/// Small, and fast to start rather than fast in the long run.
const SMALL_JVM: [&str; 3] = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// Generous: many may start at once on a small machine.
const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(30);
