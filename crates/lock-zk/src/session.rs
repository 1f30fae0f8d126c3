//! One session with the ensemble: its requests, and how long it may be believed in.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, join};
use futures_util::{FutureExt, TryFutureExt};
use lock_core::{
    BootInstant, Clock, Error, ErrorKind, GuardState, LossReason, Result, Validity, ValidityCell,
};
use rand::Rng;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;
use zookeeper_client::{CreateMode, EventType, MultiWriteError, MultiWriteResult, SessionState, Stat};

use crate::directories::Directories;
use crate::ensemble::{Change, SessionClient, States, Watching};
use crate::error::{Fault, Right, denied, no_chroot, too_old, unavailable};
use crate::four_letter::first_version;
use crate::token::Base;
use crate::watches::{Claim, Room, Watches};
use crate::{BACKEND, NodeAcl, ZkConfig};

/// A session with the ensemble.
///
/// It is believed in until a deadline of our own, by the requests that the quorum has committed; they count from when
/// they were *sent*. The leader, who ends sessions, does not hear of us by them, but only from the server that
/// we are connected to: every half tick, which is at most a quarter of the session timeout, as a session lasts two ticks
/// at least (unless `minSessionTimeout` allows less, of which `doctor` warns). So a request proves nothing about
/// itself, as that server may die before it tells of it; it proves that those which were answered a quarter of the
/// timeout earlier have been told of. The opening of a session goes through the quorum, and proves itself; a move to
/// another server goes through the leader, who hears of the session by it. The deadline is one session timeout after the
/// last request that is proven, less a margin for clocks that run apart, and three quarters of it after the last one that
/// was answered.
///
/// Only what the quorum has committed is a proof: a leader that commits is the only one, and the next one gives every
/// session its whole timeout anew. A server that is cut off from the others does not know it for up to `syncLimit` ticks,
/// and goes on answering, while the others may have a new leader that lets the session expire: a follower answers reads,
/// and a leader also a `sync`, and takes in sessions that come to it. So the heartbeat is a write that changes
/// nothing: a [check](SessionClient::multi), for one entry in the log of the ensemble. A check that fails is written to the
/// log as well, and proves as much.
///
/// Once the deadline has passed the session is over for good, whatever the servers say later: nothing that was
/// acquired by it comes back to life, and its client is closed, so that its nodes go even if it was alive after all.
/// The driver's own `Expired` comes up to 0.4 session timeouts too late to be of use.
pub(crate) struct Session {
    this: Weak<Self>,
    id: i64,
    timeout: Duration,
    client: Mutex<Option<Arc<dyn SessionClient>>>,
    /// How many nodes of locks it has, may have, or is about to have.
    nodes: AtomicUsize,
    over: CancellationToken,
    cell: ValidityCell,
    validity: Validity,
    /// Of the nodes that it creates.
    acl: NodeAcl,
    directories: Directories,
    watches: Arc<Watches>,
    /// The bases of tokens that somebody has: one for each `dir`, mostly one.
    bases: Mutex<Vec<Weak<Base>>>,
    confirmed: Mutex<Confirmed>,
    clock: Clock,
    runtime: Handle,
}

/// A session as the home of one node of a lock, for as long as there may be one.
///
/// With it comes the right to watch one path of the length that the node has.
pub(crate) struct SessionHandle {
    session: Arc<Session>,
    claim: Arc<Claim>,
}

impl SessionHandle {
    /// A handle for a node whose path has so many bytes.
    pub(crate) fn new(session: &Arc<Session>, bytes: usize) -> Self {
        Self::with(session, session.watches.claim(bytes))
    }

    /// A further handle for the same lock.
    pub(crate) fn another(&self) -> Self {
        Self::with(&self.session, Arc::clone(&self.claim))
    }

    fn with(session: &Arc<Session>, claim: Arc<Claim>) -> Self {
        session.nodes.fetch_add(1, Ordering::Relaxed);
        Self { session: Arc::clone(session), claim }
    }

    pub(crate) const fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }
}

impl Deref for SessionHandle {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.session.nodes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A node that was created in a directory.
pub(crate) struct Entry {
    pub(crate) path: String,
    /// The number of the transaction.
    pub(crate) czxid: i64,
    /// Whether nothing else was in the directory then.
    pub(crate) alone: bool,
}

/// What became of a node that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Deleted,
    /// Its data changed; the watch has to be set again.
    Changed,
    /// The session is over.
    SessionEnded,
}

/// A watch for one event. Dropping it before that costs a request, which removes it from the server.
pub(crate) type Watch = BoxFuture<'static, Event>;

/// Tells whether the connection has been up all the time.
pub(crate) struct ConnectionContinuity(Box<dyn States>);

