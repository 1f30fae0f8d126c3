//! The claims of one acquisition on all masters, and what each may have left.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{BootInstant, Clock, Error, Outcome, OwnerId, Result, Token, TokenBlock};
use redis_link::dispatch::Dispatch;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::take_back::Sent;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::leases::wait_queue::QueueEntry;
use crate::servers::fan_out::FanOut;
use crate::servers::masters::Masters;
use crate::voting::ballot::{Claim, Entry, FastClaim, Proposal, Request};
use crate::voting::contention::Contention;
use crate::voting::live_votes::LiveVotes;
use crate::voting::quorum::OfEach;

/// The claims of one acquisition: its owner id, and the state of its requests to each master.
#[derive(Debug)]
pub(crate) struct Claims {
    pub(crate) masters: Masters,
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Duration,
    /// The start of the acquisition, in microseconds since 1970 and as an instant.
    began: (u64, Instant),
    /// The start of the lock that `inspect` shows.
    since: AtomicU64,
    /// To what its token was raised, or may have been.
    floor: AtomicU64,
    info: Arc<str>,
    /// Its queue entry, if it waits.
    pub(crate) entry: Option<Arc<QueueEntry>>,
    pub(crate) contention: Arc<Contention>,
    /// A release must not overtake a claim.
    states: Mutex<ClaimStates>,
    /// Notified when a claim ends. Unlike a watch channel it wakes tasks in order, so that a simulation can be replayed.
    ended: Notify,
    /// The connections of the last claims.
    sent_on: Mutex<OfEach<Option<u64>>>,
    /// Whether the last claims were written.
    dispatches: Mutex<OfEach<Arc<Dispatch>>>,
    pub(crate) votes: LiveVotes,
}

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The acquisition.
    Acquire,
    /// A lock that is held already.
    Heal,
}

/// The states of the claims, one bit for each master.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClaimStates {
    /// The last claim has ended.
    ended: u64,
    /// The last claim was refused, or never sent: it left nothing.
    refused: u64,
    /// A claim got no answer, and may arrive at any time.
    in_doubt: u64,
    /// There was more than one claim: removing one says nothing about the others.
    several: u64,
    /// The removal has begun: no further claims.
    pub(crate) removed: bool,
}

impl Claims {
    pub(crate) fn new(
        masters: &Masters,
        keys: &Arc<Keys>,
        ttl: Duration,
        info: &Arc<str>,
        since: u64,
        entry: Option<&Arc<QueueEntry>>,
        contention: &Arc<Contention>,
    ) -> Arc<Self> {
        let proposal = TokenBlock::start(since);
        Arc::new(Self {
            masters: Arc::clone(masters),
            keys: Arc::clone(keys),
            owner: entry.map_or_else(OwnerId::random, |entry| entry.owner()),
            ttl,
            began: (proposal, Instant::now()),
            since: AtomicU64::new(proposal),
            floor: AtomicU64::default(),
            info: Arc::clone(info),
            entry: entry.map(Arc::clone),
            contention: Arc::clone(contention),
            states: Mutex::default(),
            ended: Notify::new(),
            votes: LiveVotes::new(masters.len()),
            sent_on: Mutex::new(masters.iter().map(|master| master.client.generation(keys)).collect()),
            dispatches: Mutex::new(masters.iter().map(|master| master.client.dispatch()).collect()),
        })
    }

    /// Claims the lock on every master except the `skipped` ones; with `fast`, by the fast path.
    pub(crate) fn claim_all(
        self: &Arc<Self>,
        skipped: impl IntoIterator<Item = Option<Error>>,
        fast: bool,
    ) -> FanOut<Result<LockAnswer>> {
        let (ttl, token) = (self.ttl, Token::new(self.began.0));
        let fast = fast.then(|| self.claimed(ttl, token).fast()).flatten().map(Arc::new);
        let skipped = skipped.into_iter().enumerate();
        let claims = skipped.map(|(number, skipped)| self.claim(number, ttl, token, fast.clone(), skipped));
        FanOut::new(claims).dispatched(self.dispatches().clone())
    }

    /// Claims the lock once more, by the same owner: on every master except the `skipped` ones. All earlier claims have ended.
    pub(crate) fn claim_again(
        self: &Arc<Self>,
        skipped: impl IntoIterator<Item = Option<Error>>,
    ) -> FanOut<Result<LockAnswer>> {
        let (ttl, token) = (self.ttl, self.proposal());
        self.holds_since(token);
        let claims = skipped.into_iter().enumerate().map(|(number, skipped)| {
            let begins = skipped.is_none() && self.begin_again(number);
            let claim = begins.then(|| self.claim(number, ttl, token, None, None));
            async move {
                match claim {
                    Some(claim) => claim.await,
                    None => skipped.map_or(Ok(LockAnswer::Broken), Err),
                }
            }
        });
        FanOut::new(claims).dispatched(self.dispatches().clone())
    }

