//! What the database answers to one request.

use std::any::Any;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lock_core::engine::{Answer, Answered, Ask, Blocker, Changed, Extension, Hold, LeaseStore, Release};
use lock_core::{DoctorReport, Error, ErrorKind, LockName, LockState, Outcome, OwnerId, Result, Token};
use sha2::{Digest, Sha256};

use crate::inbox::{Inbox, Listening, Mailbox};
use crate::operate::fence::Fencing;
use crate::operate::sweep::Sweeper;
use crate::requests::order::InOrder;
use crate::requests::request::{Asked, Released};
use crate::requests::value::ToInbox;
use crate::server::Server;
use crate::stored_name::stored;

/// The locks of one schema.
#[derive(Debug)]
pub struct PostgresStore {
    pub(crate) server: Arc<Server>,
    pub(crate) inbox: Inbox,
    pub(crate) sweeper: Sweeper,
    /// Whether waiters are to be notified.
    pub(crate) listens: bool,
}

impl LeaseStore for PostgresStore {
    /// The name, as the database stores it.
    type Place = Arc<str>;
    type Order = InOrder;
    type Mailbox = Mailbox;

    fn place(&self, name: &LockName) -> Result<Arc<str>> {
        Ok(stored(name.as_str()).into())
    }

    async fn order(&self, _: &Arc<str>) -> Result<InOrder> {
        self.server.order().await
    }

    async fn ask(&self, on: &InOrder, name: &Arc<str>, ask: &Ask<'_, Mailbox>) -> Result<Answer> {
        self.sweeper.sweep(&self.server);
        let mailbox = ask.queue.as_ref().and_then(|queue| queue.mailbox);
        let listening = self.inbox.listening();
        let inbox = mailbox.and_then(|mailbox| {
            let secret = mailbox.tell(listening);
            let Listening::By(listener) = listening else { return None };
            Some(ToInbox { id: self.inbox.id(), listener, key: mailbox.key, secret })
        });
        self.server.ask(on, Asked::new(name, ask, inbox, self.server.sync())).await
    }

    async fn release(
        &self,
        on: &InOrder,
        name: &Arc<str>,
        owner: OwnerId,
        _: Release<'_, Mailbox>,
    ) -> Result<Changed> {
        self.server.release(on, Released::new(name, owner, self.server.sync())).await
    }

    /// Downgrades come last: they let others in, and are rare, so that each has a call of its own.
    async fn extend(&self, leases: &[Extension<'_, Arc<str>>], answered: impl Answered<Result<Changed>>) {
        let is_downgrade = |at: &usize| leases[*at].hold == Hold::Downgrading;
        let (downgrades, others): (Vec<_>, Vec<_>) = (0..leases.len()).partition(is_downgrade);
        if !others.is_empty() {
            let common: Vec<_> = others.iter().map(|at| leases[*at]).collect();
            match self.server.extend(&common).await {
                Ok(answers) => others.iter().zip(answers).for_each(|(at, answer)| answered(*at, Ok(answer))),
                Err(error) => others.iter().for_each(|at| answered(*at, Err(error.clone()))),
            }
        }
        for at in downgrades {
            let lease = &leases[at];
            answered(at, self.server.downgrade(lease.place, lease.owner, lease.ttl).await);
        }
    }

    async fn holds(&self, name: &Arc<str>, owner: OwnerId) -> Result<bool> {
        self.server.holds(name, owner).await
    }

    async fn raise(&self, name: &Arc<str>, owner: OwnerId, floor: Token) -> Result<Changed> {
        self.server.raise(name, owner, floor).await
    }

    async fn hand_over(
        &self,
        on: &InOrder,
        name: &Arc<str>,
        from: OwnerId,
        to: &Ask<'_, Mailbox>,
    ) -> Result<Changed<Token>> {
        self.server.hand_over(on, name, from, to).await
    }

    async fn inspect(&self, name: &Arc<str>) -> Result<LockState> {
        self.state(name).await
    }

    async fn break_lock(&self, name: &Arc<str>, only: Option<Token>) -> Result<Changed> {
        match only {
            Some(token) => self.server.break_one(name, token).await,
            // Up to the last grant that there is now: a request that is executed late breaks no other.
            None => match self.state(name).await?.last_token() {
                Some(last) => self.server.break_up_to(name, last).await,
                None => Ok(Changed::NotHeld),
            },
        }
    }

    fn close(&self) {
        // First, as waiters that are no longer notified would queue up again.
        self.server.close();
        self.inbox.close();
    }

    fn mailbox(&self, _: &Arc<str>) -> Option<Mailbox> {
        self.listens.then(|| self.inbox.register())
    }

    async fn next_change(&self, name: &Arc<str>) -> Result<Option<BoxFuture<'static, ()>>> {
        let changes = self.inbox.observe(name).await?;
        Ok(changes.map(|mut changes| async move { changes.next().await }.boxed()))
    }

    async fn list(&self, prefix: &str) -> Result<Option<Vec<LockName>>> {
        self.names(prefix).await.map(Some)
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.examined().await
    }

    async fn blocker(&self, name: &Arc<str>) -> Result<Option<Blocker>> {
        self.server.blocker(name).await
    }

    fn blocked(&self, by: &str) -> Error {
        let what = format!("a transaction has the row of the lock: {by}");
        self.server
            .endpoint
            .error(ErrorKind::Unavailable, what)
            .with_code("locked")
            .with_hint("end that transaction: it has called fence() and is still open; then try again")
            .with_outcome(Outcome::NotApplied)
    }

    /// Its digest, as the server makes it: who knows the id itself can release the lock.
    fn shown(&self, owner: OwnerId) -> OwnerId {
        let bytes = u128::from_str_radix(&owner.to_string(), 16).unwrap_or_default().to_be_bytes();
        let digest: String =
            Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        OwnerId::decode(&digest).unwrap_or(owner)
    }

    fn specific(&self, name: &Arc<str>) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(Fencing { server: Arc::clone(&self.server), name: Arc::clone(name) }))
    }
}
