//! The lease of a held lock.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, BootInstant, Error, Expiry, GuardState, Lease, LossReason, OwnerId, Released, Result,
    Revocation, Token, TokenBlock, Validity,
};
use tokio::sync::oneshot;

use crate::capabilities::limits;
use crate::error::{BACKEND, Fault};
use crate::nodes::held_node::{self, OwnWatch};
use crate::nodes::node::{CreatedNode, Deletion, Downgraded};
use crate::nodes::own_node::OwnNode;
use crate::nodes::token::{Minted, NotWritten};
use crate::operate::fenced::Fencing;

/// A held lock: its node is the lowest, and only its deletion or the end of the session changes that.
#[derive(Debug)]
pub(crate) struct ZkLease {
    pub(crate) own: OwnNode,
    /// The node when the lock was granted. The token is computed from its `czxid`.
    node: Arc<CreatedNode>,
    tokens: TokenBlock,
    /// That of this lock alone: its node was deleted, or it expired.
    expiry: Expiry,
    /// That of the session and of this lock.
    validity: Validity,
    revocation: Revocation,
    /// Whether the lock was held when its release began.
    was_held: Option<bool>,
    /// Dropping it cancels the watch of the node if that is not set yet.
    cancel_watch: Option<oneshot::Sender<()>>,
}

impl ZkLease {
    /// The lease of this node. The node is watched after a moment, unless it is already.
    pub(crate) fn new(
        own: OwnNode,
        node: Arc<CreatedNode>,
        watch: OwnWatch,
        minted: &Minted,
        request: &AcquireRequest,
    ) -> Self {
        let expiry = Expiry::begin(&own.session.clock, request.lease, own.session.timeout);
        let (revocation, cancel_watch) =
            held_node::watch(&own, &node, watch, expiry.cell(), expiry.expires(), &request.owner);
        let validity = own.session.validity.clone().and(expiry.cell().validity());
        let most = if minted.is_block { own.lock.local_handovers } else { 1 };
        let tokens = TokenBlock::granted(minted.token, most);
        Self {
            own,
            node,
            tokens,
            expiry,
            validity,
            revocation,
            was_held: None,
            cancel_watch: Some(cancel_watch),
        }
    }

    /// The node as it is now: after a downgrade, it is the reader's.
    pub(crate) async fn latest_node(&self) -> Arc<CreatedNode> {
        self.node.latest().await
    }

    /// The transaction that created the node which was granted the lock.
    pub(crate) fn czxid(&self) -> i64 {
        self.node.czxid
    }

    /// The path of the node when the lock was granted.
    pub(crate) fn path(&self) -> &str {
        &self.node.path
    }

    /// Records that the node was deleted.
    pub(crate) fn lost(&self) -> Error {
        self.expiry.cell().lose(LossReason::Removed);
        Error::lost(BACKEND)
    }

    async fn look(&self) -> Result<GuardState, Fault> {
        let session = &self.own.session;
        loop {
            let node = self.latest_node().await;
            match session.retry_until_definite(|| session.has_node(&node)).await {
                Ok(true) => {}
                Ok(false) => self.expiry.cell().lose(LossReason::Removed),
                Err(Fault::SessionEnded) => {}
                Err(fault) => return Err(fault),
            }
            match self.validity.state() {
                // An earlier loss of the connection was noted only after the answer.
                GuardState::Suspect => {}
                state => return Ok(state),
            }
        }
    }
}

#[async_trait]
impl Lease for ZkLease {
    fn token(&self) -> Token {
        self.tokens.token()
    }

    fn owner(&self) -> OwnerId {
        self.own.identity.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        Some(&self.revocation)
    }

    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(Fencing {
            session: Arc::clone(&self.own.session),
            node: Arc::clone(&self.node),
            cell: self.expiry.cell().clone(),
            has_unique_names: self.own.lock.has_unique_names(),
        }))
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let session = &self.own.session;
        limits(session.timeout).check_lease_ttl(ttl)?;
        let until = session.clock.now() + ttl;
        self.expiry.shorten(until);
        if let GuardState::Lost(_) = self.verify().await? {
            return Err(Error::lost(BACKEND));
        }
        if !self.expiry.extend(until) {
            return Err(Error::lost(BACKEND));
        }
        Ok(self.validity.until())
    }

    async fn verify(&self) -> Result<GuardState> {
        if let lost @ GuardState::Lost(_) = self.validity.state() {
            return Ok(lost);
        }
        let answer = self.own.session.answer_about(self.path(), self.look()).await?;
        answer.map_err(|fault| fault.on(self.path()))
    }

    fn pass_on(&mut self, _: bool) -> bool {
        let is_settled = self.node.unanswered_writes.load(Ordering::Relaxed) == 0;
        let may_stay = self.was_held.is_none() && is_settled && !self.revocation.is_requested();
        may_stay && self.tokens.advance(self.own.session.clock.now())
    }

    async fn downgrade(&mut self) -> Result<()> {
        if !self.validity.is_valid() {
            return Err(Error::lost(BACKEND));
        }
        match self.own.session.answer_about(self.path(), self.own.downgrade()).await? {
            Downgraded::To(_) if self.validity.is_valid() => Ok(()),
            Downgraded::To(_) => Err(Error::lost(BACKEND)),
            Downgraded::Deleted => Err(self.lost()),
            Downgraded::Refused(fault) => Err(fault.on(self.path())),
        }
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        if self.verify().await? != GuardState::Valid && !self.validity.is_valid() {
            return Err(Error::lost(BACKEND));
        }
        let session = &self.own.session;
        // The holder after this one has a later node.
        let after = u64::try_from(self.node.czxid).unwrap_or_default();
        let base = session.base(&self.own.lock.dir);
        let raised = async { base.raise(session, &self.latest_node().await.path, after, floor).await };
        session.answer_about(self.path(), raised).await?.map_err(|error| match error {
            NotWritten::Failed(error) => error,
            NotWritten::Lost => self.lost(),
        })
    }

    async fn release(&mut self) -> Result<Released> {
        let state = self.validity.state();
        let was_held = *self.was_held.get_or_insert(!matches!(state, GuardState::Lost(_)));
        if state == GuardState::Lost(LossReason::Removed) {
            self.own.forget();
        }
        // From here on the guard is not valid, whatever becomes of the request.
        self.expiry.cell().lose(LossReason::Released);
        self.cancel_watch = None;
        let session = Arc::clone(&self.own.session);
        match session.answer_about(&self.node.path, self.own.delete()).await? {
            Ok(Deletion::Done) if was_held => Ok(Released::Released),
            Ok(_) => Ok(Released::AlreadyLost),
            Err(fault) => Err(fault.on(self.path())),
        }
    }
}