impl ConnectionContinuity {
    /// Whether the connection is up, and was since this value was made.
    ///
    /// After a reconnection the server sends what was missed in any order, so that what happened first is not known.
    pub(crate) fn holds(&mut self) -> bool {
        self.0.changed().now_or_never().is_none() && self.0.now() == SessionState::SyncConnected
    }
}

impl Session {
    /// Opens a session, on this runtime, and tries again for as long as connecting may take: what fails at once may be a
    /// server that restarts.
    ///
    /// A session whose opening took long is returned when it is [proven](UnprovenSession::prove), which may take half of its
    /// timeout beyond that.
    pub(crate) async fn open(config: &ZkConfig, runtime: Handle) -> Result<Arc<Self>> {
        let until = Instant::now() + config.connect_limit();
        let (mut pause, mut last) = (PAUSE, None);
        loop {
            let opened = match timeout_at(until, UnprovenSession::connect(config)).await {
                Ok(Ok(mut fresh)) => fresh.prove(config).await.map(|()| fresh),
                Ok(Err(error)) => Err(error),
                Err(_) => return Err(last.unwrap_or_else(|| unreachable(config))),
            };
            match opened {
                Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() + pause < until => {
                    tracing::debug!(%error, "the opening of a session is repeated");
                    last = Some(error);
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                opened => return Ok(Self::new(opened?, config, runtime)),
            }
        }
    }

    fn new(fresh: UnprovenSession, config: &ZkConfig, runtime: Handle) -> Arc<Self> {
        let UnprovenSession { client, confirmed, until } = fresh;
        let clock = config.lease_clock().clone();
        let cell = ValidityCell::new(clock.clone(), until);
        let session = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            id: client.id(),
            timeout: client.timeout(),
            validity: cell.validity(),
            cell,
            nodes: AtomicUsize::new(0),
            over: CancellationToken::new(),
            confirmed: Mutex::new(confirmed),
            acl: config.node_acl(),
            directories: Directories::default(),
            watches: Watches::new(client.chroot()),
            bases: Mutex::default(),
            clock,
            runtime,
            client: Mutex::new(Some(client)),
        });
        if let Ok(states) = session.states() {
            drop(session.runtime.spawn(Monitor::new(&session, states).run()));
        }
        session
    }

    /// The id, which the ephemeral nodes of this session carry.
    pub(crate) const fn id(&self) -> i64 {
        self.id
    }

    /// How many locks it has, held or waited for.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    /// The paths that it watches.
    pub(crate) const fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    /// The session timeout that was negotiated.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Who may do what with its nodes.
    pub(crate) const fn acl(&self) -> &NodeAcl {
        &self.acl
    }

    /// The directories of locks that may be written.
    pub(crate) const fn directories(&self) -> &Directories {
        &self.directories
    }

    /// The base of the tokens of a lock in this directory. What is known of it, and its watch, go with the last who has it.
    pub(crate) fn base(&self, dir: &str) -> Arc<Base> {
        let (mut bases, above) = (lock(&self.bases), parent(dir));
        if let Some(base) = bases.iter().filter_map(Weak::upgrade).find(|base| base.is_at(above)) {
            return base;
        }
        let base = Base::beside(above, self.watches.claim(0));
        bases.retain(|base| base.strong_count() > 0);
        bases.push(Arc::downgrade(&base));
        base
    }

    /// How long a waiter stands still before it looks again whether it has missed something: about a session timeout.
    /// Random, so that those that were woken together do not all ask at once.
    pub(crate) fn second_look(&self) -> Duration {
        self.timeout.mul_f64(lock_core::random::rng().random_range(1.0..1.25))
    }

    /// Between two looks at what cannot be watched.
    pub(crate) fn between_looks(&self) -> Duration {
        self.timeout / 6
    }

    /// How long a caller waits for an answer that is not about getting a lock.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout / 2
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// How long the session may be believed in.
    pub(crate) const fn validity(&self) -> &Validity {
        &self.validity
    }

    /// Whether nothing can be asked of this session any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.client().is_err()
    }

    /// Whether a request is sent at once, and does not wait for a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.states().is_ok_and(|states| states.now() == SessionState::SyncConnected)
    }

    /// Ends the session for all who use it, and closes it in the background.
    ///
    /// The driver says farewell to the server when the last request that is under way has been given up, which they
    /// all are at once.
    pub(crate) fn end(&self, reason: LossReason) {
        self.cell.lose(reason);
        self.over.cancel();
        drop(lock(&self.client).take());
    }

    /// Waits for the end of the session.
    pub(crate) async fn ended(&self) {
        self.over.cancelled().await;
    }

    /// Waits for so long, or until the session ends. Who waits may be polled on another runtime by then, and the timer of a
    /// runtime that has shut down panics: it is not polled after the end.
    pub(crate) async fn pause(&self, pause: Duration) {
        tokio::select! {
            biased;
            () = self.ended() => {}
            () = sleep(pause) => {}
        }
    }

    /// Ends the session, and waits for the server's farewell.
    pub(crate) async fn close(&self) -> Result<()> {
        let Ok(mut states) = self.states() else { return Ok(()) };
        self.end(LossReason::SessionEnded);
        let farewell = async { while !states.changed().await.is_terminated() {} };
        let answered = tokio::time::timeout(self.patience(), farewell).await;
        answered.map_err(|_| unavailable("the server did not answer the end of the session"))
    }

    /// From now on.
    pub(crate) fn continuity(&self) -> Result<ConnectionContinuity, Fault> {
        self.states().map(ConnectionContinuity)
    }

    fn states(&self) -> Result<Box<dyn States>, Fault> {
        self.client().map(|client| client.states())
    }

    fn client(&self) -> Result<Arc<dyn SessionClient>, Fault> {
        if !self.validity.is_valid() {
            self.end(LossReason::DeadlinePassed);
        }
        lock(&self.client).clone().ok_or(Fault::SessionEnded)
    }

    /// When the next heartbeat is due.
    fn next_beat(&self) -> BootInstant {
        lock(&self.confirmed).next_beat(self.validity.remaining())
    }

    /// Notes that a request was answered that the quorum has committed, and says whether the session goes on.
    fn confirm(&self, sent: BootInstant) -> Result<(), Fault> {
        // Whoever waits for the loss of a lock wakes up when the deadline moves, so it does not for little.
        let mut confirmed = lock(&self.confirmed);
        let little = sent < confirmed.last + self.timeout / 24 && sent < confirmed.next_proof();
        if little && self.validity.state() == GuardState::Valid {
            return Ok(());
        }
        let deadline = confirmed.answer(sent, self.clock.now());
        drop(confirmed);
        if self.cell.extend_to(deadline) {
            return Ok(());
        }
        self.end(LossReason::DeadlinePassed);
        Err(Fault::SessionEnded)
    }
}

