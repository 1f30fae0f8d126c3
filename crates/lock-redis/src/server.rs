//! One Redis server: the part that a single lock server and each master of a quorum have in common.

use std::borrow::Cow;
use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use lock_core::background::{Background, Counted};
use lock_core::{
    BootInstant, Clock, Error, ErrorKind, Finding, FindingLevel, LockMode, Mode, Outcome, OwnerId, Result,
    Token, WaiterInfo,
};
use redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use redis::{ConnectionAddr, ConnectionInfo, Pipeline, RedisError, Value};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Keys;
use crate::cluster::Cluster;
pub use crate::dial::with_nodelay;
use crate::dial::{Dial, DriverDial};
use crate::error::{Place, wants_login};
use crate::inspect::glob;
use crate::keys::RESERVED;
use crate::lease::trusted_until;
use crate::link::{Failure, Identity, Link, Route, Settings};
use crate::recipe::{Moment, Timestamps};
use crate::scripts::{
    ACQUIRE, Call, DOWNGRADE, EXTEND_VOTE, INSPECT_VOTE, KEEP, LEAVE_FREE, RAISE_VOTE, ROTATE, SET_NX_PX,
    SETNX_TIMESTAMP, Script, Scripts, VACATE,
};
use crate::tls::unsupported;
use crate::topology::Topology;

/// The last token outlives its lock by this, or by a hundred times the time to live if that is more.
const FENCE_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// The same as the scripts have it, in milliseconds.
const USUAL_FENCE_TTL: &str = "604800000";
/// The mode of one holder alone, as the scripts have it.
const EXCLUSIVE: &str = "x";
/// From here on the score of a sorted set is not exact.
const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
/// For so long a server that does not answer may hang, for what it was sent to be taken back.
const LONGEST_OUTAGE: Duration = Duration::from_secs(600);
/// So many clean-ups wait for a server to answer again: those that come later look for less long.
const MOST_OVER_AN_OUTAGE: usize = 1024;
/// How many keys one `SCAN` goes through.
const SCANNED: usize = 1_000;
/// How often all keys are gone through, when the connection breaks meanwhile.
const SCANS: usize = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How to reach a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The name of the backend that errors show.
    pub backend: &'static str,
    /// Which servers there are.
    pub topology: Topology,
    /// Where to take connections from; one of our own when `None`.
    pub pool: Option<Pool>,
    /// What makes the connections; the driver when `None`. The pool is not used then.
    pub dial: Option<Arc<dyn Dial>>,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long to wait for an answer.
    pub command_timeout: Duration,
    /// The clock that leases are counted on.
    pub clock: Clock,
    /// How many replicas are to have a lock before it counts as granted, and how long they are given.
    pub wait_replicas: Option<(u32, Duration)>,
    /// Whether a lock that becomes free is told on its [channel](Keys::channel).
    pub tells_free: bool,
    /// Whether every new connection asks who the server is, for [`identity`](Server::identity).
    pub asks_identity: bool,
    /// How times are written where the recipe writes times.
    pub(crate) timestamps: Option<Arc<Timestamps>>,
}

/// One Redis server, reached over one connection that all locks on it share; or the nodes of a cluster,
/// with one connection to each.
pub struct Server {
    place: Place,
    settings: Settings,
    nodes: Nodes,
    clock: Clock,
    wait_replicas: Option<(u32, Duration)>,
    tells_free: bool,
    timestamps: Option<Arc<Timestamps>>,
    cleanup: Background,
}

enum Nodes {
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

/// What an acquisition asks of a server.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The lock.
    pub keys: &'a Keys,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// The time to live.
    pub ttl: Duration,
    /// What `inspect` shows of the owner.
    pub info: &'a str,
    /// The token to use if it is larger than the last; the server's clock when `None`.
    pub proposal: Option<Proposal>,
}

/// A token that the owner proposes.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// The token.
    pub token: Token,
    /// Since when the lock is then the owner's, in microseconds since 1970 by its clock.
    pub since: u64,
}

/// A request to one of several masters, by script. Who does not wait sends the same to all.
#[derive(Debug)]
pub struct Request(Call);

/// A [claim](Claim::outright) of one of several masters without a script, the same for all.
#[derive(Debug)]
pub struct Outright {
    commands: Pipeline,
    token: Token,
}

/// What was given back to one of several masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacated {
    /// Whether the lock was the owner's. `None` when it is not any more and an earlier sending of the request may be why.
    pub was_ours: Option<bool>,
    /// Whether somebody waits for it.
    pub is_wanted: bool,
}

/// Who waits for a lock on several masters, in the line of each.
#[derive(Clone, Copy, Debug)]
pub struct Waiter<'a> {
    /// The identity of the wait, which lasts through all its attempts.
    pub id: OwnerId,
    /// The channel on which its process listens.
    pub inbox: &'a str,
    /// Since when it waits, in microseconds since 1970; `None` when it is to leave the line.
    pub since: Option<u64>,
}

/// What one who may queue up asks of a server.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The lock.
    pub keys: &'a Keys,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// With whom the lock may be held.
    pub mode: Mode,
    /// The time to live.
    pub ttl: Duration,
    /// What `inspect` shows of the owner.
    pub info: &'a str,
    /// What stands in the queue for the owner while the lock is busy; `None` for one who does not wait.
    pub entry: Option<&'a str>,
    /// Whether the owner was told that it has the lock, which this then confirms.
    pub is_told: bool,
}

/// A lock that is to end later.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// The lock.
    pub keys: &'a Keys,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// How it holds the lock.
    pub hold: Hold,
    /// The time to live from now on.
    pub ttl: Duration,
}

/// How an owner holds a lock that is to end later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Alone.
    Alone,
    /// Alone, on one of several masters.
    OnMaster,
    /// Alone, since it was passed on: the one behind the owner does not know yet that it is the first of those who wait.
    Passed,
    /// With others, or perhaps.
    Shared,
    /// Alone until now, and with other readers from now on.
    Downgrading,
}

