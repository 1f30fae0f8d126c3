//! An ensemble in memory, on tokio's clock: a leader, followers that lag, sessions that end.
//!
//! What it takes over from ZooKeeper: one order of transactions; a server answers reads from what it has applied, and
//! tells watches of a change before it answers with it; a client is not taken by a server that is behind what it has
//! seen; a session that has moved is no longer served where it was; the leader ends sessions, and learns of those on a
//! follower only by that follower, every half tick. There is no voting: a transaction counts once the leader has it,
//! and the next leader has them all. A leader that is cut off does not know of the next one for a while: it goes on as it
//! was, takes in the sessions that it knows, answers reads and `sync`, and writes wait for a majority that it does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_testkit::fake::{Dice, Trace};
use lock_zk::zookeeper_client::Error;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, sleep_until};

use super::tree::{Change, Op, Response, Tree, Txn, parent};

/// The ensemble. Clones are the same.
#[derive(Clone)]
pub(crate) struct Ensemble(Arc<Shared>);

struct Shared {
    world: Mutex<World>,
    /// A server has applied something, or went down.
    applied: Notify,
    /// How long a tick is, and half of the shortest session timeout.
    tick: Duration,
}

struct World {
    servers: Vec<Server>,
    leader: Option<usize>,
    deposed: Option<Deposed>,
    /// What was decided: when, and what it made of the tree.
    log: Vec<Entry>,
    zxid: i64,
    sessions: BTreeMap<i64, Session>,
    next_session: i64,
    next_connection: u64,
    dice: Dice,
    /// Whether followers keep up.
    calm: bool,
    began: Instant,
    trace: Option<Trace>,
}

struct Entry {
    zxid: i64,
    at: i64,
    txns: Vec<Txn>,
}

struct Server {
    tree: Tree,
    /// How much of the log it has applied.
    applied: usize,
    up: bool,
    /// The longest session timeout that it grants.
    limit: Duration,
    /// Until when it applies nothing.
    lags_until: Instant,
    connections: BTreeMap<u64, Connection>,
    watches: BTreeMap<String, BTreeSet<u64>>,
    /// The sessions that were alive since its last report to the leader.
    heard: BTreeSet<i64>,
}

/// A leader that was cut off, and does not know that it has no followers.
struct Deposed {
    server: usize,
    /// The sessions that it knows, and their timeouts.
    sessions: BTreeMap<i64, Duration>,
}

/// The server's end of a connection.
struct Connection {
    session: i64,
    out: UnboundedSender<Packet>,
}

struct Session {
    timeout: Duration,
    ends: Instant,
    /// The connection over which it is served.
    owner: u64,
}

/// What a server sends.
#[derive(Debug)]
pub(crate) enum Packet {
    Event(String, Change),
    Answer { zxid: i64, answer: Result<Response, Error> },
    Pong,
}

/// The answer of a server to a connecting client.
#[derive(Debug)]
pub(crate) enum Greeting {
    Welcome {
        session: i64,
        connection: u64,
        timeout: Duration,
    },
    /// The server is down, or behind the client.
    Refused,
    /// The server would grant less than the client asks for, and the session has not moved.
    Shorter,
    Expired,
}

impl Ensemble {
    pub(crate) fn new(servers: usize, tick: Duration, seed: u64) -> Self {
        let now = Instant::now();
        let server = || Server {
            tree: Tree::new(),
            applied: 0,
            up: true,
            limit: Duration::MAX,
            lags_until: now,
            connections: BTreeMap::new(),
            watches: BTreeMap::new(),
            heard: BTreeSet::new(),
        };
        let world = World {
            servers: (0..servers).map(|_| server()).collect(),
            leader: Some(0),
            deposed: None,
            log: Vec::new(),
            zxid: 1 << 32,
            sessions: BTreeMap::new(),
            next_session: 0x1000,
            next_connection: 1,
            dice: Dice::new(seed),
            calm: false,
            began: now,
            trace: None,
        };
        let ensemble = Self(Arc::new(Shared { world: Mutex::new(world), applied: Notify::new(), tick }));
        drop(tokio::spawn(keep_time(Arc::downgrade(&ensemble.0))));
        ensemble
    }

