//! A TCP proxy that breaks connections as networks do, at the request that the test chooses.

mod connection;
mod frames;
mod ledger;
mod multiplexer;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

pub use self::multiplexer::{Multiplexer, Refusal};
use crate::error::{Error, Result};
use crate::servers::port::Port;

/// A proxy between clients and one server, with faults that are switched while connections are open.
///
/// It parses frames, so that it can lose the reply to a certain request: the unknown outcome that every lock client must
/// survive. Requests and replies are forwarded whole.
///
/// The proxy runs on its own thread: it continues while the test's runtime is blocked or its clock is paused, and it needs
/// no runtime to start. All methods take effect before they return. It ends when it is dropped.
///
/// # What a fault can do
///
/// A fault does only what TCP over a bad network could do, but for [`repeat_when`](Self::repeat_when). In particular a byte stream never continues after a gap: a
/// connection that lost bytes stays silent in that direction until it is reset.
pub struct FaultProxy {
    port: Port,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The protocol of the proxied connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Protocol {
    /// RESP2 or RESP3. Push frames and pub/sub messages do not count as replies.
    ///
    /// `MONITOR` and `CLIENT REPLY OFF` are not supported: after them replies are matched wrongly.
    Redis,
    /// ZooKeeper's client protocol. Four-letter words pass through.
    ZooKeeper,
    /// PostgreSQL's protocol, without TLS. A request is what ends with Sync, or a simple query; a reply what ends with
    /// ReadyForQuery. Notifications are pushes.
    Postgres,
    /// HTTP/2 without TLS, as of gRPC. A request is a frame with data, as servers answer before the client ends its stream; so its message has
    /// less than 16 KiB. A reply is what ends the stream of the server.
    Http2,
    /// The protocol of MySQL and MariaDB, without TLS, of clients that wait for each answer before they ask again. A request is a command
    /// that is answered; an answer has fewer than 256 packets.
    Mysql,
    /// Anything else: bytes are forwarded as they come, without requests.
    Opaque,
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What happens to a connection whose reply was swallowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Then {
    /// Both sides are reset.
    Reset,
    /// The client gets a FIN, as from a server that shuts down.
    Fin,
    /// The connection stays open, and nothing more comes from the server. Requests still reach the server.
    Hang,
}

impl FaultProxy {
    /// Starts a proxy on a free loopback port that forwards to `upstream`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system has no port or thread to spare.
    pub fn start(upstream: SocketAddr, protocol: Protocol) -> Result<Self> {
        let (port, listener) = Port::listen("a proxy")?;
        let start = || {
            listener.set_nonblocking(true)?;
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
        };
        let runtime = start().map_err(|e| Error::io("start a proxy", e))?;
        let shared = Arc::new(Shared::new(upstream, protocol));
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("testkit-proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || runtime.block_on(connection::accept(shared, listener, stopped))
        });
        let thread = thread.map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { port, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The port on 127.0.0.1 for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Delays every byte in this direction, until the delay is set again.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.faults.send_modify(|faults| faults.delay[direction as usize] = delay);
    }

    /// Closes all connections by FIN, as a server that shuts down.
    pub fn fin(&self) {
        self.shared.end_all(Fate::Fin);
    }

    /// Resets all connections, as a machine that has restarted. Held and delayed bytes are lost.
    pub fn rst(&self) {
        self.shared.end_all(Fate::Rst);
    }

    /// While on, everything in this direction is lost, FIN and RST included; connections stay open.
    ///
    /// When switched off, connections that lost bytes are reset and the others continue. For bytes that arrive later, see
    /// [`hold`](Self::hold).
    pub fn black_hole(&self, direction: Direction, on: bool) {
        self.shared.faults.send_modify(|faults| faults.black_hole[direction as usize] = on);
        if !on {
            self.shared.reset_lossy(&[direction]);
        }
    }

    /// Loses everything of the present connections from now on, in both directions, as a router that has forgotten them. Later
    /// connections work.
    pub fn forget(&self) {
        for control in self.shared.table().values() {
            control.lost.iter().for_each(|lost| lost.store(true, Ordering::SeqCst));
        }
    }

    /// Holds the bytes of this direction back until [`deliver`](Self::deliver).
    ///
    /// They arrive even if the sender has closed by then: a held request still reaches the server.
    pub fn hold(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.hold[direction as usize] = true);
    }

    /// Delivers held bytes, in both directions, and ends the hold.
    pub fn deliver(&self) {
        self.shared.faults.send_modify(|faults| faults.hold = [false; 2]);
    }

    /// How many bytes in this direction are held or delayed now.
    pub fn queued(&self, direction: Direction) -> usize {
        let queued = |control: &Arc<Control>| control.queued[direction as usize].load(Ordering::SeqCst);
        self.shared.table().values().map(queued).sum()
    }

    /// Forwards the `n`-th request from now (1 is the next one) and swallows its reply.
    ///
    /// # Panics
    ///
    /// When `n` is 0.
    pub fn swallow_reply(&self, n: u64, then: Then) {
        self.shared.add_rule(Rule::nth(n, Action::SwallowReply(then)));
    }

    /// Forwards the next matching request and swallows its reply.
    ///
    /// `matches` gets the bytes of the whole request; see [`redis_command`] and [`zk_opcode`].
    pub fn swallow_when(&self, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static, then: Then) {
        self.shared.add_rule(Rule::when(matches, Action::SwallowReply(then)));
    }

    /// Forwards the `n`-th request from now (1 is the next one), then resets the client without a reply.
    ///
    /// The server gets the whole request and then the end of the stream, so that it certainly executes it.
    ///
    /// # Panics
    ///
    /// When `n` is 0.
    pub fn cut_after_request(&self, n: u64) {
        self.shared.add_rule(Rule::nth(n, Action::Cut));
    }

    /// Forwards the next matching request, then resets the client without a reply.
    ///
    /// `matches` gets the bytes of the whole request; see [`redis_command`] and [`zk_opcode`].
    pub fn cut_when(&self, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.add_rule(Rule::when(matches, Action::Cut));
    }

    /// Forwards the next matching request, then [holds](Self::hold) all requests, also the rest of the same write.
    ///
    /// `matches` gets the bytes of the whole request; see [`redis_command`] and [`zk_opcode`].
    pub fn hold_after(&self, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.add_rule(Rule::when(matches, Action::Hold));
    }

    /// Forwards the next matching request, and [holds](Self::hold) all replies from then on.
    ///
    /// `matches` gets the bytes of the whole request; see [`redis_command`] and [`zk_opcode`].
    pub fn hold_replies_when(&self, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.add_rule(Rule::when(matches, Action::HoldReplies));
    }

    /// Sends the next matching request twice and forwards the second reply alone, as a balancer that repeats statements.
    pub fn repeat_when(&self, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.add_rule(Rule::when(matches, Action::Repeat));
    }

    /// How many requests were repeated, replies swallowed, requests cut, and holds begun by a request so far: shows a test that its fault
    /// has happened.
    pub fn fired(&self) -> u64 {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// While on, pushes are lost: Redis push frames and pub/sub messages; ZooKeeper watch events. They are counted as
    /// [pushes](Self::pushes) all the same.
    pub fn lose_pushes(&self, on: bool) {
        self.shared.faults.send_modify(|faults| faults.lose_pushes = on);
    }

    /// While on, new connections are reset at once. Open ones stay open.
    pub fn refuse(&self, on: bool) {
        self.shared.faults.send_modify(|faults| faults.refuse = on);
    }

    /// Ends all faults: held bytes are delivered, delays end, pending swallows and cuts are removed, and connections that
    /// lost bytes are reset.
    pub fn heal(&self) {
        self.shared.rules().clear();
        self.shared.faults.send_replace(Faults::default());
        self.shared.reset_lossy(&[Direction::ToServer, Direction::ToClient]);
    }

    /// How many requests clients have sent: Redis commands; ZooKeeper requests except connects and pings.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many pushes the server has sent: Redis push frames and pub/sub messages; ZooKeeper watch events.
    pub fn pushes(&self) -> u64 {
        self.shared.pushes.load(Ordering::SeqCst)
    }

    /// How many bytes came from clients and servers, heartbeats included.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }

    /// Sets all counters to zero.
    pub fn reset_counters(&self) {
        for counter in [&self.shared.requests, &self.shared.pushes, &self.shared.bytes, &self.shared.fired] {
            counter.store(0, Ordering::SeqCst);
        }
    }

    /// How many connections are open, those included whose end has not been forwarded yet.
    pub fn connections(&self) -> usize {
        self.shared.table().len()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic on the proxy's thread has been printed; a second one here would hide the test's own.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultProxy")
            .field("addr", &self.port.addr())
            .field("upstream", &self.shared.upstream)
            .field("protocol", &self.shared.protocol)
            .field("faults", &*self.shared.faults.borrow())
            .finish_non_exhaustive()
    }
}

/// Matches the Redis command `name`, in any case.
pub fn redis_command(name: &str) -> impl Fn(&[u8]) -> bool + Send + Sync + 'static {
    let name = name.to_ascii_uppercase();
    move |request| {
        frames::command_name(request).is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
    }
}

/// Matches ZooKeeper requests of one type; the numbers are in [`opcode`].
pub fn zk_opcode(code: i32) -> impl Fn(&[u8]) -> bool + Send + Sync + 'static {
    move |request| frames::int(request, 8) == Some(code)
}

