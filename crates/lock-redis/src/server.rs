//! Sends the requests for locks to the server, and parses the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::engine::{Answered, Changed, Extension};
use lock_core::{ErrorKind, Outcome, OwnerId, Result, Token, TokenBlock};
use redis::{ConnectionInfo, Value};
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::dispatch::Dispatch;
use redis_link::error::Failure;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::script::{Call, Script};
use redis_link::take_back::{Sent, TakeBack};
use redis_link::unclaimed_grant::{ReturnGrant, UnclaimedGrant};
use redis_link::wire::{self, TokenTtl};

use crate::error::{BACKEND, lost_before_replicated, not_replicated, perhaps_applied, set_back, stepped};
use crate::recipes::recipe::Recipe;
use crate::recipes::request::{Ask, Claimed, Moment, ReleaseKind};
use crate::recipes::set_nx_px::{self, RARE_SCRIPTS, SCRIPTS, SetNxPx};
use crate::recipes::setnx_timestamp;

/// How long to try to return an unclaimed grant: by then the grant has expired.
const GRACE: Duration = Duration::from_secs(1);

/// The server, or the nodes of a cluster, with the recipe of its locks.
#[derive(Debug)]
pub struct Server {
    /// The client.
    pub client: Arc<RedisClient>,
    recipe: Box<dyn Recipe>,
    /// How long last tokens are kept.
    pub(crate) token_ttl: TokenTtl,
    /// Whether the server has refused an option of PEXPIRE.
    lacks_options: AtomicBool,
}

impl Server {
    pub(crate) fn new(client: Arc<RedisClient>, recipe: Box<dyn Recipe>, token_ttl: TokenTtl) -> Self {
        Self { client, recipe, token_ttl, lacks_options: AtomicBool::new(false) }
    }

    /// One server with the default recipe, for tests. `publishes_free` as with `wait=notify`.
    ///
    /// # Errors
    ///
    /// When the driver rejects the address.
    pub fn single(info: ConnectionInfo, publishes_free: bool) -> Result<Self> {
        let client = RedisClient::new(ClientOptions::new(BACKEND, SCRIPTS, info))?;
        let token_ttl = TokenTtl::USUAL;
        let recipe = Box::new(SetNxPx { publishes_free, token_ttl });
        Ok(Self::new(Arc::new(client), recipe, token_ttl))
    }

