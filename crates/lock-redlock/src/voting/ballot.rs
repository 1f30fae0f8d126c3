//! The requests to one master: their scripts, and the parsing of the answers.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{OwnerId, Result, Token};
use redis::{ConnectionInfo, Pipeline, Value};
use redis_link::break_lock::Breaking;
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::dispatch::Dispatch;
use redis_link::error::Failure;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::proof::Secret;
use redis_link::redis;
use redis_link::script;
use redis_link::script::{Call, Script, ScriptList};
use redis_link::take_back::{Sent, TakeBack};
use redis_link::unclaimed_grant::{ReturnGrant, UnclaimedGrant};
use redis_link::wire::{LARGEST_TOKEN, USUAL_FENCE_TTL, fence_ttl, flag, millis};

use crate::error::BACKEND;

/// How long a lock that is handed over is kept until the waiter confirms, at least.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The scripts that are loaded with every connection.
pub static SCRIPTS: ScriptList = &[&ACQUIRE, &VACATE, &EXTEND_VOTE, &RAISE_VOTE, &INSPECT_VOTE];

static ACQUIRE: LazyLock<Script> = script!(vote number clock last_token acquire);
static VACATE: LazyLock<Script> = script!(vote vacate number last_token hand_over);
static EXTEND_VOTE: LazyLock<Script> = script!(vote extend_vote);
static RAISE_VOTE: LazyLock<Script> = script!(vote number last_token raise_vote);
static INSPECT_VOTE: LazyLock<Script> = script!(vote inspect_vote);
static BREAK_VOTE: LazyLock<Script> = script!(break_vote);

/// The client of one master, for its votes.
#[derive(Debug)]
pub struct Voter {
    /// The client.
    pub client: Arc<RedisClient>,
}

/// A claim of the lock on one master.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The keys of the lock.
    pub keys: &'a Keys,
    /// The owner id of the acquisition.
    pub owner: OwnerId,
    /// The time to live.
    pub ttl: Duration,
    /// The owner info, which `inspect` shows.
    pub info: &'a str,
    /// The token to use if it is larger than the last one; with `None`, the server's clock is used.
    pub proposal: Option<Proposal>,
}

/// A token that the owner proposes.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// The token.
    pub token: Token,
    /// The start of the lock, in microseconds since 1970 by the owner's clock.
    pub since: u64,
}

/// The entry of an owner in the wait queue of a master.
#[derive(Debug)]
pub struct Entry {
    text: String,
    /// The start of the wait, in microseconds since 1970.
    since: u64,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a queue entry consists of.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The owner id of the acquisition.
    pub owner: OwnerId,
    /// Proves to the process that the master has handed the lock over to this entry.
    pub secret: &'a Secret,
    /// The channel on which its process listens.
    pub inbox: &'a str,
    /// The start of the wait, in microseconds since 1970: the queue is in this order.
    pub since: u64,
    /// How long a lock that is handed over is kept until the owner confirms.
    pub grace: Duration,
    /// The time to live that the owner will ask for.
    pub ttl: Duration,
    /// The owner info, which `inspect` shows.
    pub info: &'a str,
}

/// A request by script to a master. A client that does not wait sends the same one to all masters.
#[derive(Debug)]
pub struct Request(Call);

/// A [claim](Claim::fast) without a script, the same for all masters.
#[derive(Debug)]
pub struct FastClaim {
    commands: Pipeline,
    token: Token,
}

/// The outcome of a removal from one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacated {
    /// Whether the owner held the lock; `None` if it does not, and an earlier sending of the request may be the reason.
    pub was_ours: Option<bool>,
    /// Whether there may be waiters.
    pub is_wanted: bool,
}

/// An extension of a lease on one master.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// The keys of the lock.
    pub keys: &'a Keys,
    /// The owner id of the acquisition.
    pub owner: OwnerId,
    /// The time to live from now on. A longer one stays.
    pub ttl: Duration,
    /// Whether a longer one does not.
    pub shortens: bool,
}

