//! The server: data, scripts and connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::keyspace::Keyspace;
use super::reply::{Bytes, Reply};
use super::trace::Trace;

/// The server's clock starts in 2023. Tokens are microseconds since 1970.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// One fake server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) keys: Keyspace,
    /// Loaded scripts by their SHA-1.
    pub(super) scripts: BTreeMap<String, Arc<[u8]>>,
    pub(super) sessions: BTreeMap<u64, Session>,
    /// For each key the connections that have read it, to be notified once when it changes.
    watched: BTreeMap<Bytes, BTreeSet<u64>>,
    pub(super) password: Option<String>,
    pub(super) config: BTreeMap<String, String>,
    pub(super) clock: ServerClock,
    pub(super) run_id: String,
    /// When it was started, by its wall clock, by which it counts its uptime.
    pub(super) started_us: i64,
    /// The server is down: connections are refused.
    pub(super) down: bool,
    /// The time of the current command, in microseconds since 1970; constant during a script.
    pub(super) now_us: i64,
    /// Which of several servers it is.
    pub(super) number: u64,
    starts: u64,
    last_session: u64,
    /// Whether the present script has written. After that, it is not refused for want of memory.
    pub(super) script_wrote: bool,
    /// The trace, and the server's name in it.
    pub(super) trace: Option<(Trace, String)>,
}

/// The server's wall clock: it follows tokio's and can be stepped.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    origin: Instant,
    offset_us: i64,
}

/// What the server knows about one connection.
#[derive(Debug)]
pub(super) struct Session {
    /// Its replies and pushes, with their times.
    outbox: mpsc::UnboundedSender<(Instant, Bytes)>,
    /// Ends the connection when dropped.
    _alive: watch::Sender<()>,
    pub(super) label: String,
    pub(super) name: Bytes,
    pub(super) resp3: bool,
    pub(super) known: bool,
    pub(super) tracking: bool,
    pub(super) noloop: bool,
    pub(super) channels: BTreeSet<Bytes>,
    pub(super) shard_channels: BTreeSet<Bytes>,
}

/// The ends of a new connection.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) id: u64,
    pub(super) outbox: mpsc::UnboundedReceiver<(Instant, Bytes)>,
    /// Ends when the server drops the connection.
    pub(super) alive: watch::Receiver<()>,
}

/// The execution of a command for a connection.
pub(super) struct Call<'a> {
    pub(super) server: &'a mut Server,
    /// Zero is the test itself, which has no connection.
    pub(super) session: u64,
    pub(super) in_script: bool,
}

impl Server {
    pub(super) fn new() -> Self {
        let config =
            [("maxmemory-policy", "noeviction"), ("maxmemory", "0"), ("appendonly", "no"), ("save", "")];
        let mut server = Self {
            keys: Keyspace::default(),
            scripts: BTreeMap::new(),
            sessions: BTreeMap::new(),
            watched: BTreeMap::new(),
            password: None,
            config: config.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            clock: ServerClock { origin: Instant::now(), offset_us: 0 },
            run_id: String::new(),
            started_us: 0,
            down: false,
            now_us: 0,
            number: 0,
            starts: 0,
            last_session: 0,
            script_wrote: false,
            trace: None,
        };
        server.start();
        server.tick();
        server
    }

    /// Ends all connections and drops all state but the data.
    pub(super) fn crash(&mut self) {
        self.note(|| "the server goes down".to_owned());
        self.sessions.clear();
        self.watched.clear();
        self.scripts.clear();
        self.down = true;
    }

    pub(super) fn start(&mut self) {
        self.starts += 1;
        self.run_id = format!("{:020x}{:020x}", self.number, self.starts);
        self.started_us = self.clock.now_us();
        self.down = false;
    }

    pub(super) fn accept(&mut self, label: &str) -> Option<Accepted> {
        if self.down {
            return None;
        }
        self.last_session += 1;
        let (outbox, outbox_receiver) = mpsc::unbounded_channel();
        let (alive, alive_receiver) = watch::channel(());
        let session = Session {
            outbox,
            _alive: alive,
            label: label.to_owned(),
            name: Bytes::new(),
            resp3: false,
            known: self.password.is_none(),
            tracking: false,
            noloop: false,
            channels: BTreeSet::new(),
            shard_channels: BTreeSet::new(),
        };
        let id = self.last_session;
        self.sessions.insert(id, session);
        self.note(|| format!("{label} connects as {id}"));
        Some(Accepted { id, outbox: outbox_receiver, alive: alive_receiver })
    }

    pub(super) fn hang_up(&mut self, id: u64) {
        if let Some(session) = self.sessions.remove(&id) {
            self.note(|| format!("{} ends connection {id}", session.label));
            self.forget_watcher(id);
        }
    }

