//! A lock that is held.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lock_core::{
    AcquireRequest, BootInstant, Error, GuardState, Lease, LeasePolicy, LossReason, Mode, OwnerId, Released,
    Result, Revocation, RevocationCell, Token, Validity, ValidityCell,
};
use tokio::sync::oneshot;

use crate::BACKEND;
use crate::capabilities::limits;
use crate::downgrade::Downgraded;
use crate::error::{Fault, unavailable};
use crate::layout::LockPath;
use crate::node::{CreatedNode, Gone, LAST_PAUSE, NodeData, OwnNode, delete_ours, is_there};
use crate::session::{Event, PAUSE, Session, Watch};
use crate::token::NotRaised;
use crate::watches::{Claim, Need};

/// A lock that is held: our node is the lowest, and nothing but its deletion or the end of the session changes that.
#[derive(Debug)]
pub(crate) struct ZkLease {
    own: OwnNode,
    /// As it was when the lock became ours: its number is that of the token.
    node: Arc<CreatedNode>,
    /// Whether nobody shared the lock when it became ours.
    exclusive: bool,
    token: Token,
    /// What concerns this lock alone: its removal, and its own end.
    cell: ValidityCell,
    end: End,
    validity: Validity,
    revocation: Revocation,
    /// Whether the lock was ours when its release began.
    was_ours: Option<bool>,
    /// Dropped, it calls off the watch for our node as long as that is not set.
    held: Option<oneshot::Sender<()>>,
}

impl ZkLease {
    /// The lease of this node, which is watched from a moment later on unless it is already.
    pub(crate) fn new(
        own: OwnNode,
        node: Arc<CreatedNode>,
        own_watch: OwnWatch,
        token: Token,
        request: &AcquireRequest,
    ) -> Self {
        let session = own.session();
        let (cell, end) = End::begin(session, request.lease);
        let (held, released) = oneshot::channel();
        let sentry = HeldNodeWatch {
            session: Arc::downgrade(session),
            claim: Arc::clone(own.claim()),
            lock: Arc::clone(own.lock()),
            node: Arc::clone(&node),
            cell: cell.clone(),
            revocation: RevocationCell::new(),
            ends: end != End::NEVER,
        };
        sentry.read(&own_watch.data);
        let revocation = sentry.revocation.revocation();
        drop(session.runtime().spawn(sentry.stand(own_watch.watch, released)));
        let validity = session.validity().clone().and(cell.validity());
        Self {
            node,
            exclusive: request.mode == Mode::Exclusive,
            own,
            token,
            cell,
            end,
            validity,
            revocation,
            was_ours: None,
            held: Some(held),
        }
    }

    /// The node as it is now.
    pub(crate) async fn node(&self) -> Arc<CreatedNode> {
        self.node.latest().await
    }

    pub(crate) fn session(&self) -> &Session {
        self.own.session()
    }

    /// Whether no other node ever has the name of ours.
    pub(crate) fn has_unique_name(&self) -> bool {
        self.own.lock().is_unique()
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        self.cell.lose(reason);
    }

    async fn look(&self) -> Result<GuardState, Fault> {
        let session = self.own.session();
        loop {
            let node = self.node().await;
            match session.retry_until_definite(|| is_there(session, &node.path, node.czxid)).await {
                Ok(true) => {}
                Ok(false) => self.cell.lose(LossReason::Removed),
                Err(Fault::SessionEnded) => {}
                Err(fault) => return Err(fault),
            }
            match self.validity.state() {
                // A loss of the connection that was over by then was noted only after the answer.
                GuardState::Suspect => {}
                standing => return Ok(standing),
            }
        }
    }

    pub(crate) fn silent(&self) -> Error {
        unavailable(&format!("no answer about {} within {:?}", self.node.path, self.own.session().patience()))
    }
}