impl Claim<'_> {
    /// The request by script. An owner with a queue entry joins the wait queue if the lock is busy; [`Request::vacate`]
    /// removes it from there.
    #[must_use]
    pub fn request(&self, entry: Option<&Entry>) -> Request {
        let proposal = self.proposal.map(|proposal| proposal.token.get().to_string()).unwrap_or_default();
        let keys = self.keys;
        let call = ACQUIRE
            .on(&[keys.lock(), keys.tokens(), &keys.line()])
            .arg(self.value())
            .arg(millis(self.ttl))
            .arg(proposal)
            .arg(&*fence_ttl(self.ttl));
        Request(match entry {
            Some(Entry { text, since }) => call.arg(text).arg(since),
            None => call,
        })
    }

    /// The request for an apparently uncontended lock: plain commands acquire the lock, and write the proposed token if it is
    /// larger than the last one. They cost a server half as much as the [script](Self::request).
    ///
    /// Commands of other clients may run between them. The token of a lock that was lost meanwhile does no harm.
    ///
    /// `None` without a proposal, if it is too large for an exact score, or if the keys do not [share a slot](Keys::share_a_slot).
    #[must_use]
    pub fn fast(&self) -> Option<FastClaim> {
        let is_exact = |proposal: &Proposal| proposal.token.get() <= LARGEST_TOKEN;
        let token = self.proposal.filter(is_exact).filter(|_| self.keys.share_a_slot())?.token;
        let (lock, tokens) = (self.keys.lock(), self.keys.tokens());
        let mut commands = Pipeline::with_capacity(3);
        // In this order: a token that is written before the lock may be older than that of a holder in between.
        commands.cmd("SET").arg(lock).arg(self.value()).arg("NX").arg("PX").arg(millis(self.ttl));
        commands.cmd("ZADD").arg(tokens).arg("GT").arg("CH").arg(token.get()).arg("last");
        commands.cmd("PEXPIRE").arg(tokens).arg(&*fence_ttl(self.ttl));
        Some(FastClaim { commands, token })
    }

    /// The value of the key of the lock.
    fn value(&self) -> String {
        let since = self.proposal.map_or(0, |proposal| proposal.since);
        format!("{} {since} {}", self.owner, self.info)
    }
}

impl Request {
    /// Removes what an owner has, its queue entry too, and hands the lock over to the next waiter whose process listens, with
    /// this token unless the last one is not smaller.
    #[must_use]
    pub fn vacate(keys: &Keys, owner: OwnerId, proposal: Token, entry: Option<&Entry>) -> Self {
        let call = VACATE.on(&[keys.lock(), keys.tokens(), &keys.line()]);
        let call = call.arg(owner.encode(&mut [0; 32])).arg(proposal.get());
        Self(match entry {
            // A holder that waited has waiters behind it, which are to be notified before it has its answer.
            Some(Entry { text, .. }) => call.arg(text).answered_last(),
            None => call,
        })
    }
}

impl Entry {
    /// The entry, in the form that the script of a release reads.
    #[must_use]
    pub fn new(wanted: &Wanted<'_>) -> Self {
        let Wanted { owner, secret, inbox, since, grace, ttl, info } = *wanted;
        let (grace, kept, length) = (millis(grace), fence_ttl(ttl), inbox.len());
        Self { text: format!("{owner}:{} {grace} {kept} {length} {inbox} {info}", secret.reveal()), since }
    }
}

impl Voter {
    /// The voter behind this client.
    #[must_use]
    pub const fn new(client: Arc<RedisClient>) -> Self {
        Self { client }
    }

    /// The options of the client of a master.
    #[must_use]
    pub fn options(info: ConnectionInfo) -> ClientOptions {
        let mut options = ClientOptions::new(BACKEND, SCRIPTS, info);
        options.asks_identity = true;
        options
    }

    /// Claims the lock by script: one round trip.
    ///
    /// # Errors
    ///
    /// With an unknown outcome the lock may have been granted: [take it back](RedisClient::take_back).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may have been granted: [take it back](RedisClient::take_back).
    pub async fn claim(&self, claim: &Request, dispatch: &Arc<Dispatch>) -> Result<LockAnswer> {
        self.client.request_lock(&claim.0, dispatch, |_| ()).await
    }