/// The types of ZooKeeper requests.
#[allow(missing_docs, reason = "the names are ZooKeeper's own")]
pub mod opcode {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const GET_CHILDREN: i32 = 8;
    pub const GET_CHILDREN2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE2: i32 = 15;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const AUTH: i32 = 100;
}

/// The state that the proxy's thread and the test's threads share.
struct Shared {
    upstream: SocketAddr,
    protocol: Protocol,
    faults: watch::Sender<Faults>,
    rules: Mutex<Vec<Rule>>,
    table: Mutex<HashMap<u64, Arc<Control>>>,
    ended: Condvar,
    requests: AtomicU64,
    pushes: AtomicU64,
    bytes: AtomicU64,
    fired: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    delay: [Duration; 2],
    hold: [bool; 2],
    black_hole: [bool; 2],
    lose_pushes: bool,
    refuse: bool,
}

/// The handle on one connection.
struct Control {
    fate: watch::Sender<Option<Fate>>,
    /// Whether bytes were lost, by direction.
    lost: [AtomicBool; 2],
    /// Bytes that wait for delivery, by direction.
    queued: [AtomicUsize; 2],
}

/// How the proxy ends a connection.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Fin,
    Rst,
    /// The client is reset; the server gets all requests and then the end of the stream.
    Cut,
}