impl Hold {
    /// That of one who asked for it so.
    pub(crate) const fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Alone,
            _ => Self::Shared,
        }
    }
}

/// What stands in the queue of a lock for one who waits.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// With whom the lock may be held.
    pub mode: Mode,
    /// How long the lock is kept for the owner once it is granted, until it confirms.
    pub grace: Duration,
    /// The time to live that it is going to ask for.
    pub ttl: Duration,
    /// The channel on which its process listens.
    pub inbox: &'a str,
    /// What `inspect` shows of the owner.
    pub info: &'a str,
}

/// What a hand-over from one owner to the next did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotated {
    /// The lock is the next owner's, with this token.
    Passed(Token),
    /// The lock was not the owner's.
    NotOurs,
}

/// What a server answers to a [`Claim`] or an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lock is ours, with this token.
    Granted(Token),
    /// Somebody else has the key.
    Busy {
        /// When it ends by itself, if it does.
        ends_in: Option<Duration>,
        /// The type of the key when it is not a string, and so no lock of this protocol.
        foreign_type: Option<String>,
        /// How many stand before the owner in the queue, if it stands there.
        place: Option<usize>,
    },
    /// The connection broke: the lock may be ours. [Take the claim back](Server::take_back), and make another
    /// if you like: the connection may just have been idle for too long.
    Broken,
}

/// What is known of a claim that is to be [taken back](Server::take_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was answered, or never sent.
    Answered,
    /// Nothing is known but the connection that was in use when it was made, if there was one.
    InDoubt {
        /// The [generation](Server::generation) of that connection.
        connection: Option<u64>,
    },
}

impl Sent {
    /// Whether a request on the present connection comes after the claim.
    pub(crate) fn is_settled_on(self, present: Option<u64>) -> bool {
        match self {
            Self::Answered => true,
            Self::InDoubt { connection } => connection.is_some() && connection == present,
        }
    }
}

/// How a claim is [taken back](Server::take_back).
#[derive(Debug)]
pub struct TakeBack<'a> {
    keys: &'a Keys,
    ttl: Duration,
    sent: Sent,
    is_over_an_outage: bool,
    counted: Option<Counted>,
}

impl<'a> TakeBack<'a> {
    /// Of a claim of a lock of this `ttl`.
    #[must_use]
    pub fn new(keys: &'a Keys, ttl: Duration, sent: Sent) -> Self {
        Self { keys, ttl, sent, is_over_an_outage: false, counted: None }
    }

    /// While the server does not answer, the time to look does not begin, but for ten minutes at most: a server that hangs
    /// carries out what it has buffered when it goes on. When many wait for that already, the time begins at once.
    #[must_use]
    pub fn over_an_outage(mut self, cleanup: &Background) -> Self {
        self.is_over_an_outage = cleanup.under_way() <= MOST_OVER_AN_OUTAGE;
        self
    }

    /// Has it count until the server has answered once.
    #[must_use]
    pub fn counted(mut self, counted: Option<Counted>) -> Self {
        self.counted = counted;
        self
    }
}

/// What a server knows about a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// The type of the key, `none` when the lock is free.
    pub kind: String,
    /// The value of the key.
    pub value: String,
    /// The last token.
    pub token: Option<Token>,
    /// Who got it.
    pub owner: String,
    /// What that owner told about itself.
    pub info: String,
    /// When it was granted, in microseconds since 1970, by the clock of the server or of who [proposed](Proposal) the
    /// token.
    pub since: Option<u64>,
    /// How many processes wait for the lock.
    pub waiters: usize,
    /// Whether it is held by the owner that was asked about.
    pub is_ours: bool,
    /// In which mode it is held.
    pub mode: Option<LockMode>,
    /// When the key ends, if it does.
    pub ends_in: Option<Duration>,
    /// The owners that share the lock, and when the share of each ends.
    pub shares: Vec<(String, Duration)>,
    /// The first waiters, in order.
    pub queue: Vec<WaiterInfo>,
}

impl Claim<'_> {
    /// The request for it, of one who stands in the line of the lock, or comes to stand in it when the lock is busy, if
    /// it waits. The place in the line goes with [`Request::vacate`].
    #[must_use]
    pub fn request(&self, waiter: Option<&Waiter<'_>>) -> Request {
        let proposal = self.proposal.map(|proposal| proposal.token.get().to_string()).unwrap_or_default();
        let keys = self.keys;
        let call = ACQUIRE
            .on(&[keys.lock(), keys.tokens(), keys.line(), keys.turn()])
            .arg(self.value())
            .arg(millis(self.ttl))
            .arg(proposal)
            .arg(&*fence_ttl(self.ttl));
        let [waiter, inbox, waits] = waiting(waiter);
        Request(call.unless_usual([&waiter, &inbox, &waits], [""; 3]))
    }

    /// The request for a lock that is most likely free and that nobody waits for, which costs a server half of what the
    /// [usual one](Self::request) does: plain commands take the lock, and note the proposed token if it is larger than the
    /// last. Those of other clients may come between them: the token of a lock that was lost meanwhile is noted for
    /// nothing.
    ///
    /// `None` without a proposal that the commands can compare.
    #[must_use]
    pub fn outright(&self) -> Option<Outright> {
        let token = self.proposal.filter(|proposal| proposal.token.get() < EXACT)?.token;
        let (lock, tokens) = (self.keys.lock(), self.keys.tokens());
        let mut commands = Pipeline::with_capacity(3);
        // In this order: a token that is noted before the lock is ours may be older than that of a holder in between.
        commands.cmd("SET").arg(lock).arg(self.value()).arg("NX").arg("PX").arg(millis(self.ttl));
        commands.cmd("ZADD").arg(tokens).arg("GT").arg("CH").arg(token.get()).arg("last");
        commands.cmd("PEXPIRE").arg(tokens).arg(&*fence_ttl(self.ttl));
        Some(Outright { commands, token })
    }

    /// What the key of the lock is set to.
    fn value(&self) -> String {
        let since = self.proposal.map_or(0, |proposal| proposal.since);
        format!("{} {since} {}", self.owner, self.info)
    }
}

