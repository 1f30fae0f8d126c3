//! One session with the ensemble: its requests, and how long it may be believed in.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, join};
use futures_util::{FutureExt, TryFutureExt};
use lock_core::{BootInstant, Clock, Error, ErrorKind, LossReason, Result, Standing, Validity, ValidityCell};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;
use zookeeper_client::{Acls, CreateMode, EventType, SessionState, Stat};

use crate::ensemble::{Change, SessionClient, States};
use crate::fault::{Fault, no_chroot, unavailable};
use crate::{BACKEND, ZkConfig};

/// A session with the ensemble.
///
/// It is believed in until a deadline of our own, three quarters of the session timeout after the last request that
/// is known to have passed the leader was *sent*. The last quarter covers a follower that died before it told the
/// leader of our request, which it does every half tick, and a session lasts two ticks at least.
///
/// Only writes and `sync` count. A read is answered by the follower alone, and one that is cut off from its leader
/// goes on answering for up to `syncLimit` ticks, while the leader lets the session expire.
///
/// Once the deadline has passed the session is over for good, whatever the servers say later: nothing that was
/// acquired by it comes back to life, and its client is closed, so that its nodes go even if it was alive after all.
/// The driver's own `Expired` comes up to 0.4 session timeouts too late to be of use.
pub(crate) struct Session {
    id: i64,
    timeout: Duration,
    client: Mutex<Option<Arc<dyn SessionClient>>>,
    over: CancellationToken,
    cell: ValidityCell,
    validity: Validity,
    /// When the request was sent that moved the deadline last.
    confirmed: Mutex<BootInstant>,
    clock: Clock,
    runtime: Handle,
}

/// What became of a node that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Deleted,
    /// Its data changed; the watch has to be set again.
    Changed,
    /// The session is over.
    Over,
}

/// A watch for one event. Dropping it before that costs a request, which removes it from the server.
pub(crate) type Watch = BoxFuture<'static, Event>;

/// Tells whether the connection has been up all the time.
pub(crate) struct Steadiness(Box<dyn States>);

impl Steadiness {
    /// Whether the connection is up, and was since this value was made.
    ///
    /// After a reconnection the server sends what was missed in any order, so that what happened first is not known.
    pub(crate) fn holds(&mut self) -> bool {
        self.0.changed().now_or_never().is_none() && self.0.now() == SessionState::SyncConnected
    }
}

impl Session {
    /// Opens a session, on this runtime.
    pub(crate) async fn open(config: &ZkConfig, runtime: Handle) -> Result<Arc<Self>> {
        let opened = tokio::time::timeout(config.patience(), Self::connect(config, runtime)).await;
        opened.unwrap_or_else(|_| Err(unreachable(config)))
    }

    async fn connect(config: &ZkConfig, runtime: Handle) -> Result<Arc<Self>> {
        let opened = config.opener().open(config.asked_timeout()).await;
        let client = opened.map_err(|error| not_open(error, config))?;
        let clock = config.lease_clock().clone();
        let sent = clock.now();
        let (synced, root) = join(client.sync("/"), client.stat("/")).await;
        synced.map_err(|error| not_open(error, config))?;
        if matches!(root, Ok(None)) {
            return Err(no_chroot(config.chroot_path()));
        }
        let (id, timeout) = (client.id(), client.timeout());
        let cell = ValidityCell::new(clock.clone(), sent + believed(timeout));
        let session = Arc::new(Self {
            id,
            timeout,
            validity: cell.validity(),
            cell,
            over: CancellationToken::new(),
            confirmed: Mutex::new(sent),
            clock,
            runtime,
            client: Mutex::new(Some(client)),
        });
        if let Ok(states) = session.states() {
            drop(session.runtime.spawn(Monitor::new(&session, states).run()));
        }
        Ok(session)
    }

    /// The id, which the ephemeral nodes of this session carry.
    pub(crate) const fn id(&self) -> i64 {
        self.id
    }

