//! One client of the ensemble: what the driver does with a session, over a network that loses and delays.
//!
//! Like a session of the driver it sends requests in the order of the calls, tells all that are under way when a connection
//! breaks, goes from server to server, notices silence after a fifth of the session timeout, and gives the session up by itself
//! only after seven fifths, or when no server grants its whole timeout. (That it looks what a server grants, and then moves, is
//! one step here.) Its watches fire when a connection breaks, or are set anew, as other ensembles may do it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use lock_testkit::fake::{Dice, Faults};
use lock_zk::zookeeper_client::{
    Acls, CreateMode, Error, EventType, MultiWriteError, MultiWriteResult, SessionState, Stat, WatchedEvent,
};
use lock_zk::{self as zk, Answer, SessionClient, States, Watching};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::ensemble::{Ensemble, Greeting, Packet};
use super::tree::{Change, Op, Response};

/// The network between one client and the servers. Clones are the same.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    ensemble: Ensemble,
    network: Mutex<Network>,
}

struct Network {
    faults: Faults,
    dice: Dice,
    /// Until when nothing passes.
    stalled: Instant,
    /// The number of the last reset.
    resets: watch::Sender<u64>,
    sessions: Vec<i64>,
    /// The server of the last connection.
    server: usize,
    /// Whether a `sync` is sent where the quorum is to be asked.
    trusts_sync: bool,
    /// How likely the event of a watch is to get lost.
    lost_events: f64,
    /// Whether watches fire when a connection breaks.
    fires_watches: bool,
    /// Whether a session moves to servers that grant less, and its client does not know.
    accepts_less: bool,
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    IsLost,
    LosesReply,
    ResetBefore,
    ResetAfter,
}

impl Link {
    pub(crate) fn new(ensemble: &Ensemble, seed: u64) -> Self {
        let network = Network {
            faults: Faults { delay_ms: 0..=1, ..Faults::default() },
            dice: Dice::new(seed),
            stalled: Instant::now(),
            resets: watch::Sender::new(0),
            sessions: Vec::new(),
            server: 0,
            trusts_sync: false,
            lost_events: 0.0,
            fires_watches: seed.is_multiple_of(2),
            accepts_less: false,
        };
        Self(Arc::new(Shared { ensemble: ensemble.clone(), network: Mutex::new(network) }))
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.network().faults = faults;
    }

    /// From now on this many events of watches are lost. The base of tokens is not among them: its changes decide what is
    /// granted, and not only when.
    pub(crate) fn lose_events(&self, chance: f64) {
        self.network().lost_events = chance;
    }

    /// From now on a `sync` is sent in the place of a mere check.
    pub(crate) fn trust_sync(&self) {
        self.network().trusts_sync = true;
    }

    /// From now on sessions move to servers that grant less, unawares.
    pub(crate) fn accept_less(&self) {
        self.network().accepts_less = true;
    }

    /// Lets nothing pass for a while.
    pub(crate) fn stall(&self, span: Duration) {
        let mut network = self.network();
        network.stalled = network.stalled.max(Instant::now() + span);
    }

    pub(crate) fn resume(&self) {
        self.network().stalled = Instant::now();
    }

    /// Ends the connections.
    pub(crate) fn reset(&self) {
        self.network().resets.send_modify(|number| *number += 1);
    }

    /// The last session that was opened over this link.
    pub(crate) fn session(&self) -> Option<i64> {
        self.network().sessions.last().copied()
    }

    /// The server that was connected to last.
    pub(crate) fn server(&self) -> usize {
        self.network().server
    }

    fn network(&self) -> MutexGuard<'_, Network> {
        self.0.network.lock().unwrap()
    }
}

impl Network {
    /// When something that is sent now arrives, behind what was sent before.
    fn arrival(&mut self, last: &mut Instant) -> Instant {
        let now = Instant::now();
        let (mut at, faults) =
            (now.max(self.stalled) + self.dice.millis(self.faults.delay_ms.clone()), &self.faults);
        if self.dice.chance(faults.stall) {
            at += self.dice.millis(faults.stall_ms.clone());
        }
        *last = at.max(*last);
        *last
    }

    fn loses_event(&mut self, path: &str) -> bool {
        self.lost_events > 0.0 && !path.ends_with("!token-base") && self.dice.chance(self.lost_events)
    }