    /// The script of these parts, for tests.
    pub fn script(parts: &str) -> Option<&'static Script> {
        let mut scripts = [SCRIPTS, RARE_SCRIPTS, setnx_timestamp::SCRIPTS].into_iter().flatten();
        scripts.find(|script| script.parts() == parts).map(|script| &***script)
    }

    /// The requests of the recipe.
    pub(crate) fn recipe(&self) -> &dyn Recipe {
        &*self.recipe
    }

    /// The present, for a request that is about to be sent.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.recipe.moment(self.client.clock())
    }

    /// Asks for a lock, and queues up if it is busy; or confirms a grant. One round trip. The lease counts from `sent`.
    ///
    /// # Errors
    ///
    /// With an unknown outcome the lock may have been granted: [take it back](RedisClient::take_back).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may have been granted: [take it back](RedisClient::take_back).
    pub async fn ask(&self, sent: Moment, ask: &Ask<'_>, dispatch: &Arc<Dispatch>) -> Result<LockAnswer> {
        let call = self.recipe.ask(ask, sent);
        let answered = |answer: &Value| self.recipe.answered(sent, answer);
        match self.client.request_lock(&call, dispatch, answered).await {
            Ok(LockAnswer::Granted(_)) if self.was_stepped(sent) => Err(stepped(self.client.endpoint())),
            answer => answer,
        }
    }

    /// Claims a lock that is probably free, by plain commands: one round trip. The lease counts from before. With `keeps`, a
    /// last token without a ttl gets one; else there has to be one.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// As [`ask`](Self::ask).
    pub async fn claim(&self, ask: &Ask<'_>, keeps: bool, dispatch: &Arc<Dispatch>) -> Result<Claimed> {
        let mut proposed = 0;
        let commands = |clock| {
            proposed = TokenBlock::start(clock);
            self.recipe.claim(ask, proposed, keeps)
        };
        match self.client.send_by_clock(commands, dispatch).await {
            None => Ok(Claimed::NotGranted),
            Some(Ok(answers)) => Ok(match *answers {
                // The queue counts once, and the last token twice.
                [Value::Okay, Value::Int(1 | 3), ..] => Claimed::OutOfTurn,
                [Value::Okay, _, _, ref kept @ ..] if self.refuses_to_keep(kept) => Claimed::Untokened,
                [Value::Okay, Value::Int(there), Value::Int(1), ..] if keeps || there == 2 => {
                    Claimed::Granted(Token::new(proposed))
                }
                [Value::Okay, ..] => Claimed::Untokened,
                // Of a refusal, the script says more.
                _ => Claimed::NotGranted,
            }),
            Some(Err(Failure::Refused(_))) => Ok(Claimed::Untokened),
            Some(Err(Failure::Dropped)) => Ok(Claimed::Broken),
            Some(Err(failure)) => Err(self.client.endpoint().failed(failure)),
        }
    }

    /// Whether a claim can keep a last token that may expire soon. Redis 6.2 has no options of PEXPIRE: there, a script keeps it.
    pub(crate) fn claims_keep(&self) -> bool {
        !self.lacks_options.load(Ordering::Relaxed)
    }

    fn refuses_to_keep(&self, answers: &[Value]) -> bool {
        let refuses = answers.iter().any(|answer| matches!(answer, Value::ServerError(_)));
        self.lacks_options.fetch_or(refuses, Ordering::Relaxed);
        refuses
    }

    /// Hands a lock over to the next owner of the same process, past the wait queue: one round trip.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been handed over: [take back](RedisClient::take_back) the lock of the next
    /// owner, and release that of the first.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the outcome is unknown.
    pub async fn rotate(
        &self,
        owner: OwnerId,
        next: &Ask<'_>,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Changed<Token>> {
        let read = |answer: &Value| match answer {
            Value::Int(0) => Some(Changed::NotHeld),
            token => wire::token(token).map(Changed::Done),
        };
        self.client.read_once(&set_nx_px::rotate(owner, next, self.token_ttl), dispatch, read).await
    }

    /// Waits until so many replicas have a granted lock: one round trip to the server, and one from it to
    /// the replicas.
    ///
    /// A failover may still lose the lock, if it promotes another replica.
    ///
    /// # Errors
    ///
    /// `Unavailable` if fewer have it in time, or the master has lost it. The lock may still exist: [take it
    /// back](RedisClient::take_back).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn await_replicas(
        &self,
        lease: &Extension<'_, Arc<Keys>>,
        wanted: u32,
        timeout: Duration,
    ) -> Result<()> {
        let call = self.recipe.extend(lease, self.moment());
        let (answer, have) = self.client.replicate(lease.place, &call, wanted, timeout).await?;
        match extended(&answer) {
            Some(Extended::Ours(false)) => Err(lost_before_replicated(self.client.endpoint())),
            Some(Extended::Ours(true)) if have >= wanted => Ok(()),
            Some(_) => Err(not_replicated(self.client.endpoint(), have, wanted, timeout)),
            None => Err(self.client.endpoint().unexpected(&answer)),
        }
    }

    /// Extends leases, all of one node in one round trip, and reports for each whether the owner still holds its lock, or why that is not
    /// known. The leases count from `sent`. An error with an unknown outcome means that the lease may have been extended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, any of them may have been extended.
    pub async fn extend(
        &self,
        sent: Moment,
        leases: &[Extension<'_, Arc<Keys>>],
        answered: impl Answered<Result<bool>>,
    ) {
        let calls: Vec<_> = leases.iter().map(|lease| self.recipe.extend(lease, sent)).collect();
        let each = |at, answer| answered(at, self.is_ours(sent, answer));
        if let Err(error) = self.client.read_each(&calls, extended, each).await {
            (0..leases.len()).for_each(|at| answered(at, Err(error.clone())));
        }
    }

    /// Whether the owner holds its lock, by the answer to an extension that was sent then.
    fn is_ours(&self, sent: Moment, answer: Result<Extended>) -> Result<bool> {
        match answer.map_err(perhaps_applied)? {
            Extended::Ours(false) => Ok(false),
            Extended::IsLonger { sent } if self.recipe.was_set_back_since(sent) => {
                Err(set_back(self.client.endpoint()))
            }
            _ if self.was_stepped(sent) => Err(stepped(self.client.endpoint())),
            Extended::Ours(true) | Extended::IsLonger { .. } => Ok(true),
        }
    }

    fn was_stepped(&self, sent: Moment) -> bool {
        self.recipe.was_stepped(sent, self.client.clock().now())
    }

    /// Releases a lock, a share of it, or the entry of the wait queue. Reports whether the owner held the lock; `None` if it
    /// does not, and an earlier sending of this request may be the reason.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been released.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not be released. Call it again.
    pub async fn release(
        &self,
        keys: &Keys,
        owner: OwnerId,
        how: impl Into<ReleaseKind<'_>>,
    ) -> Result<Option<bool>> {
        self.release_by(keys, owner, how.into(), &self.client.dispatch()).await
    }

    /// The same, with this dispatch.
    pub(crate) async fn release_by(
        &self,
        keys: &Keys,
        owner: OwnerId,
        how: ReleaseKind<'_>,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Option<bool>> {
        let removed = self.removed(&self.recipe.release(keys, owner, how), dispatch).await?;
        if how != ReleaseKind::Unwanted || removed == Some(true) {
            return Ok(removed);
        }
        // Boxed, to keep the future of a release small.
        let wanted = self.recipe.release(keys, owner, ReleaseKind::WANTED);
        let ours = Box::pin(async { self.removed(&wanted, dispatch).await });
        let ours = ours.await.map_err(|error| match removed {
            // The first sending of the first request may have removed it.
            None if error.outcome() == Outcome::NotApplied => error.with_outcome(Outcome::Unknown),
            _ => error,
        });
        Ok(ours?.filter(|ours| *ours || removed.is_some()))
    }

    async fn removed(&self, call: &Call, dispatch: &Arc<Dispatch>) -> Result<Option<bool>> {
        let (answer, resent) = self.client.run(call, dispatch).await.map_err(perhaps_applied)?;
        let ours = wire::flag(&answer).ok_or_else(|| self.client.endpoint().unexpected(&answer))?;
        Ok(Some(ours).filter(|ours| *ours || !resent))
    }

    /// Raises the last token to `floor` if the owner holds the lock, and reports whether it does.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been raised.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been raised.
    pub async fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Result<bool> {
        let raised = self.client.read(&self.recipe.raise(keys, owner, floor, ttl), wire::flag).await;
        // A key of another type is refused before it is raised; a right may be missing after that.
        raised.map_err(|error| if error.kind() == ErrorKind::Denied { perhaps_applied(error) } else { error })
    }

    /// Inspects a lock: one round trip. With an owner, only whether that owner holds the lock, and the last grant.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn inspect(&self, keys: &Keys, owner: Option<OwnerId>) -> Result<Inspection> {
        let owner = owner.map_or_else(String::new, |owner| owner.to_string());
        self.client.read(&self.recipe.inspect(keys, &owner), Inspection::read).await
    }

    /// Removes the lock that this request sees, whoever holds it, and returns the type of its key. A key that is not a string is left alone.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been broken. No later holder is.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been broken. No later holder is.
    pub async fn break_lock(&self, keys: &Keys) -> Result<String> {
        let broken = self.client.break_seen(|seen| self.recipe.break_lock(keys, seen)).await;
        broken.map_err(perhaps_applied)
    }
}

/// The answer to an extension.
enum Extended {
    /// Whether the owner holds the lock.
    Ours(bool),
    /// The owner holds it, and the lease is longer by a request that was sent at this time, in microseconds since the boot.
    IsLonger { sent: u64 },
}

fn extended(answer: &Value) -> Option<Extended> {
    match *answer {
        Value::Int(sent @ ..0) => Some(Extended::IsLonger { sent: sent.unsigned_abs() }),
        _ => wire::flag(answer).map(Extended::Ours),
    }
}

#[async_trait]
impl ReturnGrant for Server {
    async fn return_grant(&self, grant: &UnclaimedGrant) -> Option<bool> {
        let terms = TakeBack::new(&grant.keys, GRACE, Sent::Answered);
        self.client.take_back(terms, || self.release(&grant.keys, grant.owner, None)).await
    }

    fn address(&self) -> &str {
        self.client.address()
    }
}