    /// Ends all connections of this label.
    pub(super) fn hang_up_all(&mut self, label: &str) {
        let ids: Vec<_> = self.sessions.iter().filter(|(_, session)| session.label == label).collect();
        let ids: Vec<u64> = ids.into_iter().map(|(id, _)| *id).collect();
        for id in ids {
            self.hang_up(id);
        }
    }

    /// Updates the current time.
    pub(super) fn tick(&mut self) {
        self.now_us = self.clock.now_us();
        self.keys.set_now(self.now_us / 1000);
    }

    /// Removes expired tracked keys, and returns the time until the next one expires.
    pub(super) fn reap(&mut self) -> Option<Duration> {
        self.tick();
        let watched: Vec<_> = self.watched.keys().cloned().collect();
        for key in watched {
            self.keys.look(&key);
        }
        self.notify_trackers(0);
        let end = self.keys.first_end(self.watched.keys())?;
        Some(Duration::from_micros(((end + 1) * 1000 - self.now_us).max(0) as u64))
    }

    /// Notifies the trackers of changed keys. The connection that changed a key is notified after its reply.
    pub(super) fn notify_trackers(&mut self, changer: u64) {
        for key in self.keys.take_changed() {
            for id in self.watched.remove(&key).unwrap_or_default() {
                let hears = |session: &Session| session.tracking && !(session.noloop && id == changer);
                if self.sessions.get(&id).is_some_and(hears) {
                    let keys = Reply::Array(vec![Reply::Bulk(key.clone())]);
                    self.push(id, vec![Reply::bulk("invalidate"), keys]);
                }
            }
        }
    }

    /// Notifies all trackers that all keys were removed.
    pub(super) fn notify_flush(&mut self) {
        drop(self.keys.take_changed());
        self.watched.clear();
        let trackers: Vec<_> = self.sessions.iter().filter(|(_, session)| session.tracking).collect();
        let trackers: Vec<u64> = trackers.into_iter().map(|(id, _)| *id).collect();
        for id in trackers {
            self.push(id, vec![Reply::bulk("invalidate"), Reply::Nil]);
        }
    }

    pub(super) fn forget_watcher(&mut self, id: u64) {
        self.watched.retain(|_, watchers| {
            watchers.remove(&id);
            !watchers.is_empty()
        });
    }

    pub(super) fn has_watchers(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Sends a push. Over RESP2 only pub/sub messages are sent.
    pub(super) fn push(&self, id: u64, elements: Vec<Reply>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let invalidation = elements.first() == Some(&Reply::bulk("invalidate"));
        if invalidation && !session.resp3 {
            return;
        }
        let label = session.label.clone();
        let push = Reply::Push(elements);
        self.note(|| format!("{label}/{id}: push {}", shown(&push)));
        self.send(id, &push);
    }

    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if let Some((trace, name)) = &self.trace {
            trace.note(&format!("{name}{}", what()));
        }
    }

    pub(super) fn send(&self, id: u64, reply: &Reply) {
        let Some(session) = self.sessions.get(&id) else { return };
        let mut bytes = Bytes::new();
        reply.write(session.resp3, &mut bytes);
        // Fails when the connection has ended.
        let _ = session.outbox.send((Instant::now(), bytes));
    }

    /// Whether it has less memory than it says that it uses.
    pub(super) fn is_full(&self) -> bool {
        let limit = self.config.get("maxmemory").and_then(|limit| limit.parse().ok()).unwrap_or(0);
        limit != 0 && limit < USED_MEMORY
    }

    pub(super) fn watch(&mut self, id: u64, key: &[u8]) {
        if self.sessions.get(&id).is_some_and(|session| session.tracking) {
            self.watched.entry(key.to_vec()).or_default().insert(id);
        }
    }
}

impl ServerClock {
    pub(super) fn now_us(&self) -> i64 {
        let passed = (EPOCH + self.origin.elapsed()).as_micros() as i64;
        passed + self.offset_us
    }

    pub(super) fn step(&mut self, by_us: i64) {
        self.offset_us += by_us;
    }
}

impl Call<'_> {
    pub(super) fn keys(&mut self) -> &mut Keyspace {
        &mut self.server.keys
    }

    pub(super) fn client(&mut self) -> Result<&mut Session, String> {
        self.server.sessions.get_mut(&self.session).ok_or_else(|| "ERR the test has no connection".to_owned())
    }
}

/// What the server says that it uses, in bytes.
pub(super) const USED_MEMORY: u64 = 1_000_000;

/// Bytes as text, lossily.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A reply as the log shows it.
pub(super) fn shown(reply: &Reply) -> String {
    let mut bytes = Bytes::new();
    reply.write(true, &mut bytes);
    let line = text(&bytes).trim_end().replace("\r\n", " ");
    line.chars().take(160).collect()
}