    fn fate(&mut self) -> Fate {
        let faults = self.faults.clone();
        let fates = [
            (faults.lose_request, Fate::IsLost),
            (faults.lose_reply, Fate::LosesReply),
            (faults.reset_before, Fate::ResetBefore),
            (faults.reset_after, Fate::ResetAfter),
        ];
        let came = fates.into_iter().find(|(chance, _)| self.dice.chance(*chance));
        came.map_or(Fate::Arrives, |(_, fate)| fate)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

#[async_trait]
impl zk::Ensemble for Link {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let servers = self.0.ensemble.servers();
        let first = self.network().dice.below(servers as u64) as usize;
        let mut driver = Driver {
            link: self.clone(),
            session: None,
            timeout: session_timeout,
            server: first,
            seen: 0,
            heard: Instant::now(),
            shorter: 0,
            watches: BTreeMap::new(),
        };
        for _ in 0..servers {
            match driver.connect().await {
                Some(Ok(connection)) => {
                    let (asked, requests) = unbounded_channel();
                    let states = watch::Sender::new(SessionState::SyncConnected);
                    let client = Client {
                        id: driver.session.unwrap_or_default(),
                        timeout: driver.timeout,
                        states: states.subscribe(),
                        asked: Arc::new(asked),
                        link: self.clone(),
                    };
                    drop(tokio::spawn(driver.run(connection, requests, states)));
                    return Ok(Arc::new(client));
                }
                _ => driver.server = (driver.server + 1) % servers,
            }
        }
        Err(Error::ConnectionLoss)
    }
}

/// A request on its way to the driver's task.
struct Asked {
    op: Op,
    answered: oneshot::Sender<Result<(Response, Option<Watching>), Error>>,
    /// The session is not closed while this is there.
    _asker: Arc<UnboundedSender<Self>>,
}

struct Client {
    id: i64,
    timeout: Duration,
    states: watch::Receiver<SessionState>,
    asked: Arc<UnboundedSender<Asked>>,
    link: Link,
}

impl Client {
    fn ask<'a>(&self, op: Op) -> Answer<'a, (Response, Option<Watching>)> {
        let (answered, answer) = oneshot::channel();
        let asker = Arc::clone(&self.asked);
        let sent = self.asked.send(Asked { op, answered, _asker: asker });
        let state = self.states.clone();
        let over = move || over(*state.borrow());
        Box::pin(async move {
            match sent {
                Ok(()) => answer.await.unwrap_or_else(|_| Err(over())),
                Err(_) => Err(over()),
            }
        })
    }

    /// The answer to a request that is answered in this way.
    fn ask_for<'a, T: Send + 'a>(
        &self,
        op: Op,
        read: impl FnOnce(Response, Option<Watching>) -> Option<T> + Send + 'a,
    ) -> Answer<'a, T> {
        let answer = self.ask(op);
        Box::pin(async {
            let (response, watching) = answer.await?;
            Ok(read(response, watching).expect("an answer of this kind"))
        })
    }
}