impl Request {
    /// Gives back what an owner has, has the waiter leave the line or stand in it again, and, if it is told for how long
    /// a `turn` lasts, tells the next whose process listens that it is its turn.
    #[must_use]
    pub fn vacate(keys: &Keys, owner: OwnerId, waiter: Option<&Waiter<'_>>, turn: Option<Duration>) -> Self {
        let turn = turn.map(|turn| millis(turn).to_string()).unwrap_or_default();
        let [waiter, inbox, waits] = waiting(waiter);
        let call = VACATE.on(&[keys.lock(), keys.line(), keys.turn()]).arg(owner.encode(&mut [0; 32]));
        Self(call.unless_usual([&turn, &waiter, &inbox, &waits], [""; 4]))
    }
}

impl ServerOptions {
    /// The driver, a second for a connection and for an answer, and the clock that goes on while the
    /// host is suspended.
    #[must_use]
    pub fn new(backend: &'static str, topology: impl Into<Topology>) -> Self {
        Self {
            backend,
            topology: topology.into(),
            pool: None,
            dial: None,
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(1),
            clock: Clock::boot(),
            wait_replicas: None,
            tells_free: false,
            asks_identity: false,
            timestamps: None,
        }
    }
}

impl Server {
    /// A server that will be connected to when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the driver refuses the address.
    pub fn new(options: ServerOptions) -> Result<Self> {
        let place = Place { backend: options.backend, address: options.topology.to_string() };
        let ServerOptions { topology, pool, connect_timeout, command_timeout, .. } = options;
        if topology.named().iter().any(|info| !info.addr().is_supported()) {
            let sockets = topology.named().iter().any(|info| matches!(info.addr(), ConnectionAddr::Unix(_)));
            return Err(if sockets { no_sockets(place.backend) } else { unsupported(place.backend) });
        }
        let driver = DriverDial { pool, connect_timeout, command_timeout };
        let dialer = options.dial.unwrap_or_else(|| Arc::new(driver));
        let asks_identity = options.asks_identity;
        let settings = Settings { dialer, connect_timeout, command_timeout, asks_identity };
        let one =
            |route| Nodes::One(Arc::new(Link::new(place.clone(), settings.clone(), route, Arc::default())));
        let nodes = match topology {
            Topology::Single(info) => one(Route::Fixed(info)),
            Topology::Sentinel(sentinels) => one(Route::Sentinel(sentinels)),
            Topology::Cluster(seeds) => {
                Nodes::Cluster(Arc::new(Cluster::new(place.clone(), settings.clone(), seeds)))
            }
        };
        let (wait_replicas, tells_free) = (options.wait_replicas, options.tells_free);
        Ok(Self {
            place,
            settings,
            nodes,
            clock: options.clock,
            wait_replicas,
            tells_free,
            timestamps: options.timestamps,
            cleanup: Background::default(),
        })
    }

