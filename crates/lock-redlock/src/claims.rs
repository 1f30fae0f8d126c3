//! What one acquisition may have left on the masters.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, Outcome, OwnerId, Result, Token};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::take_back::Sent;
use tokio::sync::Notify;

use crate::ballot::{Claim, FastClaim, Proposal, Request, Waiter};
use crate::contention::Contention;
use crate::fan_out::FanOut;
use crate::masters::Masters;
use crate::quorum::OfEach;
use crate::wait_queue::QueueEntry;

/// One acquisition: its identity, and what is known of its requests to each master.
#[derive(Debug)]
pub(crate) struct Claims {
    pub(crate) masters: Masters,
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Duration,
    /// When it began, in microseconds since 1970.
    since: u64,
    info: Arc<str>,
    /// The wait that it belongs to, if it waits.
    pub(crate) entry: Option<Arc<QueueEntry>>,
    pub(crate) contention: Arc<Contention>,
    /// What is known of each claim: a release must not overtake one.
    states: Mutex<ClaimStates>,
    /// A claim has ended. Unlike a watch it wakes those who wait in the order in which they do, so that a simulation
    /// can be replayed.
    ended: Notify,
    /// The connections that the last claims went out on.
    sent_on: Mutex<OfEach<Option<u64>>>,
}

/// What is known of the claims, one bit for each master.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClaimStates {
    /// The last one has come to its end.
    ended: u64,
    /// The last one was refused, or never sent: the master has nothing of ours from it.
    refused: u64,
    /// One was not answered, and may arrive at any time.
    in_doubt: u64,
    /// There was more than one: what is removed says nothing of the others.
    several: u64,
    /// It is being erased: nothing is claimed any more.
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
        Arc::new(Self {
            masters: Arc::clone(masters),
            keys: Arc::clone(keys),
            owner: OwnerId::random(),
            ttl,
            since,
            info: Arc::clone(info),
            entry: entry.map(Arc::clone),
            contention: Arc::clone(contention),
            states: Mutex::default(),
            ended: Notify::new(),
            sent_on: Mutex::new(masters.iter().map(|master| master.voter.generation(keys)).collect()),
        })
    }

    /// ClaimStates the lock on every master, but on those that are not to be asked, for these reasons; `outright` as one that
    /// nobody waits for.
    pub(crate) fn claim_all(
        self: &Arc<Self>,
        skipped: impl IntoIterator<Item = Option<Error>>,
        outright: bool,
    ) -> FanOut<Result<LockAnswer>> {
        let (ttl, token) = (self.ttl, Token::new(self.since));
        let outright = outright.then(|| self.claimed(ttl, token).fast()).flatten().map(Arc::new);
        let skipped = skipped.into_iter().enumerate();
        FanOut::new(
            skipped.map(|(number, skipped)| self.claim(number, ttl, token, outright.clone(), skipped)),
        )
    }

    /// ClaimStates the lock on one master and proposes a token, unless it is not to be asked, for this reason. An
    /// outright claim is sent first, if there is one; where that is not enough, a script tells what is.
    pub(crate) fn claim(
        self: &Arc<Self>,
        number: usize,
        ttl: Duration,
        token: Token,
        outright: Option<Arc<FastClaim>>,
        skipped: Option<Error>,
    ) -> impl Future<Output = Result<LockAnswer>> + Send + 'static + use<> {
        // Made here, so that its end is noted also when the future is never polled.
        let ending = Ending { claims: Arc::clone(self), number, end: End::Refused };
        async move {
            let mut ending = ending;
            if let Some(error) = skipped {
                return Err(error);
            }
            ending.end = End::Unknown;
            let verdict = match &outright {
                Some(claim) => ending.claims.masters[number].claim_fast(claim).await,
                None => Ok(None),
            };
            let was_sent = matches!(verdict, Ok(None)) && outright.is_some();
            if was_sent && ending.claims.states().removed {
                // Nobody is interested any more, and what it may have taken is about to be removed.
                ending.end = End::Granted;
                return Ok(LockAnswer::Broken);
            }
            let answer = match verdict {
                // Boxed, as what is rare here would make each claim large.
                Ok(None) => Box::pin(ending.claims.ask(number, ttl, token)).await,
                Ok(Some(verdict)) => Ok(verdict),
                Err(error) => Err(error),
            };
            ending.end = match &answer {
                Ok(LockAnswer::Granted(_)) => End::Granted,
                Ok(LockAnswer::Busy { .. }) => End::Refused,
                Ok(LockAnswer::Broken) => End::Unknown,
                Err(error) => match error.outcome() {
                    // What was sent before it may have left something.
                    Outcome::NotApplied if was_sent => End::Granted,
                    Outcome::NotApplied => End::Refused,
                    // By a master that does not vote.
                    Outcome::Applied => End::Granted,
                    _ => End::Unknown,
                },
            };
            answer
        }
    }

    async fn ask(&self, number: usize, ttl: Duration, token: Token) -> Result<LockAnswer> {
        let request = self.request(ttl, token, self.waiter(number).as_ref());
        self.masters[number].claim(&request).await
    }

    fn request(&self, ttl: Duration, token: Token, waiter: Option<&Waiter>) -> Request {
        self.claimed(ttl, token).request(waiter)
    }

    fn claimed(&self, ttl: Duration, token: Token) -> Claim<'_> {
        let proposal = Some(Proposal { token, since: self.since });
        Claim { keys: &self.keys, owner: self.owner, ttl, info: &self.info, proposal }
    }

    /// ClaimStates the lock on these masters too, in the background: on a quorum it is ours, and the others have lost it, or
    /// never had it. Each does so only if nobody else has it there.
    pub(crate) fn heal(
        self: &Arc<Self>,
        numbers: impl IntoIterator<Item = usize>,
        ttl: Duration,
        token: Token,
    ) {
        let begin = numbers.into_iter().filter(|number| self.begin_again(*number));
        let healed: Vec<_> = begin.map(|number| self.claim(number, ttl, token, None, None)).collect();
        if !healed.is_empty() {
            drop(FanOut::new(healed));
        }
    }

    pub(crate) fn waiter(&self, number: usize) -> Option<Waiter> {
        self.entry.as_ref().and_then(|entry| entry.waiter(number))
    }

    /// Notes that another claim is about to leave, unless one is on its way, or none may leave any more.
    fn begin_again(&self, number: usize) -> bool {
        let bit = 1 << number;
        let mut states = self.states();
        if states.removed || states.ended & bit == 0 {
            return false;
        }
        states.ended &= !bit;
        states.several |= bit;
        if states.in_doubt & bit == 0 {
            let connection = self.masters[number].voter.generation(&self.keys);
            self.sent_on.lock().unwrap_or_else(PoisonError::into_inner)[number] = connection;
        }
        true
    }

    /// What became of the claims to a master, once the last has come to its end: `None` when none left anything.
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
        (states.refused & bit == 0).then_some(Sent::Answered)
    }

    /// Whether a master was sent more than one claim.
    pub(crate) fn is_claimed_again(&self, number: usize) -> bool {
        self.states().several & (1 << number) != 0
    }

    pub(crate) fn states(&self) -> MutexGuard<'_, ClaimStates> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that a claim has come to its end, also when it was dropped with the runtime.
struct Ending {
    claims: Arc<Claims>,
    number: usize,
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
            End::Unknown => states.in_doubt |= bit,
        }
        drop(states);
        self.claims.ended.notify_waiters();
    }
}
