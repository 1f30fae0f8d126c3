//! The history of a run while it grows: in memory, or in a file when it is long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, History, Recorder};
use lock_testkit::now_ns;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::data::Outcome;

pub(crate) struct LiveHistory {
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    kept: Kept,
    seen: Seen,
    store: FencedStore,
}

/// The resource that a lock protects: it refuses the writes of earlier holders.
#[derive(Default)]
struct FencedStore {
    lock: String,
    largest: u64,
    /// A defect: it takes the token of every write.
    is_lax: bool,
}

enum Kept {
    InMemory(Vec<Event>),
    OnDisk { path: PathBuf, events: Recorder, errors: File },
}

/// When what was seen last.
#[derive(Default)]
pub(crate) struct Seen {
    granted_ns: BTreeMap<(u32, u64), u64>,
    wrote_ns: BTreeMap<(u32, u64), u64>,
    lock_granted_ns: BTreeMap<String, u64>,
    last_ns: u64,
    dying: BTreeSet<u32>,
}

impl LiveHistory {
    /// A short one, with the store that the holders of this lock write to. A defect of the store: it compares no tokens.
    pub(crate) fn in_memory(lock: &str, is_lax: bool) -> Self {
        let store = FencedStore { lock: lock.to_owned(), largest: 0, is_lax };
        Self::new(Kept::InMemory(Vec::new()), store)
    }

    /// A long one, in this folder, with the errors of the clients.
    pub(crate) fn on_disk(folder: &Path) -> Outcome<Self> {
        let path = folder.join("history.jsonl");
        let events = Recorder::create(&path, 0)?.flush_every_event();
        let errors = File::create(folder.join("errors.log"))?;
        Ok(Self::new(Kept::OnDisk { path, events, errors }, FencedStore::default()))
    }

    fn new(kept: Kept, store: FencedStore) -> Self {
        Self { inner: Mutex::new(Inner { kept, seen: Seen::default(), store }), changed: Notify::new() }
    }

    pub(crate) fn add(&self, event: Event) {
        self.inner().add(event);
        self.changed.notify_waiters();
    }

    /// Has the store decide on a write of this client.
    pub(crate) fn write(&self, (process, client): (u32, u64), token: u64) {
        let mut inner = self.inner();
        let store = &mut inner.store;
        let accepted = token >= store.largest || store.is_lax;
        store.largest = store.largest.max(token);
        let (lock, kind) = (store.lock.clone(), EventKind::Write { token, accepted });
        // The decisions are in the order of their times.
        inner.add(Event { process, client, lock, at_ns: now_ns(), kind });
        drop(inner);
        self.changed.notify_waiters();
    }

    pub(crate) fn add_error(&self, process: u32, error: &str) {
        if let Kept::OnDisk { errors, .. } = &mut self.inner().kept {
            // The verdict does not need it.
            let _ = writeln!(errors, "process {process}: {error}");
        }
    }

    /// The end of this process is no failure.
    pub(crate) fn expect_death(&self, process: u32) {
        self.inner().seen.dying.insert(process);
    }

    pub(crate) fn expects_death(&self, process: u32) -> bool {
        self.inner().seen.dying.contains(&process)
    }

    pub(crate) fn was_silent_since(&self, since_ns: u64) -> bool {
        self.inner().seen.last_ns <= since_ns
    }

    /// The locks without a grant since this time.
    pub(crate) fn waiting_since(&self, at_ns: u64) -> Vec<String> {
        let inner = self.inner();
        let waiting = inner.seen.lock_granted_ns.iter().filter(|(_, granted_ns)| **granted_ns < at_ns);
        waiting.map(|(lock, _)| lock.clone()).collect()
    }