    /// Host and port, the path of the socket, or what the configuration names.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.place.address
    }

    /// How long an answer is awaited.
    #[must_use]
    pub const fn command_timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    /// Connects now, and warns if the server may throw locks away.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn connect(&self) -> Result<()> {
        match &self.nodes {
            Nodes::One(link) => link.connection().await.map(drop),
            Nodes::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Sees to it that there is a connection to the server that has the keys of a lock.
    ///
    /// # Errors
    ///
    /// When there is none to be had: nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn reach(&self, keys: &Keys) -> Result<()> {
        match &self.nodes {
            Nodes::One(link) => link.connection().await.map(drop),
            Nodes::Cluster(cluster) => cluster.reach(keys.lock()).await,
        }
    }

    /// The server that has the keys of a lock: in a cluster it depends on them, behind sentinels it is
    /// the master that is in use. With `None` any node of a cluster.
    ///
    /// # Errors
    ///
    /// When it cannot be found.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn node_of(&self, keys: Option<&Keys>) -> Result<ConnectionInfo> {
        match &self.nodes {
            Nodes::One(link) => link.at().await,
            Nodes::Cluster(cluster) => cluster.node_of(keys.map(|keys| keys.lock())).await,
        }
    }

    /// What the server that has the keys of a lock is called among the nodes of a cluster, as far as is
    /// known; all the same where there is one server.
    pub(crate) fn node_name(&self, keys: &Keys) -> Option<String> {
        match &self.nodes {
            Nodes::One(_) => Some(String::new()),
            Nodes::Cluster(cluster) => cluster.node_name(keys.lock()),
        }
    }

    /// What all servers are called that have locks: the masters of a cluster, or the one.
    pub(crate) async fn node_names(&self) -> Result<Vec<String>> {
        match &self.nodes {
            Nodes::One(_) => Ok(vec![String::new()]),
            Nodes::Cluster(cluster) => {
                Ok(cluster.links().await?.iter().map(|link| link.place.address.clone()).collect())
            }
        }
    }

    /// The server that is called so.
    pub(crate) async fn node_named(&self, name: &str) -> Result<ConnectionInfo> {
        match &self.nodes {
            Nodes::One(link) => link.at().await,
            Nodes::Cluster(cluster) => cluster.node_named(name).await,
        }
    }

    /// Tells when [`node_named`](Self::node_named) is another server than before; `None` in a cluster, where it has
    /// another name.
    pub(crate) fn moves(&self) -> Option<watch::Receiver<()>> {
        match &self.nodes {
            Nodes::One(link) => Some(link.moves()),
            Nodes::Cluster(_) => None,
        }
    }

    /// Whether it is a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.nodes, Nodes::Cluster(_))
    }

    /// A RESP3 connection of its own to a [node](Self::node_of) that hands everything that the node
    /// pushes to `told`; `None` where RESP3 is refused.
    ///
    /// # Errors
    ///
    /// When there is no connection.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn pushes(
        &self,
        node: &ConnectionInfo,
        told: Arc<dyn AsyncPushSender>,
    ) -> Result<Option<MultiplexedConnection>> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, self.settings.dialer.pushes(node, told)).await {
            Ok(Ok(made)) => Ok(Some(made)),
            Ok(Err(error)) => {
                let passes = wants_login(&error);
                let error = self.place.unreachable(&error);
                if passes || error.kind() == ErrorKind::Unavailable { Err(error) } else { Ok(None) }
            }
            Err(_) => Err(self.place.connect_timeout(limit)),
        }
    }

    /// A RESP2 connection of its own to a [node](Self::node_of), for subscriptions.
    ///
    /// # Errors
    ///
    /// When there is no connection.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn messages(&self, node: &ConnectionInfo) -> Result<PubSub> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, self.settings.dialer.messages(node)).await {
            Ok(made) => made.map_err(|error| self.place.unreachable(&error)),
            Err(_) => Err(self.place.connect_timeout(limit)),
        }
    }

    /// Asks for a lock: one round trip.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] the lock may have been taken:
    /// [take it back](Self::take_back).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may be taken: [take it back](Self::take_back).
    pub async fn claim(&self, claim: &Request) -> Result<Verdict> {
        self.verdict_of(self.moment(), &claim.0).await
    }

    /// Claims a lock without a script: one round trip. `None` when that is not enough, whatever the reason is: the lock
    /// may be ours, and a [claim](Self::claim) by the same owner tells.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    ///
    /// # Cancel safety
    ///
    /// As [`claim`](Self::claim).
    pub async fn claim_outright(&self, claim: &Outright) -> Result<Option<Verdict>> {
        let Nodes::One(link) = &self.nodes else { return Ok(None) };
        match link.send_each(&claim.commands).await {
            Ok(answers) => {
                let is_usual = matches!(*answers, [Value::Okay, Value::Int(1), Value::Int(1)]);
                Ok(is_usual.then_some(Verdict::Granted(claim.token)))
            }
            Err(Failure::Dropped) => Ok(Some(Verdict::Broken)),
            Err(failure) => Err(self.place.told(failure)),
        }
    }

    /// Asks for a lock, confirms a grant, or queues up, whatever is right: one round trip.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    ///
    /// # Cancel safety
    ///
    /// As [`claim`](Self::claim).
    pub async fn ask(&self, ask: &Ask<'_>) -> Result<Verdict> {
        self.ask_at(self.moment(), ask).await
    }

    /// As [`ask`](Self::ask), for a lease that counts from this moment.
    pub(crate) async fn ask_at(&self, sent: Moment, ask: &Ask<'_>) -> Result<Verdict> {
        let call = self
            .call(ask.keys, |recipe| if ask.is_told { recipe.confirm } else { recipe.ask })
            .arg(ask.owner.encode(&mut [0; 32]))
            .arg(millis(ask.ttl))
            .arg(ask.info);
        let (mode, fence_ttl) = (mode(ask.mode), fence_ttl(ask.ttl));
        let rest = [ask.entry.unwrap_or_default(), &*mode, &*fence_ttl];
        let call = match &self.timestamps {
            None => call.unless_usual(rest, ["", EXCLUSIVE, USUAL_FENCE_TTL]),
            // What it writes comes behind them.
            Some(_) => rest.into_iter().fold(call, Call::arg),
        };
        self.verdict_of(sent, &self.with_over(self.with_value(call, sent, ask.ttl))).await
    }

    /// Now, for a request that is about to leave.
    pub(crate) fn moment(&self) -> Moment {
        // In this order: a pause between the two makes a lease end early rather than late.
        let at = self.clock.now();
        Moment { at, wall: self.timestamps.as_ref().map(|times| times.now()).unwrap_or_default() }
    }

    /// How long a lease can be believed in that was asked for at this moment.
    pub(crate) fn trusted_until(&self, sent: Moment, ttl: Duration) -> BootInstant {
        let until = trusted_until(sent.at, ttl);
        match &self.timestamps {
            Some(times) => until.min(self.clock.now() + times.left(sent, ttl)),
            None => until,
        }
    }

    /// Passes a lock on to the next owner of the same process, past those who stand in the queue: one round
    /// trip.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been passed on: [take back](Self::take_back) that of the next owner, and
    /// release the first.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, as with an unknown outcome.
    pub async fn rotate(&self, owner: OwnerId, next: &Ask<'_>) -> Result<Rotated> {
        let call = ROTATE
            .on(&[next.keys.lock(), next.keys.fence()])
            .arg(owner.encode(&mut [0; 32]))
            .arg(next.owner.encode(&mut [0; 32]))
            .arg(millis(next.ttl))
            .arg(next.info)
            .unless_usual([&*fence_ttl(next.ttl)], [USUAL_FENCE_TTL]);
        let answer = self.send(&call).await.map_err(|failure| self.place.told(failure))?;
        rotated(&answer).ok_or_else(|| self.place.unexpected(&answer))
    }

    /// Whether replicas are [asked for](ServerOptions::wait_replicas).
    pub(crate) const fn waits_for_replicas(&self) -> bool {
        self.wait_replicas.is_some()
    }

    /// Waits until as many replicas as were [asked for](ServerOptions::wait_replicas) have a lock that was
    /// granted; does nothing when none were. One round trip to the server and one from it to the
    /// replicas.
    ///
    /// This makes it less likely that a failover loses the lock, not impossible: another replica than
    /// one of those that have it may be promoted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when fewer have it in time, or the master does not have it any more. The
    /// lock may still be there: [take it back](Self::take_back).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn await_replicas(&self, lease: &Extension<'_>) -> Result<()> {
        match self.wait_replicas {
            // Boxed, as what is rare here would make each acquisition large.
            Some((wanted, patience)) => Box::pin(self.replicate(lease, wanted, patience)).await,
            None => Ok(()),
        }
    }

    async fn replicate(&self, lease: &Extension<'_>, wanted: u32, patience: Duration) -> Result<()> {
        let link = match &self.nodes {
            Nodes::One(link) => Arc::clone(link),
            Nodes::Cluster(cluster) => cluster.link_of(lease.keys.lock()).await?,
        };
        let replicated = link.replicate(&self.extension(self.moment(), lease), wanted, patience).await;
        let (answer, have) = replicated.map_err(|failure| match failure {
            // To follow it would be to wait for the replicas of another master.
            Failure::Refused(error) if error.is_cluster_error() => {
                self.place.slot_moves().with_outcome(Outcome::Applied)
            }
            failure => self.place.told(failure).with_outcome(Outcome::Unknown),
        })?;
        match flag(&answer) {
            Some(true) if have >= wanted => Ok(()),
            Some(true) => Err(self.place.not_replicated(have, wanted, patience)),
            Some(false) => Err(self.place.gone_again()),
            None => Err(self.place.unexpected(&answer)),
        }
    }

    /// What about the server is good to know; in a cluster, about each master.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let links = match &self.nodes {
            Nodes::One(link) => return link.examine().await,
            Nodes::Cluster(cluster) => cluster.links().await?,
        };
        let mut findings = Vec::new();
        for link in links {
            match link.examine().await {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(Finding::new(
                    FindingLevel::Warning,
                    link.place.address.clone(),
                    format!("a master of the cluster is not there: {error}"),
                    "its locks cannot be taken until it or its replica is",
                )),
            }
        }
        Ok(findings)
    }

    /// Gives back a lock, a share of it or the place that `entry` has in the queue, and says whether the
    /// lock was the owner's: one round trip. `None` when the lock is not the owner's any more and an
    /// earlier sending of this very request may be why.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been given back.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not be given back; ask again.
    pub async fn release(&self, keys: &Keys, owner: OwnerId, entry: Option<&str>) -> Result<Option<bool>> {
        self.removed(&self.releasing(keys, owner, entry)).await
    }

    /// As [`release`](Self::release), for a lock that others most likely wait for: the server writes to the next before
    /// it writes the answer, so that on a busy host the next gets its turn on the processor before the caller.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn release_to_next(&self, keys: &Keys, owner: OwnerId) -> Result<Option<bool>> {
        self.removed(&self.releasing(keys, owner, None).answered_last()).await
    }

    /// As [`release`](Self::release), of a lock that is then left free for this long: waiters in its queue hold back, and
    /// other clients can take it.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn release_and_leave_free(
        &self,
        keys: &Keys,
        owner: OwnerId,
        moment: Duration,
    ) -> Result<Option<bool>> {
        let call = LEAVE_FREE.on(&keys.all()).arg(owner.encode(&mut [0; 32]));
        self.removed(&call.arg(self.channel(keys)).arg("").arg(millis(moment))).await
    }

    fn releasing(&self, keys: &Keys, owner: OwnerId, entry: Option<&str>) -> Call {
        let call = self.call(keys, |recipe| recipe.release).arg(owner.encode(&mut [0; 32]));
        call.unless_usual([self.channel(keys), entry.unwrap_or_default()], [""; 2])
    }

    /// Sends what removes a lock, and says whether there was one.
    async fn removed(&self, call: &Call) -> Result<Option<bool>> {
        let (answer, resent) = self.run(call).await?;
        let ours = flag(&answer).ok_or_else(|| self.place.unexpected(&answer))?;
        Ok(Some(ours).filter(|ours| *ours || !resent))
    }

    /// Gives back what an owner has on one of several masters: one round trip.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn vacate(&self, vacate: &Request) -> Result<Vacated> {
        let (answer, resent) = self.run(&vacate.0).await?;
        let (held, is_wanted) = match &answer {
            Value::Array(parts) => (parts.first(), true),
            held => (Some(held), false),
        };
        let ours = held.and_then(flag).ok_or_else(|| self.place.unexpected(&answer))?;
        Ok(Vacated { was_ours: Some(ours).filter(|ours| *ours || !resent), is_wanted })
    }

    /// Lets locks end later, all in one round trip, and says for each whether it is the owner's.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] any of them may have been extended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, any of them may have been extended.
    pub async fn extend(&self, leases: &[Extension<'_>]) -> Result<Vec<Result<bool>>> {
        self.extend_at(self.moment(), leases).await
    }

    /// As [`extend`](Self::extend), for leases that count from this moment.
    pub(crate) async fn extend_at(
        &self,
        sent: Moment,
        leases: &[Extension<'_>],
    ) -> Result<Vec<Result<bool>>> {
        let calls: Vec<_> = leases.iter().map(|lease| self.extension(sent, lease)).collect();
        let answers = self.run_all(&calls).await?;
        let told = |answer: Value| flag(&answer).ok_or_else(|| self.place.unexpected(&answer));
        Ok(answers.into_iter().map(|answer| answer.and_then(told)).collect())
    }

    /// Lifts the last token to `floor` while the lock is the owner's, and says whether it is.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been lifted.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been lifted.
    pub async fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Result<bool> {
        let call = self.call(keys, |recipe| recipe.raise);
        self.flag(&call.arg(owner.to_string()).arg(floor.get()).arg(&*fence_ttl(ttl))).await
    }

    /// Lifts the last token of one of several masters, as [`raise`](Self::raise).
    ///
    /// # Errors
    ///
    /// As [`raise`](Self::raise).
    ///
    /// # Cancel safety
    ///
    /// As [`raise`](Self::raise).
    pub async fn raise_vote(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Result<bool> {
        let call = RAISE_VOTE.on(&[keys.lock(), keys.tokens()]);
        self.flag(&call.arg(owner.to_string()).arg(floor.get()).arg(&*fence_ttl(ttl))).await
    }

    /// Looks at a lock: one round trip. For an owner only at whether it holds the lock, and at the last grant.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or refuses.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn look(&self, keys: &Keys, owner: Option<OwnerId>) -> Result<Sight> {
        let call = self.call(keys, |recipe| recipe.inspect).arg(keys.channel());
        let call = call.arg(owner.map_or_else(String::new, |owner| owner.to_string()));
        let (answer, _) = self.run(&self.with_over(call)).await?;
        Sight::read(&answer).ok_or_else(|| self.place.unexpected(&answer))
    }

    /// Looks at a lock as one of several masters sees it: one round trip.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn look_at_vote(&self, keys: &Keys) -> Result<Sight> {
        let call = INSPECT_VOTE.on(&[keys.lock(), keys.tokens(), keys.line()]);
        let (answer, _) = self.run(&call).await?;
        Sight::read(&answer).ok_or_else(|| self.place.unexpected(&answer))
    }

    /// Takes a lock away from whoever holds it, and gives the type of the key that was there. A key
    /// that is no string is left alone.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been broken.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been broken.
    pub async fn break_lock(&self, keys: &Keys) -> Result<String> {
        // Never sent twice: the second could break the lock of the next holder.
        let call = self.call(keys, |recipe| recipe.break_lock).arg(self.channel(keys));
        let answer = self.send(&self.with_over(call)).await.map_err(|failure| self.place.told(failure))?;
        redis::from_redis_value_ref(&answer).map_err(|_| self.place.unexpected(&answer))
    }

    /// Removes what a claim may have left by requests that [release](Self::release) or [vacate](Self::vacate), and says
    /// whether there was something; `None` when an earlier request of this very call may have removed it.
    ///
    /// After an answered claim, and on the connection that carried it, one answer settles it. After
    /// that connection broke, the claim may still be on its way: it is looked for until a lease
    /// taken now would have ended and for the time of one answer more, or until something is found: an owner that made
    /// several claims has to ask again. What a server carries out still later, as one that hung, ends by itself.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, something may be left until its time to live is over.
    pub async fn take_back<F>(&self, terms: TakeBack<'_>, release: impl Fn() -> F + Send) -> Option<bool>
    where
        F: Future<Output = Result<Option<bool>>> + Send,
    {
        match release().await {
            Ok(Some(true)) => Some(true),
            // In a box, as it is seldom needed and large.
            first => Box::pin(self.take_back_after(first, terms, release)).await,
        }
    }

    async fn take_back_after<F>(
        &self,
        first: Result<Option<bool>>,
        mut terms: TakeBack<'_>,
        release: impl Fn() -> F + Send,
    ) -> Option<bool>
    where
        F: Future<Output = Result<Option<bool>>> + Send,
    {
        let lasting = terms.ttl + self.command_timeout();
        let outage = if terms.is_over_an_outage { LONGEST_OUTAGE } else { Duration::ZERO };
        let mut until = self.clock.now() + lasting + outage;
        let (mut pause, mut in_doubt, mut has_answered, mut released) = (FIRST_PAUSE, false, false, first);
        loop {
            let answers = released.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Unavailable);
            if answers {
                terms.counted = None;
                if !mem::replace(&mut has_answered, true) {
                    until = until.min(self.clock.now() + lasting);
                }
            }
            match released {
                Ok(Some(true)) => return Some(true),
                Ok(removed) => {
                    in_doubt |= removed.is_none();
                    if terms.sent.is_settled_on(self.generation(terms.keys)) {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed => break,
                Err(error) => in_doubt |= error.outcome() != Outcome::NotApplied,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            if self.clock.now() >= until {
                break;
            }
            released = release().await;
        }
        Some(false).filter(|_| !in_doubt)
    }

    /// The keys that begin with this text and may be those of locks, in any order and perhaps several times; more than `most`
    /// if there are more, and then not all. Goes through all keys of all servers that have locks, a thousand for each round trip. It is not a snapshot.
    ///
    /// # Errors
    ///
    /// When a server cannot be asked, or refuses, or is replaced by another again and again.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn keys_that_begin(&self, with: &str, most: usize) -> Result<Vec<String>> {
        let links = match &self.nodes {
            Nodes::One(link) => vec![Arc::clone(link)],
            Nodes::Cluster(cluster) => cluster.links().await?,
        };
        let (pattern, mut found) = (glob(with), Vec::new());
        for link in links {
            found.extend(self.scan(&link, &pattern, most).await?);
            if found.len() > most {
                break;
            }
        }
        Ok(found)
    }

    async fn scan(&self, link: &Arc<Link>, pattern: &str, most: usize) -> Result<Vec<String>> {
        let mut tries = 0;
        'anew: loop {
            tries += 1;
            let (mut found, mut cursor, mut on) = (HashSet::new(), String::from("0"), None);
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED);
                let answer = match link.query(&scan).await {
                    Err(Failure::Dropped) if tries < SCANS => continue 'anew,
                    answer => answer.map_err(|failure| link.place.told(failure))?,
                };
                // A cursor means nothing to another server.
                if *on.get_or_insert_with(|| link.generation()) != link.generation() {
                    if tries < SCANS {
                        continue 'anew;
                    }
                    return Err(link.place.dropped());
                }
                let keys: Vec<Vec<u8>>;
                (cursor, keys) =
                    redis::from_redis_value_ref(&answer).map_err(|_| link.place.unexpected(&answer))?;
                // What is no text is no name.
                let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
                found.extend(keys.filter(|key| !key.starts_with(RESERVED)));
                if cursor == "0" || found.len() > most {
                    return Ok(found.into_iter().collect());
                }
            }
        }
    }

    /// The removals of what dropped acquisitions may have left.
    #[must_use]
    pub fn cleanup(&self) -> &Background {
        &self.cleanup
    }

    /// Who the server was when the last connection to it was made, if it [was asked](ServerOptions::asks_identity) and
    /// would say; not for a cluster.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<Identity>> {
        match &self.nodes {
            Nodes::One(link) => link.identity(),
            Nodes::Cluster(_) => None,
        }
    }

    /// The time since 1970 by the server's clock: one round trip. Not for a cluster.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn time(&self) -> Result<Duration> {
        let link = match &self.nodes {
            Nodes::One(link) => link,
            Nodes::Cluster(_) => {
                return Err(self.place.error(ErrorKind::Unsupported, "a cluster has no clock of its own"));
            }
        };
        let answer = link.query(&redis::cmd("TIME")).await.map_err(|failure| self.place.told(failure))?;
        let parts = redis::from_redis_value_ref::<(u64, u64)>(&answer);
        let (seconds, micros) = parts.map_err(|_| self.place.unexpected(&answer))?;
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
    }

    /// The error of a [broken](Verdict::Broken) connection.
    #[must_use]
    pub fn broken(&self) -> Error {
        self.place.dropped()
    }

    /// Which connection is in use for a lock, `None` without one; for [`take_back`](Self::take_back).
    #[must_use]
    pub fn generation(&self, keys: &Keys) -> Option<u64> {
        match &self.nodes {
            Nodes::One(link) => link.generation(),
            Nodes::Cluster(cluster) => cluster.generation(keys.lock()),
        }
    }

    /// Closes the connections for good.
    pub fn close(&self) {
        match &self.nodes {
            Nodes::One(link) => link.close(),
            Nodes::Cluster(cluster) => cluster.close(),
        }
    }

    /// Whether the connections were closed for good.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match &self.nodes {
            Nodes::One(link) => link.is_closed(),
            Nodes::Cluster(cluster) => cluster.is_closed(),
        }
    }

    /// Where a lock that becomes free is told, if it is.
    fn channel<'a>(&self, keys: &'a Keys) -> &'a str {
        if self.tells_free { keys.channel() } else { "" }
    }

    fn scripts(&self) -> &'static Scripts {
        if self.timestamps.is_some() { &SETNX_TIMESTAMP } else { &SET_NX_PX }
    }

    /// A script of the recipe, on those keys of the lock that the recipe has.
    fn call(&self, keys: &Keys, script: impl Fn(&Scripts) -> &'static Script) -> Call {
        let recipe = self.scripts();
        script(recipe).on(&keys.all()[..recipe.keys])
    }

    fn extension(&self, sent: Moment, lease: &Extension<'_>) -> Call {
        // Only keys that are there, but for the queue: else a cluster would put it off while it moves the slot.
        let [lock, fence, queue, holders] = lease.keys.all();
        let script = self.scripts().extend;
        let call = match lease.hold {
            Hold::Alone => script.on(&[lock, fence]),
            Hold::OnMaster => EXTEND_VOTE.on(&[lock, lease.keys.tokens()]),
            Hold::Passed => KEEP.on(&[lock, fence, queue]),
            Hold::Shared => script.on(&[lock, fence, holders]),
            Hold::Downgrading => DOWNGRADE.on(&lease.keys.all()),
        };
        let call = call.arg(lease.owner.encode(&mut [0; 32])).arg(millis(lease.ttl));
        let fence_ttl = fence_ttl(lease.ttl);
        match (lease.hold, &self.timestamps) {
            (Hold::Downgrading, _) => {
                call.unless_usual([&*fence_ttl, self.channel(lease.keys)], [USUAL_FENCE_TTL, ""])
            }
            (_, Some(_)) => self.with_value(call.arg(&*fence_ttl), sent, lease.ttl),
            (_, None) => call.unless_usual([&*fence_ttl], [USUAL_FENCE_TTL]),
        }
    }

    /// With the time that is written, where the recipe writes times.
    fn with_value(&self, call: Call, sent: Moment, ttl: Duration) -> Call {
        match &self.timestamps {
            Some(times) => call.arg(times.value(sent, ttl).to_string()).arg(micros(sent.at)),
            None => call,
        }
    }

    /// With what says which locks are over, where the recipe writes times.
    fn with_over(&self, call: Call) -> Call {
        match &self.timestamps {
            Some(times) => call.arg(times.unit()).arg(times.over_before().to_string()),
            None => call,
        }
    }

    fn compare_clocks(&self, sent: Moment, answer: &Value) {
        if let (Some(times), Some(server)) = (&self.timestamps, servers_clock(answer)) {
            times.compare(sent, server);
        }
    }

    async fn verdict_of(&self, sent: Moment, call: &Call) -> Result<Verdict> {
        // Never sent twice: an owner whose claim may be on its way in two copies cannot be undone for sure.
        match self.send(call).await {
            Ok(answer) => {
                self.compare_clocks(sent, &answer);
                verdict(&answer).ok_or_else(|| self.place.unexpected(&answer))
            }
            Err(Failure::Dropped) => Ok(Verdict::Broken),
            Err(failure) => Err(self.place.told(failure)),
        }
    }

    async fn flag(&self, call: &Call) -> Result<bool> {
        let (answer, _) = self.run(call).await?;
        flag(&answer).ok_or_else(|| self.place.unexpected(&answer))
    }

    /// The answer, and whether the request was sent twice for it.
    async fn run(&self, call: &Call) -> Result<(Value, bool)> {
        match self.send(call).await {
            // What is run this way answers the same when its owner sends it twice. Whatever the second answer
            // is, the first request may have been carried out.
            Err(Failure::Dropped) => match Box::pin(self.send(call)).await {
                Err(failure) => Err(self.place.told(failure).with_outcome(Outcome::Unknown)),
                Ok(answer) => Ok((answer, true)),
            },
            answer => answer.map(|answer| (answer, false)).map_err(|failure| self.place.told(failure)),
        }
    }

    async fn send(&self, call: &Call) -> Result<Value, Failure> {
        match &self.nodes {
            Nodes::One(link) => link.send(call).await,
            Nodes::Cluster(cluster) => Box::pin(cluster.send(call)).await,
        }
    }

    async fn run_all(&self, calls: &[Call]) -> Result<Vec<Result<Value>>> {
        match &self.nodes {
            Nodes::One(link) => {
                let answers = link.run_all(&calls.iter().collect::<Vec<_>>()).await;
                let answers = answers.map_err(|failure| self.place.told(failure))?;
                let told = |error: RedisError| self.place.refused(&error);
                Ok(answers.into_iter().map(|answer| answer.map_err(told)).collect())
            }
            Nodes::Cluster(cluster) => Ok(cluster.run_all(calls).await),
        }
    }
}