impl SessionClient for Client {
    fn id(&self) -> i64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn states(&self) -> Box<dyn States> {
        let mut states = self.states.clone();
        states.mark_unchanged();
        Box::new(Watcher(states))
    }

    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        _acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)> {
        let op = Op::Create { path: path.to_owned(), data: data.to_vec(), mode };
        self.ask_for(op, |response, _| match response {
            Response::Created(path, stat) => Some((path, stat)),
            _ => None,
        })
    }

    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()> {
        self.ask_for(Op::Delete { path: path.to_owned(), version }, |_, _| Some(()))
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>> {
        self.ask_for(Op::Stat { path: path.to_owned(), watch: false }, |response, _| match response {
            Response::Stat(stat) => Some(stat),
            _ => None,
        })
    }

    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)> {
        self.ask_for(Op::Stat { path: path.to_owned(), watch: true }, |response, watching| match response {
            Response::Stat(stat) => Some((stat, watching?)),
            _ => None,
        })
    }

    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)> {
        self.ask_for(Op::Data { path: path.to_owned(), watch: false }, |response, _| match response {
            Response::Data(data, stat) => Some((data, stat)),
            _ => None,
        })
    }

    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)> {
        self.ask_for(Op::Data { path: path.to_owned(), watch: true }, |response, watching| match response {
            Response::Data(data, stat) => Some((data, stat, watching?)),
            _ => None,
        })
    }

    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat> {
        let op = Op::Set { path: path.to_owned(), data: data.to_vec(), version };
        self.ask_for(op, |response, _| match response {
            Response::Stat(stat) => stat,
            _ => None,
        })
    }

    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)> {
        self.ask_for(Op::Children { path: path.to_owned() }, |response, _| match response {
            Response::Children(names, stat) => Some((names, stat)),
            _ => None,
        })
    }

    fn multi<'a>(
        &'a self,
        changes: &'a [zk::Change<'a>],
    ) -> futures_util::future::BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>> {
        if matches!(changes, [zk::Change::Check { .. }]) && self.link.network().trusts_sync {
            let answer = self.ask(Op::Sync);
            return Box::pin(async { Ok(answer.await.map(|_| vec![MultiWriteResult::Check])?) });
        }
        let parts = changes.iter().map(|change| match *change {
            zk::Change::Check { path, version } => Op::Check { path: path.to_owned(), version },
            zk::Change::Create { path, data, mode, .. } => {
                Op::Create { path: path.to_owned(), data: data.to_vec(), mode }
            }
            zk::Change::Set { path, data, version } => {
                Op::Set { path: path.to_owned(), data: data.to_vec(), version }
            }
            zk::Change::Delete { path, version } => Op::Delete { path: path.to_owned(), version },
        });
        let answer = self.ask(Op::Multi(parts.collect()));
        Box::pin(async {
            match answer.await? {
                (Response::Multi(results), _) => results,
                other => panic!("{:?}", other.0),
            }
        })
    }
}

struct Watcher(watch::Receiver<SessionState>);

impl States for Watcher {
    fn changed(&mut self) -> futures_util::future::BoxFuture<'_, SessionState> {
        Box::pin(async {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            *self.0.borrow_and_update()
        })
    }

    fn now(&self) -> SessionState {
        *self.0.borrow()
    }
}

/// What keeps the session.
struct Driver {
    link: Link,
    session: Option<i64>,
    timeout: Duration,
    server: usize,
    /// The last transaction that an answer showed.
    seen: i64,
    /// When a server was heard last.
    heard: Instant,
    /// How many servers in turn would grant less.
    shorter: usize,
    /// The watches of a node, and whether it existed.
    watches: BTreeMap<String, Vec<(bool, oneshot::Sender<WatchedEvent>)>>,
}

/// The client's end of a connection.
struct Connection {
    requests: UnboundedSender<(Instant, Sent)>,
    packets: UnboundedReceiver<(Instant, Packet)>,
    /// One that has been taken out and has not arrived yet.
    next: Option<(Instant, Packet)>,
    last: Instant,
    /// A request was lost, and all behind it are.
    mute: bool,
    deaf: Arc<Mutex<bool>>,
    resets: watch::Receiver<u64>,
}

enum Sent {
    Op(Op),
    Ping,
    Watches(i64, Vec<(String, bool)>),
    Close,
}

/// Why a connection ended.
enum End {
    Broken(Error),
    Closed,
}

impl Driver {
    async fn run(
        mut self,
        first: Connection,
        mut requests: UnboundedReceiver<Asked>,
        states: watch::Sender<SessionState>,
    ) {
        let mut connection = Some(first);
        let last = loop {
            if let Some(connection) = connection.take() {
                match self.serve(connection, &mut requests).await {
                    End::Closed => break SessionState::Closed,
                    End::Broken(_) => {
                        self.fire_all();
                        states.send_replace(SessionState::Disconnected);
                    }
                }
            }
            if requests.is_closed() && requests.is_empty() {
                break SessionState::Closed;
            }
            let shorter = self.shorter >= self.link.0.ensemble.servers();
            if shorter || self.heard.elapsed() > self.timeout * 7 / 5 {
                break SessionState::Expired;
            }
            match self.connect().await {
                Some(Ok(next)) => {
                    states.send_replace(SessionState::SyncConnected);
                    connection = Some(next);
                }
                Some(Err(())) => break SessionState::Expired,
                None => {
                    self.server = (self.server + 1) % self.link.0.ensemble.servers();
                    sleep(Duration::from_millis(10)).await;
                }
            }
        };
        states.send_replace(last);
        requests.close();
        while let Ok(asked) = requests.try_recv() {
            let _ = asked.answered.send(Err(over(last)));
        }
        for (_, waiting) in self.watches.into_values().flatten() {
            let _ = waiting.send(WatchedEvent::new_session(last));
        }
    }