#[async_trait]
impl Lease for ZkLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.own.owner()
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        Some(&self.revocation)
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let session = self.own.session();
        limits(session.timeout()).check_lease_ttl(ttl)?;
        let until = session.clock().now() + ttl;
        if self.end.is_fixed {
            // One that is nearer counts from now on, whatever becomes of the request.
            self.end.set(&self.cell, until.min(self.cell.validity().until()));
        }
        if let GuardState::Lost(_) = self.verify().await? {
            return Err(Error::lost(BACKEND));
        }
        if self.end.is_fixed && !self.end.set(&self.cell, until) {
            return Err(Error::lost(BACKEND));
        }
        Ok(self.validity.until())
    }

    async fn verify(&self) -> Result<GuardState> {
        if let lost @ GuardState::Lost(_) = self.validity.state() {
            return Ok(lost);
        }
        match tokio::time::timeout(self.own.session().patience(), self.look()).await {
            Ok(answer) => answer.map_err(|fault| fault.on(&self.node.path)),
            Err(_) => Err(self.silent()),
        }
    }

    async fn downgrade(&mut self) -> Result<()> {
        if !self.validity.is_valid() {
            return Err(Error::lost(BACKEND));
        }
        let patience = self.own.session().patience();
        match tokio::time::timeout(patience, self.own.downgrade()).await {
            Ok(Downgraded::To(_)) if self.validity.is_valid() => Ok(()),
            Ok(Downgraded::To(_)) => Err(Error::lost(BACKEND)),
            Ok(Downgraded::Gone) => {
                self.cell.lose(LossReason::Removed);
                Err(Error::lost(BACKEND))
            }
            Ok(Downgraded::Refused(fault)) => Err(fault.on(&self.node.path)),
            Err(_) => Err(self.silent()),
        }
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        if self.verify().await? != GuardState::Valid && !self.validity.is_valid() {
            return Err(Error::lost(BACKEND));
        }
        let session = self.own.session();
        // Whoever comes after a holder has a later node; of those who share a lock, it may be an earlier one.
        let after = u64::try_from(self.node.czxid).ok().filter(|_| self.exclusive).unwrap_or_default();
        let base = session.base(&self.own.lock().dir);
        let raised = async { base.raise(session, &self.node().await.path, after, floor).await };
        match tokio::time::timeout(session.patience(), raised).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(NotRaised::Failed(error))) => Err(error),
            Ok(Err(NotRaised::Lost)) => {
                self.cell.lose(LossReason::Removed);
                Err(Error::lost(BACKEND))
            }
            Err(_) => Err(self.silent()),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        let standing = self.validity.state();
        let was_ours = *self.was_ours.get_or_insert(!matches!(standing, GuardState::Lost(_)));
        if standing == GuardState::Lost(LossReason::Removed) {
            self.own.forget();
        }
        // From here on nobody may believe in it, whatever becomes of the request.
        self.cell.lose(LossReason::Released);
        self.held = None;
        match tokio::time::timeout(self.own.session().patience(), self.own.delete()).await {
            Ok(Ok(Gone::Now)) if was_ours => Ok(Released::Released),
            Ok(Ok(_)) => Ok(Released::AlreadyLost),
            Ok(Err(fault)) => Err(fault.on(&self.node.path)),
            Err(_) => Err(self.silent()),
        }
    }
}

/// When a lock ends though its session goes on, as the session keeps it for ever: it is deleted then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// Whether it has a fixed time to live, which can be extended.
    is_fixed: bool,
    /// However often it is extended.
    hold_until: BootInstant,
}

impl End {
    const NEVER: Self = Self { is_fixed: false, hold_until: BootInstant::NEVER };

    /// That of a lock which is granted now, and the cell that it is noted in.
    fn begin(session: &Session, policy: LeasePolicy) -> (ValidityCell, Self) {
        let (clock, now) = (session.clock(), session.clock().now());
        let hold_until = policy.max_hold.map_or(BootInstant::NEVER, |hold| now + hold);
        let end = Self { is_fixed: !policy.renewed, hold_until };
        let cell = ValidityCell::new(clock.clone(), BootInstant::NEVER);
        let ttl = policy.ttl.unwrap_or_else(|| session.timeout());
        end.set(&cell, if end.is_fixed { now + ttl } else { hold_until });
        (cell, end)
    }

    /// Lets the lock end at this time, or when it has been held for as long as it may; says whether it is still held.
    fn set(self, cell: &ValidityCell, until: BootInstant) -> bool {
        let is_max_hold = until >= self.hold_until;
        cell.end_with(if is_max_hold { LossReason::MaxHold } else { LossReason::DeadlinePassed });
        cell.set_until(until.min(self.hold_until))
    }
}

/// What is known of our own node when it becomes the lock.
#[derive(Default)]
pub(crate) struct OwnWatch {
    /// The watch for it, if one is set.
    pub(crate) watch: Option<Watch>,
    /// What the node said when it was watched.
    pub(crate) data: Vec<u8>,
}