    /// Claims the lock by plain commands: one round trip. `None` if the outcome is unclear, for whatever reason: then a
    /// [claim](Self::claim) by the same owner has to follow.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    ///
    /// # Cancel safety
    ///
    /// As [`claim`](Self::claim).
    pub async fn claim_fast(
        &self,
        claim: &FastClaim,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Option<LockAnswer>> {
        match self.client.send_each(&claim.commands, dispatch).await {
            None => Ok(None),
            Some(Ok(answers)) => {
                let is_usual = matches!(*answers, [Value::Okay, Value::Int(1), Value::Int(1)]);
                Ok(is_usual.then_some(LockAnswer::Granted(claim.token)))
            }
            // Of a refusal, the script says more.
            Some(Err(Failure::Refused(_))) => Ok(None),
            Some(Err(Failure::Dropped)) => Ok(Some(LockAnswer::Broken)),
            Some(Err(failure)) => Err(self.client.endpoint().failed(failure)),
        }
    }

    /// Removes what an owner has: one round trip.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been removed.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may or may not be removed. Call it again.
    pub async fn vacate(&self, vacate: &Request, dispatch: &Arc<Dispatch>) -> Result<Vacated> {
        let (answer, resent) = self.client.run(&vacate.0, dispatch).await?;
        let (held, is_wanted) = match &answer {
            Value::Array(parts) => (parts.first(), true),
            held => (Some(held), false),
        };
        let ours = held.and_then(flag).ok_or_else(|| self.client.endpoint().unexpected(&answer))?;
        Ok(Vacated { was_ours: Some(ours).filter(|ours| *ours || !resent), is_wanted })
    }

    /// Extends leases, all in one round trip, and reports for each whether the owner holds the lock on this master.
    ///
    /// # Errors
    ///
    /// With an unknown outcome any of them may have been extended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, any of them may have been extended.
    pub async fn extend(&self, leases: &[Extension<'_>]) -> Result<Vec<Result<bool>>> {
        let call = |lease: &Extension<'_>| {
            let call = EXTEND_VOTE.on(&[lease.keys.lock(), lease.keys.tokens()]);
            let call = call.arg(lease.owner.encode(&mut [0; 32])).arg(millis(lease.ttl));
            let shortens = if lease.shortens { "shortens" } else { "" };
            call.unless_usual([&*fence_ttl(lease.ttl), shortens], [USUAL_FENCE_TTL, ""])
        };
        let calls: Vec<_> = leases.iter().map(call).collect();
        self.client.read_all(&calls, flag).await
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
        let call = RAISE_VOTE.on(&[keys.lock(), keys.tokens()]);
        let call = call.arg(owner.to_string()).arg(floor.get()).arg(&*fence_ttl(ttl));
        self.client.read(&call, flag).await
    }

    /// Inspects a lock: one round trip.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn inspect(&self, keys: &Keys) -> Result<Inspection> {
        let call = INSPECT_VOTE.on(&[keys.lock(), keys.tokens(), &keys.line()]);
        self.client.read(&call, Inspection::read).await
    }

    /// Removes the lock whose value has this hash, whoever holds it; with an empty hash, only looks. A key that is not a string is left
    /// alone.
    ///
    /// # Errors
    ///
    /// With an unknown outcome it may have been broken. No later holder is.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been broken. No later holder is.
    pub async fn break_if(&self, keys: &Keys, seen: &str) -> Result<Breaking> {
        self.client.break_if(|seen| BREAK_VOTE.on(&[keys.lock()]).arg(seen), seen).await
    }
}

#[async_trait]
impl ReturnGrant for Voter {
    async fn return_grant(&self, grant: &UnclaimedGrant) -> Option<bool> {
        // The grant took the entry off the queue. The next token has to be larger than that of the grant, or the master mints
        // one that is.
        let vacate = Request::vacate(&grant.keys, grant.owner, grant.token?, None);
        let vacate = || async { Ok(self.vacate(&vacate, &self.client.dispatch()).await?.was_ours) };
        self.client.take_back(TakeBack::new(&grant.keys, GRACE, Sent::Answered), vacate).await
    }

    fn address(&self) -> &str {
        self.client.address()
    }
}