impl std::fmt::Display for Entry<'_> {
    /// As the scripts read it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (owner, mode, inbox, info) = (self.owner, mode(self.mode), self.inbox, self.info);
        let (grace, lasting) = (millis(self.grace), fence_ttl(self.ttl));
        write!(f, "{owner} {mode} {grace} {lasting} {} {inbox} {info}", inbox.len())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.place.address).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions").field("topology", &self.topology).finish_non_exhaustive()
    }
}

/// The error of a platform without Unix sockets.
fn no_sockets(backend: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message("there are no Unix sockets on this platform")
        .with_hint("connect to the server by its host and port, as in redis://host:6379")
}

/// What a request says of one who waits; nothing of one who does not.
fn waiting(waiter: Option<&Waiter<'_>>) -> [String; 3] {
    let since = |since: u64| since.to_string();
    waiter
        .map(|Waiter { id, inbox, since: at }| {
            [id.to_string(), (*inbox).to_owned(), at.map(since).unwrap_or_default()]
        })
        .unwrap_or_default()
}

fn verdict(answer: &Value) -> Option<Verdict> {
    let parts = match answer {
        Value::Array(parts) => parts,
        token => return token_of(token).map(Verdict::Granted),
    };
    match parts.as_slice() {
        [Value::Int(1), token, ..] => Some(Verdict::Granted(token_of(token)?)),
        [Value::Int(0), Value::Int(pttl), kind, place @ ..] => {
            let place = match place {
                [] | [Value::Int(..=-1)] => None,
                [Value::Int(place)] => usize::try_from(*place).ok(),
                _ => return None,
            };
            let kind: String = redis::from_redis_value_ref(kind).ok()?;
            // No time to live is -1, and -2 a key that ended between two commands.
            let ends_in =
                if *pttl == -1 { None } else { Some(Duration::from_millis(pttl.max(&0).unsigned_abs())) };
            Some(Verdict::Busy {
                ends_in,
                foreign_type: Some(kind).filter(|kind| kind != "string" && kind != "none"),
                place,
            })
        }
        _ => None,
    }
}

