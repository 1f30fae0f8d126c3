//! One session with the ensemble: its life, its validity, and what its locks share.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use lock_core::{BootInstant, Clock, GuardState, LossReason, Result, Validity, ValidityCell};
use rand::Rng;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use zookeeper_client::SessionState;

use crate::config::ZkConfig;
use crate::error::{Fault, unavailable};
use crate::nodes::acl::NodeAcl;
use crate::nodes::node_owners::NodeOwners;
use crate::nodes::token_base::TokenBase;
use crate::nodes::watches::{Claim, WatchBudget};
use crate::operate::empty_directories::EmptyDirectories;
use crate::operate::fenced_writes::FencedWrites;
use crate::poison::lock;
use crate::recipes::acquisitions::Acquisitions;
use crate::recipes::turns::{Turn, Turns};
use crate::sessions::ensemble::{SessionClient, States};
use crate::sessions::owned_requests::OwnedRequests;
use crate::sessions::proof::Proofs;

/// A session with the ensemble.
///
/// It is valid until a deadline of our own, computed from [requests that the quorum committed](Proofs), and has ended for
/// good once that passes, whatever the servers say later: no lock of it becomes valid again, and its client is closed, so
/// that the servers delete its nodes even if the session was still alive. The driver's own `Expired` comes up to 0.4
/// session timeouts too late.
pub(crate) struct Session {
    pub(crate) this: Weak<Self>,
    /// The id, which its ephemeral nodes carry.
    pub(crate) id: i64,
    /// The session timeout that was negotiated.
    pub(crate) timeout: Duration,
    /// The chroot; `/` if there is none.
    pub(crate) chroot: String,
    client: Mutex<Option<Arc<dyn SessionClient>>>,
    /// The number of nodes of locks that exist, may exist, or are about to.
    nodes: AtomicUsize,
    /// Fires at the end of the session.
    pub(crate) ended: CancellationToken,
    pub(crate) cell: ValidityCell,
    pub(crate) validity: Validity,
    /// The largest request that is sent, in bytes.
    pub(crate) jute_maxbuffer: usize,
    /// Room for the fenced writes under way.
    pub(crate) fenced_writes: FencedWrites,
    acquiring: Turns,
    deleting: Turns,
    pub(crate) acl: NodeAcl,
    pub(crate) empty_directories: EmptyDirectories,
    pub(crate) watches: Arc<WatchBudget>,
    /// The token bases in use: one for each `dir`, mostly one.
    bases: Mutex<Vec<Weak<TokenBase>>>,
    proofs: Mutex<Proofs>,
    pub(crate) requests: Arc<OwnedRequests>,
    pub(crate) acquisitions: Acquisitions,
    pub(crate) owners: NodeOwners,
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
}

/// Reports whether the connection of a session has been up since some time.
pub(crate) struct ConnectionContinuity(Box<dyn States>);

impl ConnectionContinuity {
    /// Whether the connection is up, and has been since this value was made.
    ///
    /// After a reconnection the server sends the missed events in any order.
    pub(crate) fn holds(&mut self) -> bool {
        self.0.changed().now_or_never().is_none() && self.0.now() == SessionState::SyncConnected
    }
}

