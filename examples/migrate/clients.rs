//! The processes of the fleet, and the clients that only know Redis.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use lock_testkit::process::{Child, Output};
use serde_json::Value;

use super::worker::{NAMES, WORKER, name_of};

/// The lock clients of Python that the interop tests have installed, and their versions.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/python/bin/python");
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/example-migrate");
const REDIS_PY: &str = "redis==8.1.0";

/// Starts a process of the fleet: this program, once more.
pub(crate) fn start(url: &str, counters: SocketAddr) -> Child {
    let program = std::env::current_exe().expect("a program knows where it is");
    let mut command = Command::new(program);
    command.args([WORKER, url, &counters.to_string()]);
    Child::spawn(&command, &Output::Null).expect("this program starts")
}

/// A client that only knows Redis.
#[derive(Debug)]
pub(crate) struct RedisOnly {
    _child: Child,
    output: PathBuf,
}

impl RedisOnly {
    /// Starts one, with redis-py.
    pub(crate) fn start(python: &Path, url: &str, counters: SocketAddr) -> Self {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let output = std::env::temp_dir().join(format!("polylock-migrate-{}-{number}", std::process::id()));
        let names: Vec<_> = (0..NAMES).map(name_of).collect();
        let mut command = Command::new(python);
        command.args(["-c", include_str!("redis_only.py"), url, &counters.to_string(), &names.join(",")]);
        let child = Child::spawn(&command, &Output::File(output.clone())).expect("Python starts");
        Self { _child: child, output }
    }

    /// What it has seen so far: how often it had a lock, how often that was busy, and how often Redis refused it.
    pub(crate) fn seen(&self) -> BTreeMap<String, u64> {
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        let last = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let counts = last.as_ref().and_then(Value::as_object).into_iter().flatten();
        counts.filter_map(|(what, count)| Some((what.clone(), count.as_u64()?))).collect()
    }
}

impl Drop for RedisOnly {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.output);
    }
}

/// A Python that has redis-py: that of the interop tests, the system's, or one of our own.
pub(crate) fn python() -> Option<PathBuf> {
    let own = Path::new(OWN).join("bin/python");
    let found = [PathBuf::from(INSTALLED), PathBuf::from("python3"), own.clone()];
    found.into_iter().find(|python| has_redis_py(python)).or_else(|| {
        let made = quietly(Command::new("python3").args(["-m", "venv", OWN]))
            && quietly(Command::new(&own).args(["-m", "pip", "install", "--quiet", REDIS_PY]));
        (made && has_redis_py(&own)).then_some(own)
    })
}

fn has_redis_py(python: &Path) -> bool {
    quietly(Command::new(python).args(["-c", "import redis"]))
}

fn quietly(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
