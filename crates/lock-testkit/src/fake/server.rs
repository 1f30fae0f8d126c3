//! The server: data, scripts and connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::commands::{self, Command, Kind};
use super::keyspace::Keyspace;
use super::reply::{Answer, Bytes, Reply};
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

    /// Runs a command of a connection, and puts the reply into its outbox.
    pub(super) fn serve(&mut self, id: u64, words: &[Bytes]) {
        let Some(session) = self.sessions.get(&id) else { return };
        let label = session.label.clone();
        let reply = self.run(id, words);
        self.note(|| format!("{label}/{id}: {} -> {}", commands::show(words), shown(&reply)));
        self.send(id, &reply);
        self.notify_trackers(id);
    }

    /// Runs a command for the test.
    pub(super) fn serve_test(&mut self, words: &[Bytes]) -> Reply {
        let reply = self.run(0, words);
        self.notify_trackers(0);
        reply
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

    fn run(&mut self, id: u64, words: &[Bytes]) -> Reply {
        self.tick();
        let mut call = Call { server: self, session: id, in_script: false };
        call.run(words).unwrap_or_else(Reply::Error)
    }

    fn send(&self, id: u64, reply: &Reply) {
        let Some(session) = self.sessions.get(&id) else { return };
        let mut bytes = Bytes::new();
        reply.write(session.resp3, &mut bytes);
        // Fails when the connection has ended.
        let _ = session.outbox.send((Instant::now(), bytes));
    }

    /// Whether it has less memory than it says that it uses.
    fn is_full(&self) -> bool {
        let limit = self.config.get("maxmemory").and_then(|limit| limit.parse().ok()).unwrap_or(0);
        limit != 0 && limit < USED_MEMORY
    }

    fn watch(&mut self, id: u64, key: &[u8]) {
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
    /// Runs one command.
    pub(super) fn run(&mut self, words: &[Bytes]) -> Answer {
        let command = self.find(words)?;
        self.admit(command)?;
        self.find_memory(command)?;
        let reply = (command.run)(self, words);
        if let Kind::Read(keys) = command.kind {
            for key in keys.of(words) {
                self.server.watch(self.session, key);
            }
        }
        reply
    }

    pub(super) fn keys(&mut self) -> &mut Keyspace {
        &mut self.server.keys
    }

    pub(super) fn client(&mut self) -> Result<&mut Session, String> {
        self.server.sessions.get_mut(&self.session).ok_or_else(|| "ERR the test has no connection".to_owned())
    }

    fn find(&self, words: &[Bytes]) -> Result<&'static Command, String> {
        let name = words.first().map(|word| String::from_utf8_lossy(word).to_lowercase()).unwrap_or_default();
        let Some(command) = commands::named(&name) else {
            return Err(match self.in_script {
                true => "ERR Unknown Redis command called from script".to_owned(),
                false => {
                    let args: Vec<_> =
                        words.iter().skip(1).map(|word| format!("'{}' ", text(word))).collect();
                    format!(
                        "ERR unknown command '{}', with args beginning with: {}",
                        text(&words[0]),
                        args.concat()
                    )
                }
            });
        };
        let given = words.len() as i64;
        if if command.arity >= 0 { given == command.arity } else { given >= -command.arity } {
            return Ok(command);
        }
        Err(match self.in_script {
            true => "ERR Wrong number of args calling Redis command from script".to_owned(),
            false => format!("ERR wrong number of arguments for '{name}' command"),
        })
    }

    /// Refuses what may need memory if there is none, but not in the middle of what a script writes.
    fn find_memory(&mut self, command: &Command) -> Result<(), String> {
        let needs_memory = NEED_MEMORY.contains(&command.name);
        if needs_memory && self.server.is_full() && !(self.in_script && self.server.script_wrote) {
            return Err("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        self.server.script_wrote |= self.in_script && (needs_memory || NEED_NONE.contains(&command.name));
        Ok(())
    }

    fn admit(&self, command: &Command) -> Result<(), String> {
        if self.in_script {
            return match command.kind {
                Kind::Connection => Err("ERR This Redis command is not allowed from script".to_owned()),
                _ => Ok(()),
            };
        }
        let Some(session) = self.server.sessions.get(&self.session) else { return Ok(()) };
        if !session.known && !["auth", "hello"].contains(&command.name) {
            return Err("NOAUTH Authentication required.".to_owned());
        }
        let listens = !(session.channels.is_empty() && session.shard_channels.is_empty());
        if listens && !session.resp3 && !WHILE_LISTENING.contains(&command.name) {
            return Err(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context",
                command.name
            ));
        }
        Ok(())
    }
}

/// What the server says that it uses, in bytes.
pub(super) const USED_MEMORY: u64 = 1_000_000;

/// The commands that a server whose memory is full refuses.
const NEED_MEMORY: [&str; 4] = ["lpush", "rpush", "set", "zadd"];
/// The other commands that write.
const NEED_NONE: [&str; 9] =
    ["del", "flushall", "lpop", "lrem", "pexpire", "pexpireat", "zpopmin", "zrem", "zremrangebyscore"];

const WHILE_LISTENING: [&str; 5] = ["subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping"];

/// Bytes as text, lossily.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shown(reply: &Reply) -> String {
    let mut bytes = Bytes::new();
    reply.write(true, &mut bytes);
    let line = text(&bytes).trim_end().replace("\r\n", " ");
    line.chars().take(160).collect()
}
