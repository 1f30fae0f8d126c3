//! The log of a worker process: what the library says at debug level, and what takes too long, as JSON lines.
//!
//! A thread writes it, as the library may log on the paths that are measured.

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use lock_testkit::now_ns;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::rig::stuck::{LOGS, log_name};

/// Writes to a file of this process from now on, when the parent has a folder for logs.
pub(super) fn start(process: u32) {
    let Some(folder) = std::env::var_os(LOGS) else { return };
    let file = Path::new(&folder).join(log_name(process));
    let (lines, to_write) = channel();
    thread::spawn(move || {
        if let Err(error) = write(&file, &to_write) {
            eprintln!("the log of a worker process cannot be written: {error}");
        }
    });
    // It is set once.
    let _ = tracing::subscriber::set_global_default(Log { lines });
}

/// Writes the lines as they come. The file is created with the first one.
fn write(file: &Path, lines: &Receiver<Value>) -> std::io::Result<()> {
    let Ok(first) = lines.recv() else { return Ok(()) };
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    let mut open = File::create(file)?;
    std::iter::once(first).chain(lines).try_for_each(|line| writeln!(open, "{line}"))
}

/// Waits for a lock, and logs when that takes longer than this.
pub(super) async fn patiently<T>(grace: Duration, acquiring: impl Future<Output = T>) -> T {
    let mut acquiring = pin!(acquiring);
    match timeout(grace, &mut acquiring).await {
        Ok(acquired) => acquired,
        Err(_) => {
            tracing::debug!("the client still waits for the lock");
            acquiring.await
        }
    }
}

/// How long a lock may take that is free: longer than a waiter sleeps after a lost message.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

struct Log {
    lines: Sender<Value>,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = ["lock_", "polylock", "redis_link"];
        *metadata.level() <= Level::DEBUG && ours.iter().any(|name| metadata.target().starts_with(name))
    }

    fn event(&self, event: &Event<'_>) {
        let (metadata, mut fields) = (event.metadata(), Fields(Map::new()));
        event.record(&mut fields);
        let [level, target] = [metadata.level().as_str(), metadata.target()];
        let line = json!({ "at_ns": now_ns(), "level": level, "target": target, "fields": fields.0 });
        // It is not written any more if that has failed.
        let _ = self.lines.send(line);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}