impl Session {
    /// The session of this client, valid `until` then by these proofs.
    pub(crate) fn new(
        client: Arc<dyn SessionClient>,
        proofs: Proofs,
        until: BootInstant,
        config: &ZkConfig,
        runtime: Handle,
    ) -> Arc<Self> {
        let clock = config.clock.clone();
        let cell = ValidityCell::new(clock.clone(), until);
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            id: client.id(),
            timeout: client.timeout(),
            chroot: config.chroot_path().to_owned(),
            validity: cell.validity(),
            cell,
            nodes: AtomicUsize::new(0),
            ended: CancellationToken::new(),
            proofs: Mutex::new(proofs),
            requests: Arc::default(),
            jute_maxbuffer: config.jute_maxbuffer,
            fenced_writes: FencedWrites::default(),
            acquiring: Turns::default(),
            deleting: Turns::default(),
            acl: config.node_acl(),
            empty_directories: EmptyDirectories::default(),
            watches: WatchBudget::new(client.chroot()),
            bases: Mutex::default(),
            acquisitions: Acquisitions::default(),
            owners: NodeOwners::default(),
            clock,
            runtime,
            client: Mutex::new(Some(client)),
        })
    }

    /// The number of its locks, held or waited for.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    /// The base of the tokens of locks in this directory. It is dropped, with its watch, when nobody uses it any more.
    pub(crate) fn base(&self, dir: &str) -> Arc<TokenBase> {
        let (mut bases, above) = (lock(&self.bases), parent(dir));
        if let Some(base) = bases.iter().filter_map(Weak::upgrade).find(|base| base.is_at(above)) {
            return base;
        }
        let base = TokenBase::beside(above, self.watches.claim(0));
        bases.retain(|base| base.strong_count() > 0);
        bases.push(Arc::downgrade(&base));
        base
    }

    /// How long a waiter is idle before it looks again, in case an event was lost: about a session timeout. Random, so that
    /// waiters that were woken together do not look at the same time.
    pub(crate) fn second_look(&self) -> Duration {
        self.timeout.mul_f64(lock_core::random::rng().random_range(1.0..1.25))
    }

    /// The interval for polling what cannot be watched.
    pub(crate) fn poll_interval(&self) -> Duration {
        self.timeout / 6
    }

    /// Waits until an acquisition may send its requests.
    pub(crate) async fn turn(&self) -> Turn {
        self.acquiring.next(self.timeout / 6).await
    }

    /// Waits until a node may be deleted: for a release, or an acquisition that ended without the lock.
    pub(crate) async fn turn_to_delete(&self) -> Turn {
        self.deleting.next(self.timeout / 6).await
    }

    /// How long a caller waits for an answer that does not grant a lock.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.timeout / 2
    }

    /// The result of requests about this path, or the error if it takes longer than a caller waits.
    pub(crate) async fn answer_about<T>(&self, path: &str, requests: impl Future<Output = T>) -> Result<T> {
        let limit = self.answer_timeout();
        let answer = timeout(limit, requests).await;
        answer.map_err(|_| unavailable(&format!("no answer about {path} within {limit:?}")))
    }

    /// Whether the session has ended, so that it takes no requests.
    pub(crate) fn has_ended(&self) -> bool {
        self.client().is_err()
    }

    /// Whether a request is sent at once, and does not wait for a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.states().is_ok_and(|states| states.now() == SessionState::SyncConnected)
    }

    /// Ends the session for all its users, and closes it in the background.
    ///
    /// The driver closes it at the server once all requests under way are dropped, which happens here, whoever waits for them.
    pub(crate) fn end(&self, reason: LossReason) {
        self.cell.lose(reason);
        self.ended.cancel();
        drop(lock(&self.client).take());
        self.requests.end();
    }

    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Sleeps, but not beyond the end of the session.
    ///
    /// The caller may be polled on another runtime. The timer of a runtime that has shut down panics, so it is not polled
    /// after the end.
    pub(crate) async fn pause(&self, pause: Duration) {
        tokio::select! {
            biased;
            () = self.ended() => {}
            () = sleep(pause) => {}
        }
    }

    /// Ends the session, and waits until the server has closed it.
    pub(crate) async fn close(&self) -> Result<()> {
        let Ok(mut states) = self.states() else { return Ok(()) };
        self.end(LossReason::SessionEnded);
        let closed =
            timeout(self.answer_timeout(), async { while !states.changed().await.is_terminated() {} });
        closed.await.map_err(|_| unavailable("the server did not confirm the end of the session"))
    }

    pub(crate) fn continuity(&self) -> Result<ConnectionContinuity, Fault> {
        self.states().map(ConnectionContinuity)
    }

    pub(crate) fn states(&self) -> Result<Box<dyn States>, Fault> {
        self.client().map(|client| client.states())
    }

    /// The client, for requests that the session [owns](Self::request): one that somebody keeps, keeps the session alive.
    pub(crate) fn client(&self) -> Result<Arc<dyn SessionClient>, Fault> {
        if !self.validity.is_valid() {
            self.end(LossReason::DeadlinePassed);
        }
        lock(&self.client).clone().ok_or(Fault::SessionEnded)
    }

    pub(crate) fn next_heartbeat(&self) -> BootInstant {
        lock(&self.proofs).next_heartbeat(self.validity.remaining())
    }

    /// Extends the validity by a request, sent then and answered now, that the quorum committed.
    pub(crate) fn confirm(&self, sent: BootInstant) -> Result<(), Fault> {
        // Moving the deadline wakes all tasks that wait for the loss of a lock. So it is not moved for little.
        let mut proofs = lock(&self.proofs);
        if proofs.adds_little(sent) && self.validity.state() == GuardState::Valid {
            return Ok(());
        }
        let deadline = proofs.answered(sent, self.clock.now());
        drop(proofs);
        if self.cell.extend_to(deadline) {
            return Ok(());
        }
        self.end(LossReason::DeadlinePassed);
        Err(Fault::SessionEnded)
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
            .field("state", &self.validity.state())
            .finish_non_exhaustive()
    }
}

