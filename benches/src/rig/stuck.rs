//! What is known about a stuck lock: saved beside the report, before the processes and servers are ended.
//!
//! Each stuck part of the run has a folder below `stuck/`:
//!
//! * `server.txt`: the state of its locks as `inspect` shows it, and a raw look at their servers;
//! * `history.jsonl`: what the clients of these locks did so far;
//! * `steps.txt`: the last steps of each worker process.

mod steps;
mod store;

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use crate::data::{Failure, Outcome, events};

/// Saves below this folder from now on. What an earlier run saved there is removed.
pub(crate) fn save_below(folder: &Path) {
    let folder = folder.join("stuck");
    // Mostly there is none.
    let _ = fs::remove_dir_all(&folder);
    let _ = FOLDER.set(folder);
}

/// Runs a part with this name. When it takes longer than this, it is stuck: what is known is saved before it is dropped.
pub(crate) fn within<'a, T: 'a>(
    name: impl Display,
    patience: Duration,
    part: impl Future<Output = Outcome<T>> + 'a,
) -> impl Future<Output = Outcome<T>> + 'a {
    let mut part = Box::pin(part);
    part_of_run(name, async move {
        match timeout(patience, part.as_mut()).await {
            Ok(ended) => ended,
            Err(_) => Err(Failure::new(format!("stuck: still running after {patience:?}{}", save().await))),
        }
    })
}

/// Runs a part with this name: its locks are those that it watches.
pub(crate) fn part_of_run<'a, T: 'a>(
    name: impl Display,
    part: impl Future<Output = T> + 'a,
) -> impl Future<Output = T> + 'a {
    let (name, part) = (name.to_string(), Box::pin(part));
    async move {
        let outer = PART.try_with(|outer| format!("{outer}, ")).unwrap_or_default();
        PART.scope(format!("{outer}{name}"), part).await
    }
}

/// Notes that the running part uses this lock, for as long as the value is kept.
pub(crate) fn watch(url: &str, lock: &str) -> Arc<WatchedLock> {
    watch_worker(url, [lock, lock], None)
}

/// As [`watch`], for a worker process. The lock has two names: that of the store, and that of the history.
pub(crate) fn watch_worker(
    url: &str,
    [lock, recorded_as]: [&str; 2],
    worker: Option<WatchedWorker>,
) -> Arc<WatchedLock> {
    let [url, lock, recorded_as] = [url, lock, recorded_as].map(str::to_owned);
    let part = PART.try_with(Clone::clone).unwrap_or_default();
    let watched = Arc::new(WatchedLock { part, url, lock, recorded_as, worker });
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|watched| watched.strong_count() > 0);
    all.push(Arc::downgrade(&watched));
    watched
}

/// Saves what is known about the locks of the running part, once for each part. Returns where, to be appended to the failure.
pub(crate) fn save() -> BoxFuture<'static, String> {
    Box::pin(async {
        let Some(folder) = FOLDER.get() else { return String::new() };
        let part = PART.try_with(Clone::clone).unwrap_or_default();
        // Others wait meanwhile: their failure may end the part, and the processes with it.
        let mut saved = SAVED.lock().await;
        if !saved.insert(part.clone()) {
            return String::new();
        }
        let folder = folder.join(file_name(&part));
        match write(&folder, &watched_by(&part)).await {
            Ok(()) => format!("; what is known about the lock is in {}", folder.display()),
            Err(failure) => format!("; what is known about the lock could not be saved: {failure}"),
        }
    })
}

#[derive(Debug)]
pub(crate) struct WatchedLock {
    part: String,
    url: String,
    lock: String,
    recorded_as: String,
    worker: Option<WatchedWorker>,
}

/// A worker process that uses a lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct WatchedWorker {
    /// Its number in the history.
    pub(crate) process: u32,
    pub(crate) pid: u32,
}