    /// Tries one server; `Some(Err)` if the session expired.
    async fn connect(&mut self) -> Option<Result<Connection, ()>> {
        let (arrives, refused) = {
            let mut network = self.link.network();
            let refuse = network.faults.refuse;
            (network.arrival(&mut Instant::now()), network.dice.chance(refuse))
        };
        // It waits for an answer for a fifth of the time.
        let patience = Instant::now() + self.timeout / 5;
        sleep_until(arrives.min(patience)).await;
        if refused || arrives > patience {
            return None;
        }
        let (out, mut sent) = unbounded_channel();
        let ensemble = self.link.0.ensemble.clone();
        let accepts_less = self.session.is_none() || self.link.network().accepts_less;
        let greeting = ensemble.greet(self.server, self.session, self.timeout, accepts_less, self.seen, out);
        let back = self.link.network().arrival(&mut Instant::now());
        sleep_until(back.min(patience)).await;
        self.shorter = if matches!(greeting, Greeting::Shorter) { self.shorter + 1 } else { 0 };
        let Greeting::Welcome { session, connection: number, timeout } = greeting else {
            return matches!(greeting, Greeting::Expired).then_some(Err(()));
        };
        if back > patience {
            // The server accepted the session, and the client does not know.
            ensemble.hang_up(self.server, number);
            return None;
        }
        {
            let mut network = self.link.network();
            network.server = self.server;
            if self.session.is_none() {
                network.sessions.push(session);
            }
        }
        (self.session, self.timeout, self.heard) = (Some(session), timeout, Instant::now());
        let (requests, arriving) = unbounded_channel();
        drop(tokio::spawn(server_side(ensemble, self.server, number, arriving)));
        let (deliver, packets) = unbounded_channel();
        let (link, deaf) = (self.link.clone(), Arc::new(Mutex::new(false)));
        let silent = Arc::clone(&deaf);
        drop(tokio::spawn(async move {
            let mut last = Instant::now();
            while let Some(packet) = sent.recv().await {
                let at = link.network().arrival(&mut last);
                if !*silent.lock().unwrap() {
                    drop(deliver.send((at, packet)));
                }
            }
            if *silent.lock().unwrap() {
                // Not even the end of the connection is heard.
                deliver.closed().await;
            }
        }));
        let resets = self.link.network().resets.subscribe();
        let (last, next) = (Instant::now(), None);
        Some(Ok(Connection { requests, packets, next, last, mute: false, deaf, resets }))
    }

    async fn serve(&mut self, mut connection: Connection, requests: &mut UnboundedReceiver<Asked>) -> End {
        let mut under_way = VecDeque::new();
        let end = self.exchange(&mut connection, requests, &mut under_way).await;
        if let End::Broken(error) = &end {
            for asked in under_way.into_iter().flatten() {
                let Asked { answered, .. } = asked;
                let _ = answered.send(Err(error.clone()));
            }
        }
        end
    }