    /// Waits until what was seen makes this true. Whether it did in time.
    pub(crate) async fn until(&self, patience: Duration, is_so: impl Fn(&Seen) -> bool + Sync) -> bool {
        let waiting = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                // From here on it misses no event.
                changed.as_mut().enable();
                if is_so(&self.inner().seen) {
                    break;
                }
                changed.await;
            }
        };
        timeout(patience, waiting).await.is_ok()
    }

    /// All events up to now. Those in memory are taken.
    pub(crate) fn take(&self) -> Outcome<History> {
        Ok(match &mut self.inner().kept {
            Kept::InMemory(events) => History::new(std::mem::take(events)),
            Kept::OnDisk { path, .. } => History::load([&*path])?,
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn add(&mut self, event: Event) {
        let Event { process, client, ref lock, at_ns, ref kind } = event;
        let raise = |last: &mut u64| *last = at_ns.max(*last);
        match kind {
            EventKind::Acquired { .. } => {
                raise(self.seen.granted_ns.entry((process, client)).or_default());
                if let Some(granted_ns) = self.seen.lock_granted_ns.get_mut(lock) {
                    raise(granted_ns);
                } else {
                    self.seen.lock_granted_ns.insert(lock.clone(), at_ns);
                }
            }
            EventKind::Write { .. } => raise(self.seen.wrote_ns.entry((process, client)).or_default()),
            _ => {}
        }
        raise(&mut self.seen.last_ns);
        match &mut self.kept {
            Kept::InMemory(events) => events.push(event),
            Kept::OnDisk { events, .. } => events.write(&event),
        }
    }
}

impl Seen {
    /// The clients that a lock was granted to since then.
    pub(crate) fn granted_since(&self, since_ns: u64) -> BTreeSet<(u32, u64)> {
        since(&self.granted_ns, since_ns)
    }

    /// The clients that have written since then.
    pub(crate) fn wrote_since(&self, since_ns: u64) -> BTreeSet<(u32, u64)> {
        since(&self.wrote_ns, since_ns)
    }
}

fn since(last_ns: &BTreeMap<(u32, u64), u64>, since_ns: u64) -> BTreeSet<(u32, u64)> {
    last_ns.iter().filter(|(_, at_ns)| **at_ns >= since_ns).map(|(client, _)| *client).collect()
}

#[cfg(test)]
mod tests {
    use lock_testkit::history::Mode;

    use super::*;

    #[test]
    fn locks_without_a_new_grant_are_listed_and_the_file_has_everything() {
        let folder = tempfile::tempdir().unwrap();
        let history = LiveHistory::on_disk(folder.path()).unwrap();
        let add = |process, lock: &str, at_ns, kind| {
            history.add(Event { process, client: 0, lock: lock.into(), at_ns, kind });
        };
        let granted = EventKind::Acquired { token: None, valid_until_ns: None, mode: Mode::Exclusive };
        assert_eq!(history.waiting_since(5), Vec::<String>::new());
        add(1, "a", 1, granted.clone());
        add(2, "b", 2, granted.clone());
        assert_eq!(history.waiting_since(2), ["a"]);
        add(1, "a", 3, EventKind::AcquireCalled);
        assert_eq!(history.waiting_since(2), ["a"]);
        add(1, "a", 4, granted);
        assert_eq!(history.waiting_since(4), ["b"]);
        assert_eq!(history.inner().seen.granted_since(4), BTreeSet::from([(1, 0)]));
        history.write((2, 7), 3);
        assert_eq!(history.inner().seen.wrote_since(4), BTreeSet::from([(2, 7)]));
        assert!(history.was_silent_since(now_ns()) && !history.was_silent_since(4));
        assert_eq!(history.take().unwrap().events().len(), 5);
    }

    #[test]
    fn smaller_tokens_are_refused() {
        let accepted = |is_lax| {
            let history = LiveHistory::in_memory("a", is_lax);
            [3, 3, 7, 3, 7, 8].into_iter().for_each(|token| history.write((1, 0), token));
            let events = history.take().unwrap();
            let taken = |event: &Event| matches!(event.kind, EventKind::Write { accepted: true, .. });
            events.events().iter().map(taken).collect::<Vec<_>>()
        };
        assert_eq!(accepted(false), [true, true, true, false, true, true]);
        assert_eq!(accepted(true), [true; 6]);
    }
}