type Predicate = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

struct Rule {
    /// Which requests count; all without it.
    matches: Option<Predicate>,
    /// The rule fires at this match; counted down.
    nth: u64,
    action: Action,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    SwallowReply(Then),
    Repeat,
    Cut,
    Hold,
    HoldReplies,
}

impl Shared {
    fn new(upstream: SocketAddr, protocol: Protocol) -> Self {
        Self {
            upstream,
            protocol,
            faults: watch::Sender::new(Faults::default()),
            rules: Mutex::default(),
            table: Mutex::default(),
            ended: Condvar::new(),
            requests: AtomicU64::new(0),
            pushes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            fired: AtomicU64::new(0),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Arc<Control>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_rule(&self, rule: Rule) {
        self.rules().push(rule);
    }

    /// The action for this request. Every rule sees every request; the oldest that fires wins.
    fn apply_rules(&self, request: &[u8]) -> Option<Action> {
        let mut action = None;
        self.rules().retain_mut(|rule| {
            let fires = rule.fires(request);
            if fires {
                action.get_or_insert(rule.action);
            }
            !fires
        });
        action
    }

    fn end_all(&self, fate: Fate) {
        self.end(fate, |_| true);
    }

    fn reset_lossy(&self, directions: &[Direction]) {
        self.end(Fate::Rst, |control| {
            directions.iter().any(|&direction| control.lost[direction as usize].load(Ordering::SeqCst))
        });
    }

    /// Ends the chosen connections and waits until they have ended.
    fn end(&self, fate: Fate, chosen: impl Fn(&Control) -> bool) {
        let table = self.table();
        let ids: Vec<_> = table.iter().filter(|(_, control)| chosen(control)).map(|(&id, _)| id).collect();
        for id in &ids {
            table[id].fate.send_replace(Some(fate));
        }
        let still_there =
            |table: &mut HashMap<u64, Arc<Control>>| ids.iter().any(|id| table.contains_key(id));
        let waited = self.ended.wait_timeout_while(table, END_DEADLINE, still_there);
        let (_table, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the proxy's thread is stuck");
    }
}

impl Rule {
    fn nth(n: u64, action: Action) -> Self {
        assert!(n > 0, "requests are counted from 1, the next one");
        Self { matches: None, nth: n, action }
    }

    fn when(matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static, action: Action) -> Self {
        Self { matches: Some(Box::new(matches)), nth: 1, action }
    }

    fn fires(&mut self, request: &[u8]) -> bool {
        if self.matches.as_ref().is_some_and(|matches| !matches(request)) {
            return false;
        }
        self.nth -= 1;
        self.nth == 0
    }
}

const END_DEADLINE: Duration = Duration::from_secs(5);