    /// The session timeout that was negotiated.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
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
    pub(crate) fn is_over(&self) -> bool {
        self.client().is_err()
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

    /// Ends the session, and waits for the server's farewell.
    pub(crate) async fn close(&self) -> Result<()> {
        let Ok(mut states) = self.states() else { return Ok(()) };
        self.end(LossReason::SessionEnded);
        let farewell = async { while !states.changed().await.is_terminated() {} };
        let answered = tokio::time::timeout(self.patience(), farewell).await;
        answered.map_err(|_| unavailable("the server did not answer the end of the session"))
    }

    /// From now on.
    pub(crate) fn steadiness(&self) -> Result<Steadiness, Fault> {
        self.states().map(Steadiness)
    }

    fn states(&self) -> Result<Box<dyn States>, Fault> {
        self.client().map(|client| client.states())
    }

    fn client(&self) -> Result<Arc<dyn SessionClient>, Fault> {
        if !self.validity.is_valid() {
            self.end(LossReason::DeadlinePassed);
        }
        lock(&self.client).clone().ok_or(Fault::Over)
    }

    /// Notes that the server answered a request that the leader saw, and says whether the session goes on.
    fn confirm(&self, sent: BootInstant) -> Result<(), Fault> {
        // Whoever waits for the loss of a lock wakes up when the deadline moves, so it does not for little.
        let mut confirmed = lock(&self.confirmed);
        let little = sent < *confirmed + self.timeout / 24;
        if little && self.validity.standing() == Standing::Valid {
            return Ok(());
        }
        *confirmed = sent.max(*confirmed);
        drop(confirmed);
        if self.cell.extend_to(sent + believed(self.timeout)) {
            return Ok(());
        }
        self.end(LossReason::DeadlinePassed);
        Err(Fault::Over)
    }
}

/// Requests. They are sent when they are polled first, in this order, and what was sent is not undone by dropping
/// them. They wait while there is no connection, until the session is over.
impl Session {
    /// Creates an ephemeral sequential node, and gives its path and what the server says about it.
    pub(crate) async fn create(&self, prefix: &str, data: &[u8]) -> Result<(String, Stat), Fault> {
        let mode = CreateMode::EphemeralSequential;
        let (client, sent) = self.asked()?;
        self.write(sent, client.create(prefix, data, mode, Acls::anyone_all())).await
    }

