//! The last steps of worker processes, on request.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::{WatchedLock, WatchedWorker};
use crate::rig::worker::dump::{Dump, dump_folder};

pub(super) async fn of_all(watched: &[Arc<WatchedLock>]) -> Vec<(WatchedWorker, Result<Dump, String>)> {
    let mut workers: Vec<WatchedWorker> = watched.iter().filter_map(|watched| watched.worker).collect();
    workers.sort_by_key(|worker| (worker.process, worker.pid));
    let folder = dump_folder(std::process::id());
    let made = fs::create_dir_all(&folder).map_err(|error| error.to_string());
    let dumps = workers.into_iter().map(|worker| {
        let (made, file) = (made.clone(), folder.join(format!("{}.json", worker.pid)));
        async move {
            let dump = match made {
                Ok(()) => of(worker.pid, &file).await,
                Err(why) => Err(why),
            };
            (worker, dump)
        }
    });
    let dumps = join_all(dumps).await;
    // It is temporary.
    let _ = fs::remove_dir_all(&folder);
    dumps
}

async fn of(pid: u32, file: &PathBuf) -> Result<Dump, String> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("it has no process id")?;
    kill_process(process, Signal::USR1).map_err(|error| format!("it has ended: {error}"))?;
    let end = Instant::now() + PATIENCE;
    while !file.is_file() {
        if Instant::now() > end {
            return Err(format!("nothing within {PATIENCE:?}: it is {}", state(pid)));
        }
        sleep(LOOK).await;
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// As Linux shows it, such as `T (stopped)`.
fn state(pid: u32) -> String {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.map_or_else(|| "in an unknown state".into(), |state| state.trim().to_owned())
}

const PATIENCE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(10);
