//! The server as locks use it: sends their requests, and reads the answers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{BootInstant, OwnerId, Result, Token};
use redis::{ConnectionInfo, Value};
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::error::Failure;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::script::Call;
use redis_link::take_back::{Sent, TakeBack};
use redis_link::unclaimed_grant::{Granted, ReturnGrant, UnclaimedGrant};
use redis_link::wire;

use crate::error::{BACKEND, lost_before_replicated, not_replicated};
use crate::recipe::Recipe;
use crate::request::{Ask, Extension, Moment, Rotated};
use crate::set_nx_px::{self, SCRIPTS, SetNxPx};

/// How long the return of an unclaimed grant is tried: by then the grant has expired.
const GRACE: Duration = Duration::from_secs(1);

/// The server, or the nodes of a cluster, and how locks stand there.
#[derive(Debug)]
pub struct Server {
    client: Arc<RedisClient>,
    recipe: Box<dyn Recipe>,
    /// How many replicas are to have a lock before it counts as granted, and how long they are given.
    wait_replicas: Option<(u32, Duration)>,
}

impl Server {
    pub(crate) fn new(
        client: Arc<RedisClient>,
        recipe: Box<dyn Recipe>,
        wait_replicas: Option<(u32, Duration)>,
    ) -> Self {
        Self { client, recipe, wait_replicas }
    }

    /// One server with the usual recipe, for tests. `publishes_free` as with `wait=notify`.
    ///
    /// # Errors
    ///
    /// When the driver refuses the address.
    pub fn single(info: ConnectionInfo, publishes_free: bool) -> Result<Self> {
        let client = RedisClient::new(ClientOptions::new(BACKEND, SCRIPTS, info))?;
        Ok(Self::new(Arc::new(client), Box::new(SetNxPx { publishes_free }), None))
    }

