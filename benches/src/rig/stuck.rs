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
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).join("worker-logs");
    let _ = FOLDER.set(folder.display().to_string());
    remove_logs();
}

/// Removes the logs of workers, and nothing else that may be in their folder.
pub(crate) fn remove_logs() {
    let Some(folder) = logs() else { return };
    // Mostly there is none.
    let Ok(files) = fs::read_dir(folder) else { return };
    for file in files.flatten().filter(|file| is_log(&file.file_name().to_string_lossy())) {
        let _ = fs::remove_file(file.path());
    }
    // Unless there is something else in it.
    let _ = fs::remove_dir(folder);
}

/// The name of the log of a process.
pub(crate) fn log_name(process: u32) -> String {
    format!("process-{process}-{}.jsonl", std::process::id())
}

fn is_log(name: &str) -> bool {
    name.starts_with("process-") && name.ends_with(".jsonl")
}

/// The folder for the logs of workers, if there is one.
pub(crate) fn logs() -> Option<&'static str> {
    FOLDER.get().map(String::as_str)
}

/// Where the logs are, if there are any, to be appended to the failure of a part that is stuck.
pub(crate) fn see_logs() -> String {
    let folder = logs().filter(|folder| Path::new(folder).exists());
    folder.map_or_else(String::new, |folder| format!("; the logs of its processes are in {folder}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_are_removed() {
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("worker-logs");
        fs::create_dir(&folder).unwrap();
        let (log, other) = (folder.join(log_name(3)), folder.join("notes.jsonl"));
        for file in [&log, &other] {
            fs::write(file, "").unwrap();
        }
        log_below(out.path());
        assert_eq!((log.exists(), other.exists()), (false, true));
        fs::remove_file(other).unwrap();
        remove_logs();
        assert!(!folder.exists() && out.path().exists());
    }
}