    /// Keeps this trace from now on.
    pub(crate) fn keep(&self, trace: &Trace) {
        self.world().trace = Some(trace.clone());
    }

    /// From now on containers are refused.
    pub(crate) fn guard_containers(&self) {
        self.world().servers.iter_mut().for_each(|server| server.tree.guard());
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        self.world().note(what);
    }

    pub(crate) fn servers(&self) -> usize {
        self.world().servers.len()
    }

    /// The ephemeral nodes that the leader knows.
    pub(crate) fn ephemerals(&self) -> Vec<String> {
        let mut world = self.world();
        let leader = world.leader.unwrap_or(0);
        world.catch_up(leader, usize::MAX);
        world.servers[leader].tree.ephemerals(None)
    }

    pub(crate) fn connections(&self) -> usize {
        self.world().servers.iter().map(|server| server.connections.len()).sum()
    }

    /// Watches of nodes on all servers.
    pub(crate) fn watches(&self) -> usize {
        self.world()
            .servers
            .iter()
            .map(|server| server.watches.values().map(BTreeSet::len).sum::<usize>())
            .sum()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap()
    }
}

/// What clients do.
impl Ensemble {
    /// Opens a session, or goes on with it, by the timeout that this server grants.
    pub(crate) fn greet(
        &self,
        server: usize,
        session: Option<i64>,
        timeout: Duration,
        accepts_less: bool,
        seen: i64,
        out: UnboundedSender<Packet>,
    ) -> Greeting {
        let mut world = self.world();
        let at = &world.servers[server];
        if !at.up || world.zxid_of(at.applied) < seen {
            return Greeting::Refused;
        }
        let granted = timeout.min(at.limit).max(self.0.tick * 2);
        if granted < timeout && !accepts_less {
            return Greeting::Shorter;
        }
        let connection = world.next_connection;
        world.next_connection += 1;
        if let Some(deposed) = world.deposed.as_ref().filter(|deposed| deposed.server == server) {
            let Some(session) = session else { return Greeting::Refused };
            let Some(&timeout) = deposed.sessions.get(&session) else { return Greeting::Expired };
            world.servers[server].take_in(session, connection, out);
            return Greeting::Welcome { session, connection, timeout };
        }
        let Some(leader) = world.leader else { return Greeting::Refused };
        let session = match session {
            Some(session) => session,
            None => {
                world.next_session += 1;
                let session = world.next_session;
                world
                    .sessions
                    .insert(session, Session { timeout: granted, ends: Instant::now(), owner: connection });
                world.commit(Vec::new());
                session
            }
        };
        let Some(known) = world.sessions.get_mut(&session) else { return Greeting::Expired };
        *known = Session { timeout: granted, ends: Instant::now() + granted, owner: connection };
        world.servers[server].take_in(session, connection, out);
        world.note(|| format!("session {session:#x} is served by connection {connection}, leader {leader}"));
        Greeting::Welcome { session, connection, timeout: granted }
    }

    /// A packet arrived: the server heard of the session. Says whether the connection is served.
    pub(crate) fn hear(&self, server: usize, connection: u64) -> bool {
        let mut world = self.world();
        let leads = world.leader == Some(server);
        let Some(session) = world.servers[server].connections.get(&connection).map(|one| one.session) else {
            return false;
        };
        if leads {
            world.touch(session);
        } else if !world.is_deposed(server) {
            world.servers[server].heard.insert(session);
        }
        true
    }

    pub(crate) fn pong(&self, server: usize, connection: u64) {
        self.world().servers[server].send(connection, Packet::Pong);
    }