/// Counts one node of a lock in a session, and holds the right to watch one path of that length.
pub(crate) struct SessionHandle {
    session: Arc<Session>,
    pub(crate) claim: Arc<Claim>,
}

impl SessionHandle {
    /// A handle for a node whose path has this many bytes.
    pub(crate) fn new(session: &Arc<Session>, bytes: usize) -> Self {
        Self::with(session, session.watches.claim(bytes))
    }

    /// Another handle for the same lock.
    pub(crate) fn with(session: &Arc<Session>, claim: Arc<Claim>) -> Self {
        session.nodes.fetch_add(1, Ordering::Relaxed);
        Self { session: Arc::clone(session), claim }
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

pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// The pause before a request is repeated that failed at once.
pub(crate) const PAUSE: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::watches::Need;
    use crate::sessions::session_open::open;
    use lock_testkit::ZooKeeper;
    use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
    use std::pin::pin;
    use std::time::Instant;
    use zookeeper_client::CreateMode;

    #[tokio::test]
    async fn a_broken_connection_is_noticed() {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(4));
        let session = open(&config, Handle::current()).await.unwrap();
        let mut continuity = session.continuity().unwrap();
        assert!(continuity.holds() && continuity.holds());
        proxy.rst();
        session.retry_until_definite(|| session.pass_quorum("/")).await.unwrap();
        assert!(!continuity.holds());
        assert!(session.continuity().unwrap().holds());
    }

    /// As in a `select!` loop, whose futures are kept and not polled while another branch runs.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_that_callers_keep_do_not_keep_an_ended_session_alive() {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(30));
        let session = open(&config, Handle::current()).await.unwrap();
        session.create("/e", b"", CreateMode::Ephemeral).await.unwrap();
        let room = session.watches.claim(0).room("/e", Need::Must);
        proxy.hold(Direction::ToClient);
        let mut unanswered = pin!(session.children("/"));
        let mut unset = pin!(session.watch("/e", room));
        assert!((&mut unanswered).now_or_never().is_none() && (&mut unset).now_or_never().is_none());
        proxy.deliver();
        session.end(LossReason::DeadlinePassed);
        let began = Instant::now();
        while server.mntr().await.unwrap()["zk_ephemerals_count"] != "0" {
            assert!(began.elapsed() < session.timeout / 2, "the servers keep the session");
            sleep(PAUSE).await;
        }
        assert!(matches!(unanswered.await, Err(Fault::SessionEnded)));
        assert!(matches!(unset.await, Err(Fault::SessionEnded)));
    }

    #[tokio::test]
    async fn answers_confirm_a_session_and_late_ones_do_not() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(8));
        let session = open(&config, Handle::current()).await.unwrap();
        let first = session.validity.until();
        sleep(Duration::from_millis(150)).await;
        session.children("/").await.unwrap();
        assert_eq!(session.validity.until(), first, "a read proves nothing");
        session.pass_quorum("/").await.unwrap();
        let second = session.validity.until();
        assert!(second >= first);
        // By now a ping has reached the leader.
        sleep(session.timeout / 4).await;
        session.pass_quorum("/").await.unwrap();
        assert!(session.validity.until() > second);
        session.cell.suspect();
        session.pass_quorum("/").await.unwrap();
        assert_eq!(session.validity.state(), GuardState::Valid);

        session.cell.set_until(session.clock.now());
        assert!(matches!(session.pass_quorum("/").await, Err(Fault::SessionEnded)));
        assert!(matches!(session.confirm(session.clock.now()), Err(Fault::SessionEnded)));
        assert!(session.has_ended());
    }
}
