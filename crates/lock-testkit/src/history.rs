//! What happened to locks in many processes of one machine, on one clock.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One thing that happened to one lock.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Event {
    /// The process: its pid or the number that the test gave it.
    pub process: u32,
    /// The actor within the process. One actor does one thing after another and holds a lock at most once.
    pub client: u64,
    /// The name of the lock.
    pub lock: String,
    /// When, by [`now_ns`].
    pub at_ns: u64,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What can happen to a lock.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The client is about to ask for the lock.
    AcquireCalled,
    /// The client has got the lock.
    Acquired {
        /// The fencing token; none from a lock that gives none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Until when the guard believes that it holds, by [`now_ns`]; none when it believes so without an end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        valid_until_ns: Option<u64>,
        /// With whom the lock may be shared.
        #[serde(default)]
        mode: Mode,
    },
    /// The client did not get the lock, and surely does not hold it: busy, out of time, or refused.
    AcquireFailed,
    /// The client got an error and cannot know whether the server gave it the lock. It holds nothing.
    AcquireUnknown,
    /// The guard's belief has moved: renewal. To be recorded at the latest before [`ReleaseCalled`](Self::ReleaseCalled).
    Extended {
        /// Until when the guard believes that it holds, by [`now_ns`].
        valid_until_ns: u64,
    },
    /// The client, which holds the lock alone, is about to go on as a reader, and writes no more. From then on readers
    /// may come to hold it too; whether and when the request is carried out does not matter.
    DowngradeCalled,
    /// The guard has said that the lock is lost.
    Lost,
    /// The client is about to give the lock back, and has stopped using it.
    ReleaseCalled,
    /// The release has come back.
    Released {
        /// With what.
        outcome: ReleaseOutcome,
    },
    /// The protected resource has decided on a write. The *resource* records this, in the order of its decisions;
    /// process and client are those of the writer.
    Write {
        /// The token that came with the write.
        token: u64,
        /// Whether the resource took it.
        accepted: bool,
    },
    /// The test has killed the process, and all of its clients with it. Lock and client of this event mean nothing.
    Died,
}

/// With whom a holder may share a lock.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// With nobody.
    #[default]
    Exclusive,
    /// With other shared holders.
    Shared,
    /// With other holders of permits, as long as there are at most so many.
    Permit(u32),
}

/// How a release ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The lock was ours and is free now.
    Released,
    /// The lock was not ours any more.
    AlreadyLost,
    /// An error: the lock may have been freed or not.
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

/// Nanoseconds on the clock of all histories: `CLOCK_BOOTTIME`.
///
/// It is the same in every process of the machine, never steps, and goes on while the machine is suspended.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Recorder {
    /// Records for `process` into the file at `path`, after what is there already.
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

    /// Hands every event to the system before `record` returns, so that a process killed by SIGKILL loses none.
    #[must_use]
    pub fn flush_every_event(mut self) -> Self {
        self.flush = true;
        self
    }

    /// Records that something happened now.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would prove nothing.
    pub fn record(&self, client: u64, lock: &str, kind: EventKind) {
        self.record_at(now_ns(), client, lock, kind);
    }

    /// Records that something happened at a time that was taken before.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would prove nothing.
    pub fn record_at(&self, at_ns: u64, client: u64, lock: &str, kind: EventKind) {
        self.write(&Event { process: self.process, client, lock: lock.to_owned(), at_ns, kind });
    }

    /// Records an event about any process: a write that a resource saw, or a death that the test has caused.
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

    /// Hands all events to the system.
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
    /// Puts events in the order of time; those of the same time stay in their order.
    pub fn new(events: impl IntoIterator<Item = Event>) -> Self {
        let mut events: Vec<_> = events.into_iter().collect();
        events.sort_by_key(|event| event.at_ns);
        Self { events }
    }

    /// Loads and merges the files of several recorders.
    ///
    /// A last line that a killed process left unfinished is ignored.
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

    /// Joins another history into this one.
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