    /// Now, for a request that is about to be sent.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.recipe.moment(self.clock())
    }

    /// When a lease ends that was requested at this moment.
    pub(crate) fn valid_until(&self, sent: Moment, ttl: Duration) -> BootInstant {
        self.recipe.valid_until(sent, ttl, self.clock())
    }

    /// Asks for a lock, confirms a grant, or queues up, whatever fits: one round trip. The lease counts from `sent`.
    ///
    /// # Errors
    ///
    /// With an unknown outcome the lock may have been granted: [take it back](RedisClient::take_back).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may be granted: [take it back](RedisClient::take_back).
    pub async fn ask(&self, sent: Moment, ask: &Ask<'_>) -> Result<LockAnswer> {
        // Never sent twice: a request of which two copies may be on their way cannot be taken back for sure.
        match self.send(&self.recipe.ask(ask, sent)).await {
            Ok(answer) => {
                self.recipe.answered(sent, &answer);
                LockAnswer::read(&answer).ok_or_else(|| self.endpoint().unexpected(&answer))
            }
            Err(Failure::Dropped) => Ok(LockAnswer::Broken),
            Err(failure) => Err(self.endpoint().failed(failure)),
        }
    }

    /// Hands a lock over to the next owner of the same process, past the wait queue: one round trip.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been handed over: [take back](RedisClient::take_back) that of the next owner,
    /// and release the first.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, as with an unknown outcome.
    pub async fn rotate(&self, owner: OwnerId, next: &Ask<'_>) -> Result<Rotated> {
        let answer = self.send(&set_nx_px::rotate(owner, next)).await;
        let answer = answer.map_err(|failure| self.endpoint().failed(failure))?;
        match &answer {
            Value::Int(0) => Some(Rotated::NotOurs),
            token => wire::token(token).map(Rotated::HandedOver),
        }
        .ok_or_else(|| self.endpoint().unexpected(&answer))
    }

    /// Whether a lock counts as granted only when replicas have it.
    pub(crate) const fn waits_for_replicas(&self) -> bool {
        self.wait_replicas.is_some()
    }

    /// Waits until the replicas that the configuration asks for have a granted lock: one round trip to the server and one
    /// from it to the replicas.
    ///
    /// A failover may lose the lock all the same: another replica than one of those that have it may be promoted.
    ///
    /// # Errors
    ///
    /// `Unavailable` when fewer have it in time, or the master does not have it any more. The
    /// lock may still exist: [take it back](RedisClient::take_back).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn await_replicas(&self, lease: &Extension<'_>) -> Result<()> {
        match self.wait_replicas {
            // Boxed, as what is rare here would make each acquisition large.
            Some((wanted, patience)) => Box::pin(self.replicated(lease, wanted, patience)).await,
            None => Ok(()),
        }
    }

    async fn replicated(&self, lease: &Extension<'_>, wanted: u32, patience: Duration) -> Result<()> {
        let call = self.recipe.extend(lease, self.moment());
        let (answer, have) = self.replicate(lease.keys, &call, wanted, patience).await?;
        match wire::flag(&answer) {
            Some(true) if have >= wanted => Ok(()),
            Some(true) => Err(not_replicated(self.endpoint(), have, wanted, patience)),
            Some(false) => Err(lost_before_replicated(self.endpoint())),
            None => Err(self.endpoint().unexpected(&answer)),
        }
    }

    /// Has locks end later, all in one round trip, and reports for each whether it is the owner's. The leases count from
    /// `sent`.
    ///
    /// # Errors
    ///
    /// With an unknown outcome any of them may have been extended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, any of them may have been extended.
    pub async fn extend(&self, sent: Moment, leases: &[Extension<'_>]) -> Result<Vec<Result<bool>>> {
        let calls: Vec<_> = leases.iter().map(|lease| self.recipe.extend(lease, sent)).collect();
        let read = |answer: Value| wire::flag(&answer).ok_or_else(|| self.endpoint().unexpected(&answer));
        Ok(self.run_all(&calls).await?.into_iter().map(|answer| answer.and_then(read)).collect())
    }

    /// Releases a lock, a share of it or the `entry` of the wait queue, and reports whether the lock was the owner's: one
    /// round trip. `None` when the lock is not the owner's any more and an earlier sending of this request may be why.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been released.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not be released; call it again.
    pub async fn release(&self, keys: &Keys, owner: OwnerId, entry: Option<&str>) -> Result<Option<bool>> {
        self.removed(&self.recipe.release(keys, owner, entry)).await
    }

    /// As [`release`](Self::release), for a contended lock: the server notifies the next waiter before
    /// it writes the answer, so that on a busy host the waiter gets its turn on the processor before the caller.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn release_to_next(&self, keys: &Keys, owner: OwnerId) -> Result<Option<bool>> {
        self.removed(&self.recipe.release(keys, owner, None).answered_last()).await
    }

    /// As [`release`](Self::release), of a lock that is then left free for this long: waiters in its queue hold back, and
    /// other clients can acquire it.
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
        self.removed(&set_nx_px::leave_free(keys, owner, moment)).await
    }

    async fn removed(&self, call: &Call) -> Result<Option<bool>> {
        let (answer, resent) = self.run(call).await?;
        let ours = wire::flag(&answer).ok_or_else(|| self.endpoint().unexpected(&answer))?;
        Ok(Some(ours).filter(|ours| *ours || !resent))
    }

    /// Raises the last token to `floor` while the lock is the owner's, and reports whether it is.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been raised.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been raised.
    pub async fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Result<bool> {
        self.read(&self.recipe.raise(keys, owner, floor, ttl), wire::flag).await
    }

    /// Inspects a lock: one round trip. With an owner, only whether that holds the lock, and the last grant.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or refuses.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn inspect(&self, keys: &Keys, owner: Option<OwnerId>) -> Result<Inspection> {
        let owner = owner.map_or_else(String::new, |owner| owner.to_string());
        self.read(&self.recipe.inspect(keys, &owner), Inspection::read).await
    }

    /// Removes a lock, whoever holds it, and gives the type of the key that was there. A key
    /// that is no string is left alone.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been broken.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been broken.
    pub async fn break_lock(&self, keys: &Keys) -> Result<String> {
        // Never sent twice: the second could break the lock of the next holder.
        let answer = self.send(&self.recipe.break_lock(keys)).await;
        let answer = answer.map_err(|failure| self.endpoint().failed(failure))?;
        redis::from_redis_value_ref(&answer).map_err(|_| self.endpoint().unexpected(&answer))
    }
}

impl Deref for Server {
    type Target = RedisClient;

    fn deref(&self) -> &RedisClient {
        &self.client
    }
}

#[async_trait]
impl ReturnGrant for Server {
    async fn return_grant(&self, grant: &UnclaimedGrant) -> Option<bool> {
        if grant.what != Granted::Lock {
            return None;
        }
        let terms = TakeBack::new(&grant.keys, GRACE, Sent::Answered);
        self.take_back(terms, || self.release(&grant.keys, grant.owner, None)).await
    }

    fn address(&self) -> &str {
        self.client.address()
    }
}