    /// Sets watches again after a reconnection, and sends the missed events, in any order.
    pub(crate) fn set_watches(&self, server: usize, connection: u64, seen: i64, paths: Vec<(String, bool)>) {
        let mut world = self.world();
        let mut missed = Vec::new();
        for (path, existed) in paths {
            let stat = world.servers[server].tree.stat(&path);
            let change = match stat {
                None if existed => Some(Change::Deleted),
                Some(_) if !existed => Some(Change::Created),
                Some(stat) if stat.mzxid > seen => Some(Change::Changed),
                _ => None,
            };
            match change {
                Some(change) => missed.push((path, change)),
                None => drop(world.servers[server].watches.entry(path).or_default().insert(connection)),
            }
        }
        while !missed.is_empty() {
            let next = world.dice.below(missed.len() as u64) as usize;
            let (path, change) = missed.remove(next);
            world.servers[server].send(connection, Packet::Event(path, change));
        }
    }

    /// Serves one request, in the order of the connection. Nothing is answered if the connection broke meanwhile.
    pub(crate) async fn serve(&self, server: usize, connection: u64, op: Op) {
        if !self.hear(server, connection) {
            return;
        }
        if !op.is_write() && !matches!(op, Op::Sync) {
            return self.world().read(server, connection, &op);
        }
        if self.world().is_deposed(server) {
            if op.is_write() {
                // No majority has it before it is forgotten.
                return self.applied(server, connection, usize::MAX).await;
            }
            return self.world().answer_sync(server, connection);
        }
        if self.world().leader != Some(server) {
            let way = self.world().dice.millis(0..=2);
            sleep(way).await;
        }
        let Some((answer, behind)) = self.world().lead(server, connection, &op) else { return };
        self.applied(server, connection, behind).await;
        let world = self.world();
        let zxid = world.zxid_of(world.servers[server].applied);
        world.servers[server].send(connection, Packet::Answer { zxid, answer });
    }

    /// Waits until a server has applied so much.
    async fn applied(&self, server: usize, connection: u64, behind: usize) {
        loop {
            let changed = self.0.applied.notified();
            {
                let world = self.world();
                let at = &world.servers[server];
                if at.applied >= behind || !at.connections.contains_key(&connection) {
                    return;
                }
            }
            changed.await;
        }
    }

    pub(crate) fn close_session(&self, server: usize, connection: u64) {
        let mut world = self.world();
        let Some(session) = world.servers[server].connections.get(&connection).map(|one| one.session) else {
            return;
        };
        if world.is_deposed(server) {
            return;
        }
        if world.owns(session, connection) {
            world.end_session(session);
        }
        let zxid = world.zxid;
        world.servers[server].send(connection, Packet::Answer { zxid, answer: Ok(Response::Done) });
        world.servers[server].drop_connection(connection);
        drop(world);
        self.0.applied.notify_waiters();
    }

    pub(crate) fn hang_up(&self, server: usize, connection: u64) {
        self.world().servers[server].drop_connection(connection);
        self.0.applied.notify_waiters();
    }
}

/// What goes wrong.
impl Ensemble {
    /// A server goes down, and comes back with its data. If it led, another one does after a while. Whom it has heard
    /// since its last report to the leader, it no longer reports.
    pub(crate) async fn restart(&self, server: usize, down: Duration) {
        let elect = {
            let mut world = self.world();
            world.note(|| format!("server {server} goes down"));
            let led = world.leader == Some(server);
            world.servers[server].heard.clear();
            world.servers[server].up = false;
            world.servers[server].hang_up();
            if led {
                world.leader = None;
                world.servers.iter_mut().for_each(Server::hang_up);
            }
            led
        };
        self.0.applied.notify_waiters();
        let vote = down.min(self.0.tick);
        sleep(vote).await;
        if elect {
            self.elect(server);
        }
        sleep(down.saturating_sub(vote)).await;
        let mut world = self.world();
        world.servers[server].up = true;
        world.catch_up(server, usize::MAX);
        world.note(|| format!("server {server} is back"));
    }