/// The server's clock, where a verdict tells it.
fn servers_clock(answer: &Value) -> Option<Duration> {
    let Value::Array(parts) = answer else { return None };
    let [Value::Int(1), _, micros] = parts.as_slice() else { return None };
    let micros: String = redis::from_redis_value_ref(micros).ok()?;
    micros.parse().ok().map(Duration::from_micros)
}

fn rotated(answer: &Value) -> Option<Rotated> {
    match answer {
        Value::Int(0) => Some(Rotated::NotOurs),
        token => token_of(token).map(Rotated::Passed),
    }
}

fn flag(answer: &Value) -> Option<bool> {
    match answer {
        Value::Int(0) => Some(false),
        Value::Int(1) => Some(true),
        _ => None,
    }
}

fn token_of(value: &Value) -> Option<Token> {
    let Value::BulkString(digits) = value else { return None };
    let number = str::from_utf8(digits).ok()?.parse().ok();
    number.filter(|number| *number <= i64::MAX as u64).map(Token::new)
}

/// A mode as the scripts write it.
fn mode(mode: Mode) -> Cow<'static, str> {
    match mode {
        Mode::Shared => "r".into(),
        Mode::Permit { max } => max.to_string().into(),
        _ => EXCLUSIVE.into(),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn micros(at: BootInstant) -> u64 {
    u64::try_from(at.since_boot().as_micros()).unwrap_or(u64::MAX)
}

/// For how long the last token is kept, as the scripts write it.
fn fence_ttl(ttl: Duration) -> Cow<'static, str> {
    match ttl.saturating_mul(100) {
        longer if longer > FENCE_TTL => millis(longer).min(i64::MAX as u64 / 2).to_string().into(),
        _ => USUAL_FENCE_TTL.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn verdicts() {
        let granted = Value::Array(vec![Value::Int(1), bulk("42")]);
        assert_eq!(verdict(&granted), Some(Verdict::Granted(Token::new(42))));
        assert_eq!(verdict(&bulk("42")), Some(Verdict::Granted(Token::new(42))));
        let busy =
            |pttl, kind| verdict(&Value::Array(vec![Value::Int(0), Value::Int(pttl), bulk(kind)])).unwrap();
        assert_eq!(
            busy(7, "string"),
            Verdict::Busy { ends_in: Some(Duration::from_millis(7)), foreign_type: None, place: None }
        );
        let foreign_type = Some("hash".into());
        assert_eq!(busy(-1, "hash"), Verdict::Busy { ends_in: None, foreign_type, place: None });
        let (ends_in, foreign_type) = (Some(Duration::ZERO), None);
        assert_eq!(busy(-2, "none"), Verdict::Busy { ends_in, foreign_type, place: None });
        assert_eq!(verdict(&Value::Okay), None);
        assert_eq!(USUAL_FENCE_TTL, millis(FENCE_TTL).to_string());
        assert_eq!(verdict(&Value::Array(vec![Value::Int(1), bulk("99999999999999999999")])), None);
    }
}