    async fn exchange(
        &mut self,
        connection: &mut Connection,
        requests: &mut UnboundedReceiver<Asked>,
        under_way: &mut VecDeque<Option<Asked>>,
    ) -> End {
        let old: Vec<_> = self.watches.iter().map(|(path, all)| (path.clone(), all[0].0)).collect();
        if !old.is_empty() {
            connection.send(&self.link, Sent::Watches(self.seen, old));
        }
        let mut pinged = Instant::now();
        let mut closing = false;
        let mut resets = connection.resets.clone();
        loop {
            tokio::select! {
                biased;
                packet = connection.receive() => {
                    let Some(packet) = packet else {
                        return if closing { End::Closed } else { End::Broken(Error::ConnectionLoss) };
                    };
                    self.heard = Instant::now();
                    match packet {
                        Packet::Pong => {}
                        Packet::Event(path, _) if self.link.network().loses_event(&path) => {}
                        Packet::Event(path, change) => self.fire(&path, change),
                        Packet::Answer { zxid, answer } => {
                            self.seen = self.seen.max(zxid);
                            match under_way.pop_front() {
                                Some(Some(asked)) => self.answer(asked, answer),
                                _ => return End::Closed,
                            }
                        }
                    }
                }
                _ = resets.changed() => return End::Broken(Error::Timeout),
                asked = requests.recv(), if !closing => {
                    let Some(asked) = asked else {
                        closing = true;
                        connection.send(&self.link, Sent::Close);
                        under_way.push_back(None);
                        continue;
                    };
                    let fate = self.link.network().fate();
                    connection.mute |= fate == Fate::IsLost;
                    if matches!(fate, Fate::IsLost | Fate::LosesReply) {
                        *connection.deaf.lock().unwrap() = true;
                    }
                    let op = asked.op.clone();
                    under_way.push_back(Some(asked));
                    if fate == Fate::ResetBefore {
                        return End::Broken(Error::Timeout);
                    }
                    connection.send(&self.link, Sent::Op(op));
                    if fate == Fate::ResetAfter {
                        return End::Broken(Error::ConnectionLoss);
                    }
                    pinged = Instant::now();
                }
                () = sleep_until(self.heard + self.timeout / 5) => return End::Broken(Error::Timeout),
                () = sleep_until(pinged + self.timeout * 3 / 40) => {
                    connection.send(&self.link, Sent::Ping);
                    pinged = Instant::now();
                }
            }
        }
    }

    fn answer(&mut self, asked: Asked, answer: Result<Response, Error>) {
        let watching = match (&asked.op, &answer) {
            (Op::Data { path, watch: true }, Ok(_)) => Some(self.watch(path, true)),
            (Op::Stat { path, watch: true }, Ok(Response::Stat(stat))) => {
                Some(self.watch(path, stat.is_some()))
            }
            _ => None,
        };
        let Asked { answered, .. } = asked;
        let _ = answered.send(answer.map(|response| (response, watching)));
    }

    fn watch(&mut self, path: &str, exists: bool) -> Watching {
        let (fire, fired) = oneshot::channel();
        self.watches.entry(path.to_owned()).or_default().push((exists, fire));
        Box::pin(async { fired.await.unwrap_or_else(|_| WatchedEvent::new_session(SessionState::Closed)) })
    }

    /// The nodes may change without an event.
    fn fire_all(&mut self) {
        if self.link.network().fires_watches {
            for (path, waiting) in mem::take(&mut self.watches) {
                for (_, waiting) in waiting {
                    let _ = waiting.send(WatchedEvent::new(EventType::NodeDataChanged, &*path));
                }
            }
        }
    }

    fn fire(&mut self, path: &str, change: Change) {
        let event = match change {
            Change::Created => EventType::NodeCreated,
            Change::Deleted => EventType::NodeDeleted,
            Change::Changed => EventType::NodeDataChanged,
        };
        for (_, waiting) in self.watches.remove(path).unwrap_or_default() {
            let _ = waiting.send(WatchedEvent::new(event, path));
        }
    }
}

impl Connection {
    fn send(&mut self, link: &Link, what: Sent) {
        let at = link.network().arrival(&mut self.last);
        if !self.mute {
            let _ = self.requests.send((at, what));
        }
    }

    async fn receive(&mut self) -> Option<Packet> {
        if self.next.is_none() {
            self.next = Some(self.packets.recv().await?);
        }
        if let Some((at, _)) = self.next {
            sleep_until(at).await;
        }
        self.next.take().map(|(_, packet)| packet)
    }
}

/// The server's end: what arrives is served in its order.
async fn server_side(
    ensemble: Ensemble,
    server: usize,
    connection: u64,
    mut arriving: UnboundedReceiver<(Instant, Sent)>,
) {
    while let Some((at, sent)) = arriving.recv().await {
        sleep_until(at).await;
        match sent {
            Sent::Op(op) => ensemble.serve(server, connection, op).await,
            Sent::Ping => {
                if ensemble.hear(server, connection) {
                    ensemble.pong(server, connection);
                }
            }
            Sent::Watches(seen, paths) => ensemble.set_watches(server, connection, seen, paths),
            Sent::Close => ensemble.close_session(server, connection),
        }
    }
    // The end of the connection arrives as well.
    ensemble.hang_up(server, connection);
}

fn over(state: SessionState) -> Error {
    match state {
        SessionState::Closed => Error::ClientClosed,
        _ => Error::SessionExpired,
    }
}
