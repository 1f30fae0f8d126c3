//! Histories: the events of locks in many processes of one machine, on one clock.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// An event of a lock.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Event {
    /// The process: its pid or the number that the test gave it.
    pub process: u32,
    /// The client within the process. It does one thing after another and holds a lock at most once.
    pub client: u64,
    /// The name of the lock.
    pub lock: String,
    /// The time, by [`now_ns`].
    pub at_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The client calls acquire.
    AcquireCalled,
    /// The lock was granted.
    Acquired {
        /// The fencing token, if the lock has them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The end of the guard's validity, by [`now_ns`]; none without a limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        valid_until_ns: Option<u64>,
        /// Whether the lock may be shared.
        #[serde(default)]
        mode: Mode,
    },
    /// The lock was not granted: busy, timed out or refused. The client does not hold it.
    AcquireFailed,
    /// An error: the server may have granted the lock, but the client does not hold it.
    AcquireUnknown,
    /// The guard's validity has changed, as by a renewal. Recorded before [`ReleaseCalled`](Self::ReleaseCalled) at the
    /// latest.
    Extended {
        /// The new end of the guard's validity, by [`now_ns`].
        valid_until_ns: u64,
    },
    /// The client, a writer, calls downgrade and writes no more. From then on readers may hold the lock too, whenever the
    /// request is executed.
    DowngradeCalled,
    /// The guard has reported a loss.
    Lost,
    /// The client calls release, and has stopped using the lock.
    ReleaseCalled,
    /// The release has returned.
    Released {
        /// Its outcome.
        outcome: ReleaseOutcome,
    },
    /// The protected resource has decided on a write. The *resource* records this, in the order of its decisions;
    /// process and client are those of the writer.
    Write {
        /// The token that came with the write.
        token: u64,
        /// Whether the resource accepted it.
        accepted: bool,
    },
    /// The test has killed the process with all its clients. Lock and client of this event have no meaning.
    Died,
}

/// How a holder shares a lock.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Not at all.
    #[default]
    Exclusive,
    /// With other shared holders.
    Shared,
    /// With other holders of permits, at most this many in all.
    Permit(u32),
}

/// How a release ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The client held the lock until then.
    Released,
    /// The lock was lost before.
    AlreadyLost,
    /// An error: the lock may be released or not.
    Unknown,
}

/// Writes the events of one process to a file, one JSON object per line.
///
/// Clones write to the same file.
#[derive(Clone, Debug)]
pub struct Recorder {
    process: u32,
    flush: bool,
    file: Arc<Mutex<BufWriter<File>>>,
}

/// The events of all processes, in the order of time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct History {
    events: Vec<Event>,
}

