//! Captures the log lines of the locks, for tests of what they log and of what they never log.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The log lines of the current thread, at any level, of this library and not of the drivers.
#[derive(Clone, Debug, Default)]
pub struct LogCapture(Arc<Mutex<Vec<(Level, String)>>>);

impl LogCapture {
    /// Captures while the guard lives.
    pub fn begin() -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND_SUBSCRIBER);
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<(Level, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The warnings and errors that contain this text.
    pub fn warnings(&self, text: &str) -> Vec<String> {
        let lines = self.lines().into_iter();
        lines
            .filter(|(level, line)| *level <= Level::WARN && line.contains(text))
            .map(|(_, line)| line)
            .collect()
    }

    /// Removes the lines so far.
    pub fn clear(&self) {
        drop(self.drain());
    }

    /// Removes the lines so far, and returns them.
    pub fn drain(&self) -> Vec<String> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *lines).into_iter().map(|(_, line)| line).collect()
    }

    fn note(&self, level: Level, mut line: Line, record: impl FnOnce(&mut Line)) {
        record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((level, line.0));
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["lock_", "polylock", "redis_link"].iter().any(|ours| metadata.target().starts_with(ours))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(*span.metadata().level(), Line::of(span.metadata()), |line| span.record(line));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.note(*event.metadata().level(), Line::of(event.metadata()), |line| event.record(line));
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.note(Level::TRACE, Line::default(), |line| values.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// With a single subscriber `tracing` caches whether a line is enabled, as the first thread that logs it decides: after a
/// thread of another test, no test would capture the line. With two subscribers it asks every time.
static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(LogCapture::default()));

#[derive(Default)]
struct Line(String);

impl Line {
    fn of(metadata: &Metadata<'_>) -> Self {
        Self(format!("{}: {}", metadata.target(), metadata.name()))
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").expect("a string takes all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_another_thread_logs_first_is_captured() {
        let late = || tracing::warn!(target: "lock_redis::x", "it is late");
        let (log, _guard) = LogCapture::begin();
        std::thread::spawn(late).join().unwrap();
        late();
        assert_eq!(log.warnings("late").len(), 1);
    }

    #[test]
    fn only_lines_of_this_library_are_captured() {
        let (log, guard) = LogCapture::begin();
        tracing::warn!(target: "lock_redis::x", lock = "a", "it is late");
        tracing::debug!(target: "polylock", "as usual");
        tracing::warn!(target: "redis::aio", "what a driver says");
        drop(guard);
        tracing::warn!(target: "lock_redis::x", "nobody listens");
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(log.warnings("late").len(), 1);
        assert!(log.warnings("")[0].contains("lock=\"a\""), "{lines:?}");
        assert!(log.warnings("usual").is_empty());
        log.clear();
        assert!(log.lines().is_empty());
    }
}