/// Requests. They are sent when they are polled first, in this order, and what was sent is not undone by dropping
/// them. They wait while there is no connection, until the session is over.
impl Session {
    /// Creates a node, and gives its path and what the server says about it.
    pub(crate) async fn create(
        &self,
        path: &str,
        data: &[u8],
        mode: CreateMode,
    ) -> Result<(String, Stat), Fault> {
        let (client, sent) = self.asked()?;
        let created = self.write(sent, client.create(path, data, mode, self.acl.acls())).await;
        created.map_err(|fault| fault.needing(Right::Create, parent(path)))
    }

    /// Creates an ephemeral sequential node in a directory, and tells whether it is alone there.
    ///
    /// Of all that changes something, only a write to a node is answered with how many are below it. So the directory
    /// is written in the same transaction, which tells it as of this very moment. A listing behind the creation mostly
    /// takes a round trip more, sent together or not: the driver leaves TCP_NODELAY off, so that the second of two
    /// requests leaves when the answer to the first has come.
    ///
    /// Nothing is written over: the directory has to have the version that it had when it was seen to be empty.
    pub(crate) async fn enter(
        &self,
        dir: &str,
        version: i32,
        path: &str,
        data: &[u8],
    ) -> Result<Entry, Fault> {
        let (mode, acl) = (CreateMode::EphemeralSequential, self.acl.acls());
        let empty = Change::Set { path: dir, data: &[], version: Some(version) };
        let answer = self.multi(&[Change::Create { path, data, mode, acl }, empty]).await;
        let mut results = answer.map_err(|(at, fault)| match at {
            Some(1) => fault.needing(Right::Write, dir),
            _ => fault.needing(Right::Create, dir),
        })?;
        match (results.pop(), results.pop()) {
            // Servers before 3.7.2 do not tell of the node, but all that one transaction does has its number.
            (Some(MultiWriteResult::SetData { stat }), Some(MultiWriteResult::Create { path, .. })) => {
                self.directories.note(dir, &stat);
                Ok(Entry { path, czxid: stat.mzxid, alone: stat.num_children == 1 })
            }
            _ => Err(Fault::Unknown(zk::Error::UnexpectedError(format!(
                "no answer to the creation of {path}"
            )))),
        }
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Fault> {
        let (client, sent) = self.asked()?;
        let deleted = self.write(sent, client.delete(path, None)).await;
        deleted.map_err(|fault| fault.needing(Right::Delete, parent(path)))
    }

    /// Replaces the directory by an empty one of the same name, whose numbers start at zero, if this node is the only
    /// one in it and nobody keeps data there. `NotEmpty` otherwise, and then nothing has changed.
    pub(crate) async fn rotate(&self, path: &str, dir: &str) -> Result<(), Fault> {
        let stat =
            self.retry_until_definite(|| self.stat(dir)).await?.ok_or(Fault::Refused(zk::Error::NoNode))?;
        if stat.data_length > 0 {
            return Err(Fault::Refused(zk::Error::NotEmpty));
        }
        let replace = async |mode| {
            let changes = [
                Change::Delete { path, version: None },
                Change::Delete { path: dir, version: Some(stat.version) },
                Change::Create { path: dir, data: &[], mode, acl: self.acl.acls() },
            ];
            self.multi(&changes).await.map(drop).map_err(|(_, fault)| fault)
        };
        match replace(CreateMode::Container).await {
            Err(Fault::Refused(zk::Error::Unimplemented | zk::Error::MarshallingError)) => {
                replace(CreateMode::Persistent).await
            }
            replaced => replaced,
        }
    }

    /// Does all of this or nothing; with the fault comes which part it is about, if it is about one.
    pub(crate) async fn multi(
        &self,
        changes: &[Change<'_>],
    ) -> Result<Vec<MultiWriteResult>, (Option<usize>, Fault)> {
        let (client, sent) = self.asked().map_err(|fault| (None, fault))?;
        let mut at = None;
        let answer = client.multi(changes).map_err(|error| {
            if let MultiWriteError::OperationFailed { index, .. } = &error {
                at = Some(*index);
            }
            zk::Error::from(error)
        });
        let answer = self.write(sent, answer).await;
        answer.map_err(|fault| (at, fault))
    }

    /// Lets the quorum commit something that changes nothing. Reads behind it see everything that was committed before,
    /// and its answer proves that the session was alive. The node need not be there, nor be one that we may read.
    pub(crate) async fn pass_quorum(&self, path: &str) -> Result<(), Fault> {
        let (client, sent) = self.asked()?;
        self.write(sent, pass_quorum(&*client, path)).await
    }

    pub(crate) async fn children(&self, dir: &str) -> Result<Vec<String>, Fault> {
        let listed = self.read(self.client()?.children(dir)).await;
        let (names, stat) = listed.map_err(|fault| fault.needing(Right::Read, dir))?;
        self.directories.note(dir, &stat);
        Ok(names)
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, Fault> {
        self.read(self.client()?.stat(path)).await
    }

    pub(crate) async fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), Fault> {
        let read = self.read(self.client()?.data(path)).await;
        read.map_err(|fault| fault.needing(Right::Read, path))
    }

    /// Replaces the data of a node, if it has this version.
    pub(crate) async fn set_data(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Result<Stat, Fault> {
        let (client, sent) = self.asked()?;
        let written = self.write(sent, client.set_data(path, data, version)).await;
        written.map_err(|fault| fault.needing(Right::Write, path))
    }

    /// Watches a node that exists, and gives its data and what the server says about it; `NoNode` leaves no watch
    /// behind.
    ///
    /// Without room for a watch the node is only read. What then stands for the watch is an [`Event::Changed`] after a
    /// while, upon which the caller looks again.
    pub(crate) async fn watch(
        &self,
        path: &str,
        room: Option<Arc<Room>>,
    ) -> Result<(Watch, Vec<u8>, Stat), Fault> {
        match room {
            Some(room) => self.watch_in(room, path).await,
            None => {
                let (data, stat) = self.data(path).await?;
                let pause = self.between_looks();
                let look_again = async move {
                    sleep(pause).await;
                    Event::Changed
                };
                Ok((look_again.boxed(), data, stat))
            }
        }
    }

    /// The same, where there is room.
    pub(crate) async fn watch_in(
        &self,
        room: Arc<Room>,
        path: &str,
    ) -> Result<(Watch, Vec<u8>, Stat), Fault> {
        let (client, own_path, this) = (self.client()?, path.to_owned(), Weak::clone(&self.this));
        let watched = self.read(self.outlive(async move {
            let watched = client.watch_data(&own_path).await;
            watched.map(|(data, stat, watching)| (data, stat, in_room(watching, room, this)))
        }));
        let (data, stat, watch) = watched.await.map_err(|fault| fault.needing(Right::Read, path))?;
        Ok((watch, data, stat))
    }

    /// Watches a node, there or not, and tells which.
    pub(crate) async fn watch_absence_in(
        &self,
        room: Arc<Room>,
        path: &str,
    ) -> Result<(Option<Stat>, Watch), Fault> {
        let (client, path, this) = (self.client()?, path.to_owned(), Weak::clone(&self.this));
        let watched = self.outlive(async move {
            let watched = client.watch_stat(&path).await;
            watched.map(|(stat, watching)| (stat, in_room(watching, room, this)))
        });
        self.read(watched).await
    }

    /// A request that is waited for in the background when the caller gives it up. The driver has its watch from the answer
    /// on, until that is dropped; so its room must not be given to another one before.
    fn outlive<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> Outliving<T> {
        let (over, runtime) = (self.over.clone(), self.runtime.clone());
        Outliving { request: request.boxed(), sent: false, over, runtime }
    }

    /// Repeats a request that has no effect for as long as its answers are lost, up to a session timeout.
    pub(crate) async fn retry_until_definite<T, F>(&self, request: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let until = Instant::now() + self.timeout;
        loop {
            match request().await {
                Err(Fault::Unknown(error)) if Instant::now() < until => {
                    tracing::debug!(%error, "a request is repeated");
                    self.pause(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// What to ask, and from when on the answer counts.
    fn asked(&self) -> Result<(Arc<dyn SessionClient>, BootInstant), Fault> {
        let sent = self.clock.now();
        Ok((self.client()?, sent))
    }

    async fn write<T>(
        &self,
        sent: BootInstant,
        answer: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<T, Fault> {
        let answer = self.read(answer).await;
        if is_committed(&answer) {
            self.confirm(sent)?;
        }
        answer
    }

    async fn read<T>(&self, answer: impl Future<Output = Result<T, zk::Error>>) -> Result<T, Fault> {
        let answer = tokio::select! {
            biased;
            answer = answer => answer.map_err(Fault::of),
            () = self.over.cancelled() => Err(Fault::SessionEnded),
        };
        if matches!(answer, Err(Fault::SessionEnded)) {
            self.end(LossReason::SessionEnded);
        }
        answer
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end(LossReason::SessionEnded);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &format_args!("{:#x}", self.id))
            .field("timeout", &self.timeout)
            .field("standing", &self.validity.state())
            .finish_non_exhaustive()
    }
}

/// A request that is waited for in the background when it is dropped, once it has been sent.
struct Outliving<T: Send + 'static> {
    request: BoxFuture<'static, T>,
    /// Whether it is under way.
    sent: bool,
    over: CancellationToken,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Outliving<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let answer = self.request.poll_unpin(context);
        self.sent = answer.is_pending();
        answer
    }
}

impl<T: Send + 'static> Drop for Outliving<T> {
    fn drop(&mut self) {
        if !self.sent || self.over.is_cancelled() {
            return;
        }
        let request = mem::replace(&mut self.request, pending().boxed());
        // The end of the session does not wait for it, as a request keeps the client open.
        let over = self.over.clone();
        drop(self.runtime.spawn(async move {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                answer = request => drop(answer),
            }
        }));
    }
}

/// A watch with its room. One that tells of the end of the session ends it, so that nobody takes it for one that goes on.
fn in_room(watching: Watching, room: Arc<Room>, session: Weak<Session>) -> Watch {
    async move {
        let event = Event::of(watching.await.event_type);
        drop(room);
        if let (Event::SessionEnded, Some(session)) = (event, session.upgrade()) {
            session.end(LossReason::SessionEnded);
        }
        event
    }
    .boxed()
}

impl Event {
    const fn of(event: EventType) -> Self {
        match event {
            EventType::NodeDeleted => Self::Deleted,
            EventType::Session => Self::SessionEnded,
            _ => Self::Changed,
        }
    }
}

/// Keeps a session confirmed, and ends it when it cannot be.
struct Monitor {
    session: Weak<Session>,
    states: Box<dyn States>,
    over: CancellationToken,
    validity: Validity,
    clock: Clock,
    pause: Duration,
}

/// With its runtime goes the session: the driver's task does.
impl Drop for Monitor {
    fn drop(&mut self) {
        self.tell(|session| session.end(LossReason::SessionEnded));
    }
}

impl Monitor {
    fn new(session: &Arc<Session>, states: Box<dyn States>) -> Self {
        Self {
            session: Arc::downgrade(session),
            states,
            over: session.over.clone(),
            validity: session.validity.clone(),
            clock: session.clock.clone(),
            pause: session.timeout / 6,
        }
    }

    async fn run(mut self) {
        let mut beat: Option<BoxFuture<'static, ()>> = None;
        let mut not_before = BootInstant::from_boot(Duration::ZERO);
        loop {
            let Some(session) = self.session.upgrade() else { return };
            let due = session.next_beat().max(not_before);
            drop(session);
            tokio::select! {
                biased;
                () = self.over.cancelled() => return,
                state = self.states.changed() => {
                    if state.is_terminated() {
                        tracing::debug!(%state, "the session ended");
                        self.tell(|session| session.end(LossReason::SessionEnded));
                        return;
                    }
                    // Both sides of a short loss may show up as one change.
                    self.tell(|session| session.cell.suspect());
                    beat = (state == SessionState::SyncConnected).then(|| self.beat());
                }
                reason = self.validity.lost() => {
                    tracing::debug!(%reason, "the session is given up");
                    self.tell(|session| session.end(reason));
                    return;
                }
                () = async { if let Some(beat) = &mut beat { beat.await } }, if beat.is_some() => {
                    beat = None;
                    // One that failed must not be repeated at once.
                    not_before = self.clock.now() + self.pause / 4;
                }
                () = self.clock.sleep_until(due), if beat.is_none() => {
                    // The answer to something else may have done the same by now.
                    let due = self.session.upgrade().map(|session| session.next_beat());
                    if due.is_some_and(|due| due <= self.clock.now()) {
                        beat = Some(self.beat());
                    }
                }
            }
        }
    }

    fn tell(&self, what: impl FnOnce(&Session)) {
        if let Some(session) = self.session.upgrade() {
            what(&session);
        }
    }

    /// One confirmation. It does not keep a session alive that nobody else holds.
    fn beat(&self) -> BoxFuture<'static, ()> {
        let (session, over, sent) = (Weak::clone(&self.session), self.over.clone(), self.clock.now());
        async move {
            let Some(Ok(client)) = session.upgrade().map(|session| session.client()) else { return };
            let answer = tokio::select! {
                biased;
                () = over.cancelled() => return,
                answer = pass_quorum(&*client, "/") => answer.map_err(Fault::of),
            };
            let Some(session) = session.upgrade() else { return };
            match answer {
                Ok(()) => drop(session.confirm(sent)),
                Err(Fault::SessionEnded) => session.end(LossReason::SessionEnded),
                _ => session.cell.suspect(),
            }
        }
        .boxed()
    }
}

/// Checks a node, whatever comes of it: the leader writes that to the log, be it a refusal, and answers once a majority
/// has it. Refusals of the request as a whole are those of a single server.
async fn pass_quorum(client: &dyn SessionClient, path: &str) -> Result<(), zk::Error> {
    let check = [Change::Check { path, version: None }];
    match client.multi(&check).await {
        Ok(_) => Ok(()),
        Err(MultiWriteError::OperationFailed { source, .. })
            if matches!(Fault::of(source.clone()), Fault::Refused(_)) =>
        {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the quorum has committed a write, or its refusal. A server that throttles, or that is cut off and read-only,
/// refuses it by itself.
fn is_committed<T>(answer: &Result<T, Fault>) -> bool {
    match answer {
        Ok(_) => true,
        Err(Fault::Refused(error)) => {
            matches!(error, zk::Error::NoNode | zk::Error::NodeExists | zk::Error::NotEmpty)
        }
        Err(_) => false,
    }
}

/// A session that was just opened and that no lock uses yet.
struct UnprovenSession {
    client: Arc<dyn SessionClient>,
    confirmed: Confirmed,
    until: BootInstant,
}

impl UnprovenSession {
    async fn connect(config: &ZkConfig) -> Result<Self> {
        let clock = config.lease_clock();
        let began = clock.now();
        let client = match config.opener()?.open(config.requested_timeout()).await {
            Ok(client) => client,
            Err(zk::Error::Unimplemented) => {
                return Err(too_old(first_version(config.hosts()).await.as_deref()));
            }
            Err(error) => return Err(not_open(error, config)),
        };
        let sent = clock.now();
        let (passed, root) = join(pass_quorum(&*client, "/"), async { client.stat("/").await }).await;
        passed.map_err(|error| not_open(error, config))?;
        if matches!(root, Ok(None)) {
            return Err(no_chroot(config.chroot_path()));
        }
        let mut confirmed = Confirmed::opened(began, client.timeout());
        let until = confirmed.answer(sent, clock.now());
        Ok(Self { client, confirmed, until })
    }

    /// Waits for a proof if less than half of the timeout is left.
    ///
    /// The opening counts from its begin, which may be long ago: silent hosts came first, or the servers granted another
    /// timeout than was asked for. What is left may then be over before the heartbeats prove more. So two requests do it
    /// here: by the answer to the second, the first is proven.
    async fn prove(&mut self, config: &ZkConfig) -> Result<()> {
        let (clock, timeout) = (config.lease_clock(), self.client.timeout());
        if self.until >= clock.now() + timeout / 2 {
            return Ok(());
        }
        clock.sleep_until(self.confirmed.next_proof()).await;
        let proof = async {
            loop {
                let sent = clock.now();
                match pass_quorum(&*self.client, "/").await {
                    Ok(()) => return Ok(sent),
                    Err(error) if matches!(Fault::of(error.clone()), Fault::Unknown(_)) => sleep(PAUSE).await,
                    Err(error) => return Err(not_open(error, config)),
                }
            }
        };
        let sent = tokio::time::timeout(timeout / 4, proof).await.map_err(|_| unreachable(config))??;
        self.until = self.confirmed.answer(sent, clock.now());
        Ok(())
    }
}

/// The requests that the quorum is known to have committed, and what they say about the session.
#[derive(Debug)]
struct Confirmed {
    timeout: Duration,
    /// When the last one was sent.
    last: BootInstant,
    /// When the last one was sent of which the leader has surely heard that it came from us.
    proven: BootInstant,
    /// When others were sent and answered, the oldest first.
    answered: VecDeque<(BootInstant, BootInstant)>,
}

impl Confirmed {
    /// A session whose opening began at this time.
    const fn opened(began: BootInstant, timeout: Duration) -> Self {
        Self { timeout, last: began, proven: began, answered: VecDeque::new() }
    }

    /// The earliest time at which a request proves more than is proven.
    fn next_proof(&self) -> BootInstant {
        self.answered.front().map_or(self.last, |(_, at)| *at + self.timeout / 4)
    }

    /// When the next heartbeat is due, with so much time left. A session with less than half of its timeout has come
    /// through a long silence: it is proven as soon as that can be done.
    fn next_beat(&self, left: Duration) -> BootInstant {
        let regular = self.last + self.timeout / 6;
        if left < self.timeout / 2 { regular.min(self.next_proof()) } else { regular }
    }

    /// Notes a request that was answered `now`, and gives the new deadline.
    fn answer(&mut self, sent: BootInstant, now: BootInstant) -> BootInstant {
        let quarter = self.timeout / 4;
        while let Some(&(earlier, _)) = self.answered.front().filter(|(_, at)| *at + quarter <= sent) {
            self.proven = self.proven.max(earlier);
            self.answered.pop_front();
        }
        self.last = self.last.max(sent);
        self.answered.push_back((sent, now));
        let drift = self.timeout / 100 + Duration::from_millis(2);
        (self.proven + (self.timeout - drift)).min(sent + (self.timeout - quarter))
    }
}

fn not_open(error: zk::Error, config: &ZkConfig) -> Error {
    match error {
        zk::Error::AuthFailed => Error::new(ErrorKind::Denied, BACKEND)
            .with_message("the servers refuse the credentials")
            .with_hint("correct user:password@ in the URL"),
        // Of all that has happened by then only the creation of the chroot can be refused.
        zk::Error::NoAuth => denied(Right::Create, parent(config.chroot_path())),
        zk::Error::BadArguments(what) => Error::new(ErrorKind::InvalidConfig, BACKEND)
            .with_message(format!(
                "no session can be had at {}{}: {what}",
                config.hosts(),
                config.chroot_path()
            ))
            .with_hint("write host:port[,host:port...][/chroot], of servers that vote"),
        error => unreachable(config).caused_by(error),
    }
}

fn unreachable(config: &ZkConfig) -> Error {
    let message =
        format!("no server opened a session at {} within {:?}", config.hosts(), config.connect_limit());
    unavailable(&message).with_outcome(lock_core::Outcome::NotApplied)
}

/// The node above.
fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between two attempts, when the first one failed at once.
pub(crate) const PAUSE: Duration = Duration::from_millis(15);
/// Between two attempts to open a session.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::Need;
    use lock_testkit::ZooKeeper;
    use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
    use std::pin::pin;

    #[tokio::test]
    async fn a_connection_that_broke_meanwhile_is_noticed() {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(4));
        let session = Session::open(&config, Handle::current()).await.unwrap();
        let mut continuity = session.continuity().unwrap();
        assert!(continuity.holds() && continuity.holds());
        proxy.rst();
        session.retry_until_definite(|| session.pass_quorum("/")).await.unwrap();
        assert!(!continuity.holds());
        assert!(session.continuity().unwrap().holds());
    }

    #[tokio::test]
    async fn a_watch_that_is_given_up_keeps_its_room_until_the_driver_has_removed_it() {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(10));
        let session = Session::open(&config, Handle::current()).await.unwrap();
        let room = |path| session.watches().claim(0).room(path, Need::Must);
        let watches = async || server.mntr().await.unwrap()["zk_watch_count"].clone();
        for path in ["/", "/zookeeper"] {
            // A request that was never sent leaves nothing.
            drop(session.watch(path, room(path)));
            assert_eq!(session.watches().claimed(), 0);

            proxy.hold(Direction::ToClient);
            assert!(pin!(session.watch(path, room(path))).now_or_never().is_none());
            let absence = session.watch_absence_in(room("/absent").unwrap(), "/absent");
            assert!(pin!(absence).now_or_never().is_none());
            while watches().await != "2" {
                sleep(PAUSE).await;
            }
            assert_eq!(session.watches().claimed(), path.len() + "/absent".len());
            proxy.deliver();
            while session.watches().claimed() > 0 || watches().await != "0" {
                sleep(PAUSE).await;
            }
        }
        proxy.hold(Direction::ToClient);
        assert!(pin!(session.watch("/", room("/"))).now_or_never().is_none());
        // It does not keep the client open.
        session.end(LossReason::SessionEnded);
        while session.watches().claimed() > 0 {
            sleep(PAUSE).await;
        }
    }

    #[test]
    fn what_a_server_refuses_by_itself_says_nothing_about_the_quorum() {
        use zk::Error as E;
        let passed = |error| is_committed::<()>(&Err(Fault::of(error)));
        assert!(is_committed(&Ok(())) && passed(E::NoNode) && passed(E::NodeExists) && passed(E::NotEmpty));
        for error in [E::Throttled, E::NotReadOnly, E::NoAuth, E::ConnectionLoss, E::SessionExpired] {
            assert!(!passed(error.clone()), "{error}");
        }
    }

    #[test]
    fn a_request_proves_those_that_were_answered_a_quarter_earlier() {
        let at = |ms: u64| BootInstant::from_boot(Duration::from_millis(1_000_000 + ms));
        let mut confirmed = Confirmed::opened(at(0), Duration::from_secs(8));
        // 8 s less the drift of clocks.
        let full = 8_000 - 82;
        assert_eq!(confirmed.answer(at(10), at(20)), at(10 + 6_000));
        // After a pause, a server may die that has told the leader of nothing but the opening.
        assert_eq!(confirmed.answer(at(5_000), at(5_010)), at(10 + full));
        assert_eq!(confirmed.answer(at(6_000), at(6_010)), at(10 + full));
        assert_eq!(confirmed.answer(at(7_009), at(7_020)), at(10 + full));
        assert_eq!(confirmed.answer(at(7_010), at(7_030)), at(5_000 + full));
        // An answer that was late proves later.
        assert_eq!(confirmed.answer(at(8_010), at(12_000)), at(6_000 + full));
        assert_eq!(confirmed.answer(at(13_000), at(13_010)), at(7_010 + full));
        assert_eq!(confirmed.answer(at(14_000), at(14_010)), at(8_010 + full));
        // Under load it is the answers that say when.
        for ms in (14_100..30_000).step_by(350) {
            let deadline = confirmed.answer(at(ms), at(ms + 10));
            let soon = ms < 17_000 || deadline >= at(ms + 5_500);
            assert!(soon && deadline <= at(ms + 6_000), "{ms}: {deadline:?}");
        }
        assert!(confirmed.answered.len() < 10, "what is proven is forgotten");
    }

    #[test]
    fn a_session_that_comes_through_a_silence_is_proven_in_time() {
        let (timeout, latency) = (Duration::from_secs(12), Duration::from_millis(400));
        // Until a silence that began at any time between two heartbeats is over, at the last moment.
        for began in 0..2_000 {
            let mut now = BootInstant::from_boot(Duration::from_secs(1_000));
            let silent_from = now + Duration::from_millis(30_000 + began);
            let mut confirmed = Confirmed::opened(now, timeout);
            let mut until = confirmed.answer(now, now);
            let (mut silent, mut beats) = (false, 0);
            while beats < 10 {
                let due = confirmed.next_beat(until.saturating_duration_since(now)).max(now);
                let mut answered = due + latency;
                if answered >= silent_from && !silent {
                    // What is under way is lost, and the session moves.
                    (silent, answered) = (true, until - Duration::from_millis(1));
                    now = answered - latency;
                } else {
                    now = due;
                }
                // What a loaded machine may need.
                let spare = if silent && beats > 0 { timeout / 25 } else { Duration::ZERO };
                assert!(answered + spare < until, "{began}: over at {until:?}, and answered at {answered:?}");
                until = confirmed.answer(now, answered);
                now = answered;
                beats += u32::from(silent);
            }
        }
    }

    #[tokio::test]
    async fn answers_confirm_a_session_and_late_ones_do_not() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(2));
        let session = Session::open(&config, Handle::current()).await.unwrap();
        let first = session.validity().until();
        sleep(Duration::from_millis(150)).await;
        session.children("/").await.unwrap();
        assert_eq!(session.validity().until(), first, "a read says nothing");
        session.pass_quorum("/").await.unwrap();
        let second = session.validity().until();
        assert!(second >= first);
        // By now the leader knows of that one.
        sleep(session.timeout() / 4).await;
        session.pass_quorum("/").await.unwrap();
        assert!(session.validity().until() > second);
        session.cell.suspect();
        session.pass_quorum("/").await.unwrap();
        assert_eq!(session.validity().state(), GuardState::Valid);

        session.cell.set_until(session.clock().now());
        assert!(matches!(session.pass_quorum("/").await, Err(Fault::SessionEnded)));
        assert!(matches!(session.confirm(session.clock().now()), Err(Fault::SessionEnded)));
        assert!(session.has_ended());
    }
}