    /// A server grants no more than this from its next start on.
    pub(crate) fn set_limit(&self, server: usize, limit: Duration) {
        self.world().servers[server].limit = limit;
    }

    /// The leader is cut off from the others for so long, which elect another one.
    pub(crate) async fn cut_off(&self, span: Duration) {
        let server = {
            let mut world = self.world();
            let Some(server) = world.leader.filter(|_| world.servers.len() > 2) else { return };
            world.note(|| format!("server {server} is cut off for {span:?}, and leads on"));
            world.catch_up(server, usize::MAX);
            let sessions = world.sessions.iter().map(|(id, session)| (*id, session.timeout)).collect();
            (world.leader, world.deposed) = (None, Some(Deposed { server, sessions }));
            let others = world.servers.iter_mut().enumerate().filter(|(other, _)| *other != server);
            others.for_each(|(_, other)| other.hang_up());
            server
        };
        self.0.applied.notify_waiters();
        let vote = span.min(self.0.tick);
        sleep(vote).await;
        self.elect(server);
        sleep(span - vote).await;
        let mut world = self.world();
        world.deposed = None;
        world.servers[server].hang_up();
        world.note(|| format!("server {server} learns that it no longer leads"));
        drop(world);
        self.0.applied.notify_waiters();
    }

    fn elect(&self, before: usize) {
        let mut world = self.world();
        let next = (0..world.servers.len()).map(|step| (before + 1 + step) % world.servers.len());
        let next = next.clone().find(|&server| world.servers[server].up && !world.is_deposed(server));
        let next = next.unwrap_or(before);
        world.catch_up(next, usize::MAX);
        world.leader = Some(next);
        world.zxid = ((world.zxid >> 32) + 1) << 32;
        let now = Instant::now();
        world.sessions.values_mut().for_each(|session| session.ends = now + session.timeout);
        world.note(|| format!("server {next} leads"));
    }

    /// A follower applies nothing for a while.
    pub(crate) fn lag(&self, server: usize, span: Duration) {
        let mut world = self.world();
        world.note(|| format!("server {server} lags for {span:?}"));
        world.servers[server].lags_until = Instant::now() + span;
    }

    /// From now on followers keep up.
    pub(crate) fn calm_down(&self) {
        let mut world = self.world();
        world.calm = true;
        let now = Instant::now();
        world.servers.iter_mut().for_each(|server| server.lags_until = now);
    }

    /// The leader ends a session now.
    pub(crate) fn expire(&self, session: i64) {
        self.world().end_session(session);
        self.0.applied.notify_waiters();
    }

    /// Removes a node of this session that waits, as an operator might, and says whether there was one.
    pub(crate) fn remove_waiter(&self, session: i64) -> bool {
        let mut world = self.world();
        let Some(leader) = world.leader else { return false };
        world.catch_up(leader, usize::MAX);
        let tree = &world.servers[leader].tree;
        let number = |path: &str| path[path.len() - 10..].to_owned();
        let all = tree.ephemerals(None);
        let waits = |path: &&String| {
            let dir = parent(path);
            all.iter().any(|other| parent(other) == dir && number(other) < number(path))
        };
        let Some(path) = tree.ephemerals(Some(session)).iter().find(waits).cloned() else { return false };
        drop(world.decide(leader, &Op::Delete { path: path.clone(), version: None }, 0));
        world.note(|| format!("{path} is removed"));
        true
    }

    /// Removes containers that have been used and are empty.
    pub(crate) fn reap(&self) {
        let mut world = self.world();
        let Some(leader) = world.leader else { return };
        for path in world.servers[leader].tree.to_reap() {
            let op = Op::Delete { path, version: None };
            drop(world.decide(leader, &op, 0));
        }
    }
}