fn watched_by(part: &str) -> Vec<Arc<WatchedLock>> {
    let all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    // A task of its own does not know its part.
    let fits = |watched: &WatchedLock| watched.part.starts_with(part) || watched.part.is_empty();
    all.iter().filter_map(Weak::upgrade).filter(|watched| fits(watched)).collect()
}

async fn write(folder: &Path, watched: &[Arc<WatchedLock>]) -> Outcome<()> {
    fs::create_dir_all(folder)?;
    let places: BTreeSet<_> =
        watched.iter().map(|watched| (watched.url.as_str(), watched.lock.as_str())).collect();
    let (stores, dumps) = tokio::join!(store::look_at_all(&places), steps::of_all(watched));
    fs::write(folder.join("server.txt"), stores)?;
    let mut steps = String::new();
    let mut history = events::so_far();
    for (worker, dump) in dumps {
        let _ = writeln!(steps, "process {} (pid {})", worker.process, worker.pid);
        match dump {
            Ok(dump) => {
                for step in &dump.steps {
                    let _ = writeln!(steps, "    {step}");
                }
                history.extend(dump.events);
            }
            Err(why) => {
                let _ = writeln!(steps, "    no answer: {why}");
            }
        }
    }
    fs::write(folder.join("steps.txt"), steps)?;
    history.retain(|event| watched.iter().any(|watched| event.lock.starts_with(&watched.recorded_as)));
    history.sort_by_key(|event| event.at_ns);
    let lines = history.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(fs::write(folder.join("history.jsonl"), lines.join("\n") + "\n")?)
}

fn file_name(part: &str) -> String {
    let words = part.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

tokio::task_local! {
    /// The running part of the run: several may run at once.
    static PART: String;
}

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
static WATCHED: Mutex<Vec<Weak<WatchedLock>>> = Mutex::new(Vec::new());
/// The parts whose locks were saved.
static SAVED: AsyncMutex<BTreeSet<String>> = AsyncMutex::const_new(BTreeSet::new());

#[cfg(test)]
mod tests {
    use lock_testkit::RedisServer;
    use polylock::Locks;

    use super::*;
    use crate::data::EventLog;

    #[test]
    fn a_part_has_a_folder_of_its_name() {
        assert_eq!(
            file_name("claim 2, 64 waiters of redis wait=queue"),
            "claim-2-64-waiters-of-redis-wait-queue"
        );
    }

    #[tokio::test]
    async fn a_part_sees_its_own_locks_and_those_of_its_parts() {
        let watch_in =
            |part: &'static str| async move { part_of_run(part, async { watch("memory://", "a") }).await };
        let (_other, _own) = (watch_in("watching zk").await, watch_in("watching redis").await);
        let nested = part_of_run("watching redis", watch_in("rslock")).await;
        assert_eq!(nested.part, "watching redis, rslock");
        assert_eq!(watched_by("watching redis").iter().filter(|lock| !lock.part.is_empty()).count(), 2);
        drop(nested);
        assert_eq!(watched_by("watching redis").iter().filter(|lock| !lock.part.is_empty()).count(), 1);
    }

    #[tokio::test]
    async fn the_files_name_the_holder_and_what_it_did() {
        let server = RedisServer::start().await.unwrap();
        let locks = Locks::connect(&server.url()).await.unwrap();
        let mut log = EventLog::new(3, 0, "stuck-unit");
        log.acquire_called();
        let guard = locks.mutex("stuck-unit").acquire().await.unwrap();
        log.acquired(&guard);
        let watched = part_of_run("unit", async { watch(&server.url(), "stuck-unit") }).await;
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[watched]).await.unwrap();

        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        let server = read("server.txt");
        for part in
            [&format!("pid {}", std::process::id()), "stuck-unit", "pttl", "CLIENT LIST", "addr=127.0.0.1"]
        {
            assert!(server.contains(part), "{part} is not in {server}");
        }
        let history = read("history.jsonl");
        assert_eq!(history.lines().count(), 2, "{history}");
        assert!(history.lines().all(|line| line.contains("\"process\":3")), "{history}");
        assert_eq!(read("steps.txt"), "");
    }
}