    /// Withdraws what was not written yet. It leaves nothing.
    pub(crate) fn withdraw(&self) {
        self.dispatches().iter().for_each(|dispatch| dispatch.withdraw());
    }

    /// When the first of the last claims was written, of those that began to wait for their turn at this time.
    pub(crate) fn written_since(&self, begun: BootInstant) -> BootInstant {
        let dispatches = self.dispatches();
        let written = dispatches.iter().filter_map(|dispatch| Some(dispatch.written()?.on_clock));
        written.min().map_or(begun, |first| first.max(begun))
    }

    fn dispatches(&self) -> MutexGuard<'_, OfEach<Arc<Dispatch>>> {
        self.dispatches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token to propose now: the block of the clock, in microseconds since 1970.
    pub(crate) fn proposal(&self) -> Token {
        let (since, began) = self.began;
        let now = since.saturating_add(u64::try_from(began.elapsed().as_micros()).unwrap_or(0));
        Token::new(TokenBlock::start(now))
    }

    /// Sets the start of the lock, as its proposed token, in microseconds since 1970.
    pub(crate) fn holds_since(&self, proposal: Token) {
        self.since.store(proposal.get(), Ordering::Relaxed);
    }

    /// Claims the lock on one master, with this token as the proposal, unless the master is `skipped` for a reason. A `fast`
    /// claim goes first, if there is one; if its outcome is unclear, the script follows.
    pub(crate) fn claim(
        self: &Arc<Self>,
        number: usize,
        ttl: Duration,
        token: Token,
        fast: Option<Arc<FastClaim>>,
        skipped: Option<Error>,
    ) -> impl Future<Output = Result<LockAnswer>> + Send + 'static + use<> {
        self.claim_for(Purpose::Acquire, number, ttl, token, fast, skipped)
    }

    fn claim_for(
        self: &Arc<Self>,
        purpose: Purpose,
        number: usize,
        ttl: Duration,
        token: Token,
        fast: Option<Arc<FastClaim>>,
        skipped: Option<Error>,
    ) -> impl Future<Output = Result<LockAnswer>> + Send + 'static + use<> {
        // Created here, so that the end is noted even if the future is never polled.
        let dispatch = self.masters[number].client.dispatch();
        self.dispatches()[number] = Arc::clone(&dispatch);
        let ending = Ending { claims: Arc::clone(self), number, dispatch, end: End::Refused };
        async move {
            let mut ending = ending;
            if let Some(error) = skipped {
                return Err(error);
            }
            ending.end = End::Unknown;
            let sent = ending.claims.clock(number).now();
            let fast_answer = match &fast {
                Some(claim) => ending.claims.masters[number].claim_fast(claim, &ending.dispatch).await,
                None => Ok(None),
            };
            let was_sent = matches!(fast_answer, Ok(None)) && fast.is_some();
            if was_sent && ending.claims.states().removed {
                // The attempt is being rolled back, and so is this claim.
                ending.end = End::Granted;
                return Ok(LockAnswer::Broken);
            }
            let answer = match fast_answer {
                // Boxed, to keep the future of a claim small.
                Ok(None) => Box::pin(ending.claims.ask(number, ttl, token, &ending.dispatch)).await,
                Ok(Some(fast_answer)) => Ok(fast_answer),
                Err(error) => Err(error),
            };
            if purpose == Purpose::Acquire && matches!(answer, Ok(LockAnswer::Granted(_))) {
                ending.claims.votes.note(number, sent, ttl);
            }
            ending.end = match &answer {
                Ok(LockAnswer::Granted(_)) => End::Granted,
                Ok(LockAnswer::Busy { .. }) => End::Refused,
                Ok(LockAnswer::Broken) => End::Unknown,
                Err(error) => match error.outcome() {
                    // The fast claim before it may have left something.
                    Outcome::NotApplied if was_sent => End::Granted,
                    Outcome::NotApplied => End::Refused,
                    // Granted by a master that does not vote.
                    Outcome::Applied => End::Granted,
                    _ => End::Unknown,
                },
            };
            answer
        }
    }

    async fn ask(
        &self,
        number: usize,
        ttl: Duration,
        token: Token,
        dispatch: &Arc<Dispatch>,
    ) -> Result<LockAnswer> {
        let entry = self.entry.as_ref().and_then(|entry| entry.sent_to(number));
        let request = self.request(ttl, token, entry.as_deref());
        self.masters[number].claim(&request, dispatch).await
    }

    fn request(&self, ttl: Duration, token: Token, entry: Option<&Entry>) -> Request {
        self.claimed(ttl, token).request(entry)
    }

    fn claimed(&self, ttl: Duration, token: Token) -> Claim<'_> {
        let proposal = Some(Proposal { token, since: self.since.load(Ordering::Relaxed) });
        Claim { keys: &self.keys, owner: self.owner, ttl, info: &self.info, proposal }
    }

    /// Claims a held lock on these masters too, in the background: they have lost it, or never granted it. A master whose
    /// key has another owner refuses. They get the token as well, or that to which it was raised.
    ///
    /// No vote is noted: a master that has not executed a shorter extension yet would end it earlier. The next extension notes one.
    pub(crate) fn heal(
        self: &Arc<Self>,
        numbers: impl IntoIterator<Item = usize>,
        ttl: Duration,
        token: Token,
    ) {
        let token = token.max(Token::new(self.floor.load(Ordering::Relaxed)));
        let begin = numbers.into_iter().filter(|number| self.begin_again(*number));
        let healed: Vec<_> =
            begin.map(|number| self.claim_for(Purpose::Heal, number, ttl, token, None, None)).collect();
        if !healed.is_empty() {
            drop(FanOut::new(healed));
        }
    }

    /// Raises the last token of one master to `floor`, and reports whether the lock is the owner's there.
    pub(crate) async fn raise(self: Arc<Self>, number: usize, floor: Token, ttl: Duration) -> Result<bool> {
        self.floor.fetch_max(floor.get(), Ordering::Relaxed);
        let (master, sent) = (&self.masters[number], Instant::now());
        master.vote(sent, master.voter.raise(&self.keys, self.owner, floor, ttl).await)
    }

    /// Notes that another claim is about to be sent; `false` if one is in flight, or the removal has begun.
    fn begin_again(&self, number: usize) -> bool {
        let bit = 1 << number;
        let mut states = self.states();
        if states.removed || states.ended & bit == 0 {
            return false;
        }
        states.ended &= !bit;
        states.several |= bit;
        if states.in_doubt & bit == 0 {
            let connection = self.masters[number].client.generation(&self.keys);
            self.sent_on.lock().unwrap_or_else(PoisonError::into_inner)[number] = connection;
        }
        true
    }

    /// Whether the vote of a master counts now.
    pub(crate) fn has_vote(&self, number: usize) -> bool {
        self.votes.has(number, self.clock(number).now())
    }

    fn clock(&self, number: usize) -> &Clock {
        self.masters[number].client.clock()
    }

    /// When the first request may have been sent, at the earliest.
    pub(crate) const fn began(&self) -> Instant {
        self.began.1
    }

    /// Whether every master has refused its claims, or was not sent any.
    pub(crate) fn are_refused(&self) -> bool {
        let (states, all) = (*self.states(), (1 << self.masters.len()) - 1);
        states.ended & states.refused & !states.in_doubt & all == all
    }

    /// Whether a master has refused the last claim, and the removal has not begun.
    pub(crate) fn may_ask_again(&self, number: usize) -> bool {
        let states = *self.states();
        !states.removed && states.ended & states.refused & 1 << number != 0
    }

    /// Waits until the last claim at a master has ended; `None` if none left anything.
    pub(crate) async fn ended(&self, number: usize) -> Option<Sent> {
        let bit = 1 << number;
        let states = loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let states = *self.states();
            if states.ended & bit != 0 {
                break states;
            }
            ended.await;
        };
        if states.in_doubt & bit != 0 {
            let sent_on = self.sent_on.lock().unwrap_or_else(PoisonError::into_inner);
            return Some(Sent::InDoubt { connection: sent_on[number] });
        }
        let may_be_queued = self.entry.as_ref().is_some_and(|entry| entry.may_be_queued(number));
        (states.refused & bit == 0 || may_be_queued).then_some(Sent::Answered)
    }

    /// Whether a master was sent more than one claim.
    pub(crate) fn is_claimed_again(&self, number: usize) -> bool {
        self.states().several & (1 << number) != 0
    }

    pub(crate) fn states(&self) -> MutexGuard<'_, ClaimStates> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes the end of a claim when it is dropped, even if the runtime was shut down.
struct Ending {
    claims: Arc<Claims>,
    number: usize,
    dispatch: Arc<Dispatch>,
    end: End,
}

enum End {
    Granted,
    /// Or never sent.
    Refused,
    Unknown,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let bit = 1_u64 << self.number;
        let mut states = self.claims.states();
        states.ended |= bit;
        states.refused &= !bit;
        match self.end {
            End::Granted => {}
            End::Refused => states.refused |= bit,
            End::Unknown if self.dispatch.written().is_none() => states.refused |= bit,
            End::Unknown => states.in_doubt |= bit,
        }
        drop(states);
        self.claims.ended.notify_waiters();
    }
}
