//! Parts of a run that do not end, and the logs of worker processes that say why.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::timeout;

use crate::data::{Failure, Outcome};

/// The folder for the logs of workers, by its name in their environment.
pub(crate) const LOGS: &str = "LOCK_BENCH_LOGS";

static FOLDER: OnceLock<String> = OnceLock::new();

/// Has workers write their logs below this folder from now on. Those of an earlier run are removed.
pub(crate) fn log_below(folder: &Path) {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).join("log");
    // Mostly there is none.
    let _ = fs::remove_dir_all(&folder);
    let _ = FOLDER.set(folder.display().to_string());
}

/// The folder for the logs of workers, if there is one.
pub(crate) fn logs() -> Option<&'static str> {
    FOLDER.get().map(String::as_str)
}

/// Where the logs are, to be appended to the failure of a part that is stuck.
pub(crate) fn see_logs() -> String {
    logs().map_or_else(String::new, |folder| format!("; the logs of its processes are in {folder}"))
}

/// Runs a part. When it takes longer than this, it is stuck, and is dropped.
pub(crate) fn within<'a, T: 'a>(
    patience: Duration,
    part: impl Future<Output = Outcome<T>> + 'a,
) -> impl Future<Output = Outcome<T>> + 'a {
    // Some are large.
    let part = Box::pin(part);
    async move {
        let stuck = |_| Err(Failure::new(format!("stuck: still running after {patience:?}{}", see_logs())));
        timeout(patience, part).await.unwrap_or_else(stuck)
    }
}
