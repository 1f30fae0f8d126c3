//! The log of a worker process: what the library says at debug level, and what takes too long, as JSON lines.
//!
//! On the paths that are measured the library logs nothing, so that a log costs nothing until something is wrong.

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lock_testkit::now_ns;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::rig::stuck::LOGS;

/// Writes to a file of this process from now on, when the parent has a folder for logs.
pub(super) fn start(process: u32) {
    let Some(folder) = std::env::var_os(LOGS) else { return };
    let name = format!("process-{process}-{}.jsonl", std::process::id());
    // It is set once.
    let _ = tracing::subscriber::set_global_default(Log {
        file: Path::new(&folder).join(name).into_os_string(),
        open: Mutex::new(None),
    });
}

struct Log {
    file: std::ffi::OsString,
    /// Created with the first line.
    open: Mutex<Option<File>>,
}

impl Log {
    fn write(&self, line: &Value) -> std::io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            let file = Path::new(&self.file);
            fs::create_dir_all(file.parent().unwrap_or(file))?;
            *open = Some(File::create(file)?);
        }
        match &mut *open {
            Some(file) => writeln!(file, "{line}"),
            None => Ok(()),
        }
    }
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
        if let Err(error) = self.write(&line) {
            eprintln!("the log of a worker process cannot be written: {error}");
        }
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