/// Nanoseconds of `CLOCK_BOOTTIME`, the clock of all histories.
///
/// It is the same in every process of the machine, never steps, and runs while the machine is suspended.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Recorder {
    /// Records the events of `process`; appends to the file at `path`.
    ///
    /// Events stay in memory until the buffer is full, [`flush`](Self::flush) is called or the last clone is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be opened.
    pub fn create(path: impl AsRef<Path>, process: u32) -> Result<Self> {
        let path = path.as_ref();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| Error::io(format!("open {}", path.display()), e))?;
        Ok(Self { process, flush: false, file: Arc::new(Mutex::new(BufWriter::new(file))) })
    }

    /// Writes every event to the file before `record` returns, so that a killed process loses none.
    #[must_use]
    pub fn flush_every_event(mut self) -> Self {
        self.flush = true;
        self
    }

    /// Records an event with the current time.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would prove nothing.
    pub fn record(&self, client: u64, lock: &str, kind: EventKind) {
        self.record_at(now_ns(), client, lock, kind);
    }

    /// Records an event with an earlier time.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would prove nothing.
    pub fn record_at(&self, at_ns: u64, client: u64, lock: &str, kind: EventKind) {
        self.write(&Event { process: self.process, client, lock: lock.to_owned(), at_ns, kind });
    }

    /// Records an event of any process: a write that a resource decided on, or a death that the test caused.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would prove nothing.
    pub fn write(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event is plain data");
        line.push(b'\n');
        let mut file = self.file();
        file.write_all(&line).expect("the history can be written");
        if self.flush {
            file.flush().expect("the history can be written");
        }
    }

    /// Writes all buffered events to the file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be written.
    pub fn flush(&self) -> Result<()> {
        self.file().flush().map_err(|e| Error::io("write a history", e))
    }

    fn file(&self) -> MutexGuard<'_, BufWriter<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl History {
    /// Sorts events by time; events of the same time keep their order.
    pub fn new(events: impl IntoIterator<Item = Event>) -> Self {
        let mut events: Vec<_> = events.into_iter().collect();
        events.sort_by_key(|event| event.at_ns);
        Self { events }
    }

    /// Loads and merges the files of several recorders.
    ///
    /// An incomplete last line, as a killed process leaves it, is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when a file cannot be read, [`Error::Protocol`] when a line is not an event.
    pub fn load(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Result<Self> {
        let mut events = Vec::new();
        for path in paths {
            let path = path.into();
            let text = std::fs::read_to_string(&path)
                .map_err(|e| Error::io(format!("read the history {}", path.display()), e))?;
            for (index, line) in text.split_inclusive('\n').enumerate() {
                match serde_json::from_str(line) {
                    Ok(event) => events.push(event),
                    Err(_) if !line.ends_with('\n') => {}
                    Err(error) => {
                        return Err(Error::Protocol {
                            peer: format!("the history {}", path.display()),
                            what: format!("line {}: {error}", index + 1),
                        });
                    }
                }
            }
        }
        Ok(Self::new(events))
    }

    /// The events in the order of time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Merges another history into this one.
    pub fn merge(&mut self, other: Self) {
        self.events.extend(other.events);
        self.events.sort_by_key(|event| event.at_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquired(token: u64) -> EventKind {
        EventKind::Acquired { token: Some(token), valid_until_ns: Some(u64::MAX), mode: Mode::Permit(3) }
    }

    #[test]
    fn events_come_back_in_the_order_of_time() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        let [a, b] = [1, 2].map(|process| Recorder::create(&paths[process as usize - 1], process).unwrap());
        b.record_at(20, 1, "x", acquired(7));
        a.record_at(10, 1, "x", EventKind::AcquireCalled);
        a.record_at(30, 1, "x", EventKind::Released { outcome: ReleaseOutcome::AlreadyLost });
        b.record_at(40, 1, "x", EventKind::Write { token: u64::MAX, accepted: false });
        drop((a, b));

        let history = History::load(&paths).unwrap();
        assert_eq!(history.events().iter().map(|event| event.at_ns).collect::<Vec<_>>(), [10, 20, 30, 40]);
        assert_eq!(history.events().iter().map(|event| event.process).collect::<Vec<_>>(), [1, 2, 1, 2]);
        assert_eq!(history.events()[1].kind, acquired(7));
        assert_eq!(history.events()[3].kind, EventKind::Write { token: u64::MAX, accepted: false });

        let mut merged = History::load(&paths[1..]).unwrap();
        merged.merge(History::load(&paths[..1]).unwrap());
        assert_eq!(merged, history);
    }

    #[test]
    fn lines_are_flat_json() {
        let kind = EventKind::Acquired { token: None, valid_until_ns: None, mode: Mode::Exclusive };
        let event = Event { process: 1, client: 2, lock: "x".into(), at_ns: 3, kind };
        let line = r#"{"process":1,"client":2,"lock":"x","at_ns":3,"kind":"acquired","mode":"exclusive"}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), line);
        let bare = r#"{"process":1,"client":2,"lock":"x","at_ns":3,"kind":"acquired"}"#;
        assert_eq!(serde_json::from_str::<Event>(bare).unwrap(), event);
    }

    #[test]
    fn only_an_unfinished_last_line_is_forgiven() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let recorder = Recorder::create(&path, 1).unwrap().flush_every_event();
        recorder.record(1, "x", EventKind::AcquireCalled);
        let whole = std::fs::read_to_string(&path).unwrap();
        assert_eq!(whole.lines().count(), 1, "the event was not flushed");

        std::fs::write(&path, format!("{whole}{}", &whole[..20])).unwrap();
        assert_eq!(History::load([&path]).unwrap().events().len(), 1);
        std::fs::write(&path, format!("{}\n{whole}", &whole[..20])).unwrap();
        assert!(matches!(History::load([&path]), Err(Error::Protocol { .. })));
        assert!(matches!(History::load([dir.path().join("none")]), Err(Error::Io { .. })));
    }

    #[test]
    fn an_unflushed_event_waits_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let recorder = Recorder::create(&path, 1).unwrap();
        recorder.record(1, "x", EventKind::Lost);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        recorder.flush().unwrap();
        assert_eq!(History::load([&path]).unwrap().events().len(), 1);
    }

    #[test]
    fn the_clock_moves_forward() {
        let before = now_ns();
        assert!(before > 0 && now_ns() >= before);
    }
}