/// Watches the node of a lock that is held, so that its removal by an operator and the wish for its revocation are
/// known at once, and removes it at its [end](End).
struct HeldNodeWatch {
    session: Weak<Session>,
    claim: Arc<Claim>,
    lock: Arc<LockPath>,
    node: Arc<CreatedNode>,
    cell: ValidityCell,
    revocation: RevocationCell,
    /// Whether the lock has an end of its own.
    ends: bool,
}

impl HeldNodeWatch {
    /// A lock that is released at once is never watched. One that is watched stays so until its node is gone: the
    /// watch ends with the node by itself, and dropping it earlier would cost a request.
    ///
    /// There is one of these for every lock that is held, so what it does only for a moment is not part of it.
    async fn stand(mut self, mut watch: Option<Watch>, released: oneshot::Receiver<()>) {
        if watch.is_none() && tokio::time::timeout(BEFORE_WATCH, released).boxed().await.is_ok() {
            return;
        }
        let (mut ended, mut pause) = (ended(self.cell.validity(), self.ends), PAUSE);
        loop {
            let mut watched = match watch.take() {
                Some(watch) => watch,
                None => {
                    let Some(session) = self.session.upgrade() else { return };
                    let room = self.claim.room(&self.node.path, Need::Must);
                    match session.watch(&self.node.path, room).boxed().await {
                        Ok((watch, data, stat)) if stat.czxid == self.node.czxid => {
                            self.read(&data);
                            pause = PAUSE;
                            watch
                        }
                        Err(Fault::SessionEnded) => return,
                        Err(fault) if !fault.is_no_node() => {
                            tracing::debug!(?fault, path = self.node.path, "our own node cannot be watched");
                            let over = tokio::time::timeout(pause, &mut ended).boxed().await.is_ok();
                            if over {
                                return self.end().boxed().await;
                            }
                            let repeats = matches!(fault, Fault::Unknown(_));
                            pause = if repeats { PAUSE } else { (pause * 2).min(LAST_PAUSE) };
                            continue;
                        }
                        // It is gone, or somebody else's node has the name by now.
                        _ if self.is_lost().boxed().await => return,
                        _ => continue,
                    }
                }
            };
            tokio::select! {
                event = &mut watched => match event {
                    Event::Deleted if self.is_lost().boxed().await => return,
                    Event::Deleted => {}
                    Event::SessionEnded => return,
                    Event::Changed => {}
                },
                () = &mut ended => {
                    self.end().boxed().await;
                    return drop(watched);
                }
            }
        }
    }
}

impl HeldNodeWatch {
    /// Deletes the node of a lock that has ended.
    async fn end(&self) {
        if let Some(session) = self.session.upgrade() {
            delete_ours(&session, &self.lock, &self.node).await;
        }
    }

    /// Turns to the node that has taken the place of ours, which is gone. If there is none, the lock is lost.
    async fn is_lost(&mut self) -> bool {
        let latest = self.node.latest().await;
        let lost = Arc::ptr_eq(&latest, &self.node);
        if lost {
            self.cell.lose(LossReason::Removed);
        }
        self.node = latest;
        lost
    }

    fn read(&self, data: &[u8]) {
        if is_wish(data) {
            self.revocation.request();
        }
    }
}

/// Waits for the end of the lock. Most have none of their own, for which there is nothing to store.
fn ended(validity: Validity, ends: bool) -> BoxFuture<'static, ()> {
    if !ends {
        return pending().boxed();
    }
    async move {
        if !matches!(validity.lost().await, LossReason::MaxHold | LossReason::DeadlinePassed) {
            pending::<()>().await;
        }
    }
    .boxed()
}

/// Whether a node that says this asks its owner to give the lock up.
fn is_wish(data: &[u8]) -> bool {
    data == REVOKE || serde_json::from_slice::<NodeData>(data).is_ok_and(|card| card.revoke)
}

/// What a node says once its owner is asked to give the lock up, if it is one of ours.
pub(crate) fn card_with_wish(data: &[u8]) -> Option<Vec<u8>> {
    let card: NodeData = serde_json::from_slice(data).ok()?;
    serde_json::to_vec(&NodeData { revoke: true, ..card }).ok()
}

/// What is written into the node of a holder that is asked to give its lock up, as by Curator's `Revoker`.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";
/// Most locks are held for less than a removal by an operator would take to matter, and a watch takes a request.
const BEFORE_WATCH: Duration = Duration::from_millis(10);