    pub(crate) async fn create_directory(&self, path: &str, mode: CreateMode) -> Result<(), Fault> {
        let (client, sent) = self.asked()?;
        self.write(sent, client.create(path, &[], mode, Acls::anyone_all())).await.map(drop)
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Fault> {
        let (client, sent) = self.asked()?;
        self.write(sent, client.delete(path, None)).await
    }

    /// Replaces the directory by an empty one of the same name, whose numbers start at zero, if this node is the
    /// only one in it. `NotEmpty` otherwise, and then nothing has changed.
    pub(crate) async fn rotate(&self, path: &str, dir: &str) -> Result<(), Fault> {
        let (mode, acl) = (CreateMode::Container, Acls::anyone_all());
        let changes = [
            Change::Delete { path, version: None },
            Change::Delete { path: dir, version: None },
            Change::Create { path: dir, data: &[], mode, acl },
        ];
        let (client, sent) = self.asked()?;
        self.write(sent, client.multi(&changes).map_err(zk::Error::from)).await.map(drop)
    }

    /// A round trip to the leader, behind which reads see everything that was written before it.
    pub(crate) async fn sync(&self, path: &str) -> Result<(), Fault> {
        let (client, sent) = self.asked()?;
        self.write(sent, client.sync(path)).await
    }

    pub(crate) async fn children(&self, dir: &str) -> Result<Vec<String>, Fault> {
        self.read(self.client()?.children(dir)).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, Fault> {
        self.read(self.client()?.stat(path)).await
    }

    pub(crate) async fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), Fault> {
        self.read(self.client()?.data(path)).await
    }

    /// Replaces the data of a node, if it has this version.
    pub(crate) async fn set_data(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Result<Stat, Fault> {
        let (client, sent) = self.asked()?;
        self.write(sent, client.set_data(path, data, version)).await
    }

    /// Watches a node that exists, and gives its data; `NoNode` leaves no watch behind.
    pub(crate) async fn watch(&self, path: &str) -> Result<(Watch, Vec<u8>), Fault> {
        let (data, _, watching) = self.read(self.client()?.watch_data(path)).await?;
        Ok((watching.map(|event| Event::of(event.event_type)).boxed(), data))
    }

    /// Repeats a request that has no effect for as long as its answers are lost, up to a session timeout.
    pub(crate) async fn insist<T, F>(&self, request: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let until = Instant::now() + self.timeout;
        loop {
            match request().await {
                Err(Fault::Unknown(error)) if Instant::now() < until => {
                    tracing::debug!(%error, "a request is repeated");
                    tokio::time::sleep(PAUSE).await;
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
        // Only these refusals surely come from the leader.
        let passed_leader = match &answer {
            Ok(_) => true,
            Err(Fault::Refused(error)) => {
                matches!(error, zk::Error::NoNode | zk::Error::NodeExists | zk::Error::NotEmpty)
            }
            Err(_) => false,
        };
        if passed_leader {
            self.confirm(sent)?;
        }
        answer
    }

    async fn read<T>(&self, answer: impl Future<Output = Result<T, zk::Error>>) -> Result<T, Fault> {
        let answer = tokio::select! {
            biased;
            answer = answer => answer.map_err(Fault::of),
            () = self.over.cancelled() => Err(Fault::Over),
        };
        if matches!(answer, Err(Fault::Over)) {
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
            .field("standing", &self.validity.standing())
            .finish_non_exhaustive()
    }
}

impl Event {
    const fn of(event: EventType) -> Self {
        match event {
            EventType::NodeDeleted => Self::Deleted,
            EventType::Session => Self::Over,
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
            let due = (*lock(&session.confirmed) + self.pause).max(not_before);
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
                    let confirmed = self.session.upgrade().map(|session| *lock(&session.confirmed));
                    if confirmed.is_some_and(|at| at + self.pause <= self.clock.now()) {
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
                answer = client.sync("/") => answer.map_err(Fault::of),
            };
            let Some(session) = session.upgrade() else { return };
            match answer {
                Err(Fault::Over) => session.end(LossReason::SessionEnded),
                // Not every server lets everybody sync every path; the answer came from the leader all the same.
                Ok(()) | Err(Fault::Refused(_)) => drop(session.confirm(sent)),
                Err(Fault::Unknown(_)) => session.cell.suspect(),
            }
        }
        .boxed()
    }
}

/// How long a session is believed in after a request was sent.
fn believed(timeout: Duration) -> Duration {
    timeout - timeout / 4
}

fn not_open(error: zk::Error, config: &ZkConfig) -> Error {
    match error {
        zk::Error::AuthFailed => Error::new(ErrorKind::Denied, BACKEND)
            .message("the servers refuse the credentials")
            .hint("correct user:password@ in the URL"),
        zk::Error::BadArguments(_) => Error::new(ErrorKind::InvalidConfig, BACKEND)
            .message(format!("the driver refuses the servers {}", config.cluster()))
            .hint("write host:port[,host:port...][/chroot]"),
        error => unreachable(config).caused_by(error),
    }
}

fn unreachable(config: &ZkConfig) -> Error {
    let message = format!("no server opened a session at {} within {:?}", config.hosts(), config.patience());
    unavailable(&message).with_outcome(lock_core::Outcome::NotApplied)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between two attempts, when the first one failed at once.
pub(crate) const PAUSE: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;
    use lock_testkit::ZooKeeper;
    use lock_testkit::proxy::{FaultProxy, Protocol};

    #[tokio::test]
    async fn a_connection_that_broke_meanwhile_is_noticed() {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(4));
        let session = Session::open(&config, Handle::current()).await.unwrap();
        let mut steady = session.steadiness().unwrap();
        assert!(steady.holds() && steady.holds());
        proxy.rst();
        session.insist(|| session.sync("/")).await.unwrap();
        assert!(!steady.holds());
        assert!(session.steadiness().unwrap().holds());
    }

    #[tokio::test]
    async fn answers_confirm_a_session_and_late_ones_do_not() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(2));
        let session = Session::open(&config, Handle::current()).await.unwrap();
        let first = session.validity().until();
        tokio::time::sleep(Duration::from_millis(150)).await;
        session.children("/").await.unwrap();
        assert_eq!(session.validity().until(), first, "a read says nothing");
        let sent = session.clock().now();
        session.sync("/").await.unwrap();
        let second = session.validity().until();
        assert!(second >= sent + believed(session.timeout()) && second > first);
        session.cell.suspect();
        session.sync("/").await.unwrap();
        assert_eq!(session.validity().standing(), Standing::Valid);

        session.cell.set_until(session.clock().now());
        assert!(matches!(session.sync("/").await, Err(Fault::Over)));
        assert!(matches!(session.confirm(session.clock().now()), Err(Fault::Over)));
        assert!(session.is_over());
    }
}