impl World {
    fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.note(&what());
        }
    }

    fn zxid_of(&self, applied: usize) -> i64 {
        applied.checked_sub(1).map_or(0, |last| self.log[last].zxid)
    }

    fn owns(&self, session: i64, connection: u64) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.owner == connection)
    }

    fn is_deposed(&self, server: usize) -> bool {
        self.deposed.as_ref().is_some_and(|deposed| deposed.server == server)
    }

    /// A leader answers by itself.
    fn answer_sync(&self, server: usize, connection: u64) {
        let zxid = self.zxid_of(self.servers[server].applied);
        self.servers[server].send(connection, Packet::Answer { zxid, answer: Ok(Response::Done) });
    }

    fn touch(&mut self, session: i64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.ends = session.ends.max(Instant::now() + session.timeout);
        }
    }

    /// A follower reports to the leader which sessions are alive.
    fn report(&mut self, server: usize) {
        if self.leader.is_some() && self.servers[server].up {
            let heard = std::mem::take(&mut self.servers[server].heard);
            heard.into_iter().for_each(|session| self.touch(session));
        }
    }

    fn read(&mut self, server: usize, connection: u64, op: &Op) {
        let at = &mut self.servers[server];
        let Some(session) = at.connections.get(&connection).map(|one| one.session) else { return };
        let answer = at.tree.read(op);
        if let (Op::Stat { path, watch: true } | Op::Data { path, watch: true }, Ok(_)) = (op, &answer) {
            at.watches.entry(path.clone()).or_default().insert(connection);
        }
        let zxid = self.zxid_of(self.servers[server].applied);
        self.note(|| format!("{session:#x} at {server}: {} -> {}", short(op), short(&answer)));
        self.servers[server].send(connection, Packet::Answer { zxid, answer });
    }

    /// What the leader makes of a request, and how much of the log the server has to apply before it answers.
    fn lead(&mut self, server: usize, connection: u64, op: &Op) -> Option<(Result<Response, Error>, usize)> {
        let leader = self.leader?;
        self.catch_up(leader, usize::MAX);
        let session = self.servers[server].connections.get(&connection)?.session;
        // A session that has ended or moved is not served here any more.
        if !self.owns(session, connection) {
            self.servers[server].drop_connection(connection);
            return None;
        }
        let answer = match op {
            Op::Sync => Ok(Response::Done),
            op => self.decide(leader, op, session),
        };
        self.note(|| format!("{session:#x} at {server}: {} -> {}", short(op), short(&answer)));
        Some((answer, self.log.len()))
    }

    fn decide(&mut self, leader: usize, op: &Op, session: i64) -> Result<Response, Error> {
        self.catch_up(leader, usize::MAX);
        let (zxid, now) = (self.zxid + 1, self.now());
        let (txns, answer) = self.servers[leader].tree.decide(op, session, zxid, now);
        self.commit(txns);
        self.servers[leader].applied = self.log.len();
        let entry = self.log.len() - 1;
        self.tell(leader, entry);
        answer
    }

    /// Writes a transaction down.
    fn commit(&mut self, txns: Vec<Txn>) {
        self.zxid += 1;
        self.log.push(Entry { zxid: self.zxid, at: self.now(), txns });
    }

    fn now(&self) -> i64 {
        1_700_000_000_000 + self.began.elapsed().as_millis() as i64
    }

    fn end_session(&mut self, session: i64) {
        if self.sessions.remove(&session).is_none() {
            return;
        }
        self.note(|| format!("session {session:#x} ends"));
        let leader = self.leader.unwrap_or(0);
        self.catch_up(leader, usize::MAX);
        let paths = self.servers[leader].tree.ephemerals(Some(session));
        self.commit(paths.into_iter().map(|path| Txn::Delete { path }).collect());
        self.catch_up(leader, usize::MAX);
        let deposed = self.deposed.as_ref().map(|deposed| deposed.server);
        let knows = |(number, _): &(usize, &mut Server)| Some(*number) != deposed;
        for (_, server) in self.servers.iter_mut().enumerate().filter(knows) {
            let over: Vec<u64> = server
                .connections
                .iter()
                .filter(|(_, one)| one.session == session)
                .map(|(id, _)| *id)
                .collect();
            over.into_iter().for_each(|id| server.drop_connection(id));
        }
    }

    /// Lets a server apply the log up to there.
    fn catch_up(&mut self, server: usize, to: usize) {
        while self.servers[server].applied < self.log.len().min(to) {
            let next = self.servers[server].applied;
            let entry = &self.log[next];
            for txn in &entry.txns {
                self.servers[server].tree.apply(txn, entry.zxid, entry.at);
            }
            self.servers[server].applied += 1;
            self.tell(server, next);
        }
    }

    /// Notifies the watches on a server of what it has just applied.
    fn tell(&mut self, server: usize, entry: usize) {
        let at = &mut self.servers[server];
        for (path, change) in self.log[entry].txns.iter().map(Txn::change) {
            for connection in at.watches.remove(path).unwrap_or_default() {
                at.send(connection, Packet::Event(path.to_owned(), change));
            }
        }
    }
}

