//! The last steps of this process, and its history so far, for the parent when a lock is stuck.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use lock_testkit::history::Event;
use lock_testkit::now_ns;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event as LogEvent, Level, Metadata, Subscriber};

use crate::data::{Failure, Outcome, events};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Dump {
    pub(crate) steps: VecDeque<Step>,
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Step {
    at_ns: u64,
    what: Cow<'static, str>,
}

/// Notes a step. A fixed text costs no allocation.
pub(crate) fn note(what: impl Into<Cow<'static, str>>) {
    let step = Step { at_ns: now_ns(), what: what.into() };
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    if steps.len() == MOST_STEPS {
        steps.pop_front();
    }
    steps.push_back(step);
}

/// Notes what the library logs, and writes a dump whenever the parent sends SIGUSR1: in a thread of its own, as that of the
/// clients may be blocked.
pub(super) fn answer_requests() -> Outcome<()> {
    // It is set once.
    let _ = tracing::subscriber::set_global_default(StepSubscriber);
    let (ready, listens) = mpsc::channel();
    thread::Builder::new().name("dump".into()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(error))),
        };
        runtime.block_on(async {
            let mut requests = match signal(SignalKind::user_defined1()) {
                Ok(requests) => requests,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            while requests.recv().await.is_some() {
                if let Err(error) = write(&dump_folder(std::os::unix::process::parent_id())) {
                    eprintln!("the steps of a worker process cannot be written: {error}");
                }
            }
        });
    })?;
    Ok(listens.recv().map_err(|_| Failure::new("the thread for dumps has ended"))??)
}

/// Where the workers of this process write.
pub(crate) fn dump_folder(parent: u32) -> PathBuf {
    std::env::temp_dir().join(format!("lock-bench-dump-{parent}"))
}

fn write(folder: &Path) -> io::Result<()> {
    let steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let text = serde_json::to_string(&Dump { steps, events: events::so_far() })?;
    let file = folder.join(format!("{}.json", std::process::id()));
    // The parent sees a whole file.
    let half = file.with_extension("half");
    fs::write(&half, text)?;
    fs::rename(half, file)
}

/// `12.345678 s  acquire called`, on the clock of the history.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s  {}", self.at_ns as f64 / 1e9, self.what)
    }
}

/// Notes the events of this library at debug level. On the paths that are measured it logs nothing.
struct StepSubscriber;

impl Subscriber for StepSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        *metadata.level() <= Level::DEBUG
            && ["lock_core", "lock_redis", "lock_redlock", "lock_zk", "polylock", "redis_link"]
                .iter()
                .any(|ours| target.starts_with(ours))
    }

    fn event(&self, event: &LogEvent<'_>) {
        let mut line = Line(format!("{} {}:", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        note(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write as _;
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

static STEPS: Mutex<VecDeque<Step>> = Mutex::new(VecDeque::new());
const MOST_STEPS: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_steps_are_kept_with_what_the_library_logs() {
        tracing::subscriber::with_default(StepSubscriber, || {
            for number in 0..MOST_STEPS {
                note(format!("step {number}"));
            }
            tracing::debug!(target: "lock_redis::lease", error = "reset", "the hand-over failed");
            tracing::trace!(target: "lock_redis::lease", "too much");
            tracing::debug!(target: "redis::aio", "a driver");
        });
        let steps: Vec<String> =
            STEPS.lock().unwrap().iter().map(|step| step.what.clone().into_owned()).collect();
        assert_eq!(steps.len(), MOST_STEPS);
        assert_eq!(steps.first().map(String::as_str), Some("step 1"));
        assert_eq!(steps.last().unwrap(), "DEBUG lock_redis::lease: the hand-over failed error=\"reset\"");
    }
}