impl Server {
    fn send(&self, connection: u64, packet: Packet) {
        if let Some(connection) = self.connections.get(&connection) {
            let _ = connection.out.send(packet);
        }
    }

    /// Serves a session from now on over this connection.
    fn take_in(&mut self, session: i64, connection: u64, out: UnboundedSender<Packet>) {
        // It notices that its client is back over another connection.
        let old = self.connections.iter().filter(|(_, one)| one.session == session);
        let old: Vec<u64> = old.map(|(id, _)| *id).collect();
        old.into_iter().for_each(|id| self.drop_connection(id));
        self.connections.insert(connection, Connection { session, out });
    }

    fn hang_up(&mut self) {
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.drop_connection(id));
    }

    fn drop_connection(&mut self, connection: u64) {
        self.connections.remove(&connection);
        for watching in self.watches.values_mut() {
            watching.remove(&connection);
        }
        self.watches.retain(|_, watching| !watching.is_empty());
    }
}

/// Followers apply what the leader decided and report live sessions to it, and the leader ends sessions.
async fn keep_time(shared: std::sync::Weak<Shared>) {
    let mut step = 0_u32;
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let pace = strong.tick / STEPS;
        let ensemble = Ensemble(strong);
        {
            let mut world = ensemble.world();
            let now = Instant::now();
            for server in 0..world.servers.len() {
                // A follower that is slow to apply is not slow to report sessions.
                if step.is_multiple_of(STEPS / 2) {
                    world.report(server);
                }
                let at = &world.servers[server];
                if !at.up || at.lags_until > now || world.is_deposed(server) {
                    continue;
                }
                // It need not have got all of it by now.
                let (applied, behind) = (at.applied, world.log.len() - at.applied);
                let all = world.calm || world.dice.chance(0.7);
                let some = if all { behind } else { world.dice.below(behind as u64 + 1) as usize };
                world.catch_up(server, applied + some);
            }
            if world.leader.is_some() {
                let over = world.sessions.iter().filter(|(_, session)| session.ends <= now);
                let over: Vec<i64> = over.map(|(id, _)| *id).collect();
                over.into_iter().for_each(|session| world.end_session(session));
            }
        }
        ensemble.0.applied.notify_waiters();
        drop(ensemble);
        step = step.wrapping_add(1);
        sleep_until(Instant::now() + pace).await;
    }
}

/// Without the data of nodes.
fn short(what: &impl Debug) -> String {
    let text = format!("{what:?}");
    let is_data = |part: &str| {
        part.len() > 20 && part.bytes().all(|byte| byte.is_ascii_digit() || b", ".contains(&byte))
    };
    let parts = text.split(['[', ']']).map(|part| if is_data(part) { ".." } else { part });
    parts.collect::<Vec<_>>().join("|").chars().take(300).collect()
}

/// How often in a tick things happen by themselves.
const STEPS: u32 = 16;
