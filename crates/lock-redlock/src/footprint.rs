//! What one acquisition may have left on the masters.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::background::Counted;
use lock_core::{Error, Outcome, OwnerId, Result, Token};
use lock_redis::Keys;
use lock_redis::server::{Claim, Outright, Proposal, Request, Sent, TakeBack, Vacated, Verdict};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::line::{Contention, Place, Seat, TURN};
use crate::master::Master;
use crate::quorum::{OfEach, Wave};

/// One acquisition: its identity, and what is known of its requests to each master.
#[derive(Debug)]
pub(crate) struct Footprint {
    pub(crate) masters: Arc<[Arc<Master>]>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Duration,
    /// When it began, in microseconds since 1970.
    since: u64,
    info: Arc<str>,
    /// The wait that it belongs to, if it waits.
    seat: Option<Arc<Seat>>,
    contention: Arc<Contention>,
    /// What is known of each claim: a release must not overtake one.
    claims: Mutex<Claims>,
    /// A claim has ended. Unlike a watch it wakes those who wait in the order in which they do, so that a simulation
    /// can be replayed.
    ended: Notify,
    /// The connections that the last claims went out on.
    sent_on: Mutex<OfEach<Option<u64>>>,
}

/// What is known of the claims, one bit for each master.
#[derive(Clone, Copy, Debug, Default)]
struct Claims {
    /// The last one has come to its end.
    ended: u64,
    /// The last one was refused, or never sent: the master has nothing of ours from it.
    refused: u64,
    /// One was not answered, and may arrive at any time.
    in_doubt: u64,
    /// There was more than one: what is removed says nothing of the others.
    several: u64,
    /// It is being erased: nothing is claimed any more.
    erased: bool,
}

/// Why a footprint is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// The holder gives the lock back: the next in the line is called.
    Released,
    /// There was no quorum. Who goes on waiting stands in the line again.
    Lost,
}

impl Footprint {
    pub(crate) fn new(
        masters: &Arc<[Arc<Master>]>,
        keys: &Arc<Keys>,
        ttl: Duration,
        info: &Arc<str>,
        since: u64,
        seat: Option<&Arc<Seat>>,
        contention: &Arc<Contention>,
    ) -> Arc<Self> {
        Arc::new(Self {
            masters: Arc::clone(masters),
            keys: Arc::clone(keys),
            owner: OwnerId::random(),
            ttl,
            since,
            info: Arc::clone(info),
            seat: seat.map(Arc::clone),
            contention: Arc::clone(contention),
            claims: Mutex::default(),
            ended: Notify::new(),
            sent_on: Mutex::new(masters.iter().map(|master| master.server.generation(keys)).collect()),
        })
    }

    /// Claims the lock on every master, but on those that are not to be asked, for these reasons; `outright` as one that
    /// nobody waits for.
    pub(crate) fn claim_all(
        self: &Arc<Self>,
        skipped: impl IntoIterator<Item = Option<Error>>,
        outright: bool,
    ) -> Wave<Result<Verdict>> {
        let (ttl, token) = (self.ttl, Token::new(self.since));
        let outright = outright.then(|| self.claimed(ttl, token).outright()).flatten().map(Arc::new);
        let skipped = skipped.into_iter().enumerate();
        Wave::new(skipped.map(|(number, skipped)| self.claim(number, ttl, token, outright.clone(), skipped)))
    }

    /// Claims the lock on one master and proposes a token, unless it is not to be asked, for this reason. An
    /// outright claim is sent first, if there is one; where that is not enough, a script tells what is.
    fn claim(
        self: &Arc<Self>,
        number: usize,
        ttl: Duration,
        token: Token,
        outright: Option<Arc<Outright>>,
        skipped: Option<Error>,
    ) -> impl Future<Output = Result<Verdict>> + Send + 'static + use<> {
        // Made here, so that its end is noted also when the future is never polled.
        let ending = Ending { footprint: Arc::clone(self), number, end: End::Refused };
        async move {
            let mut ending = ending;
            if let Some(error) = skipped {
                return Err(error);
            }
            ending.end = End::Unknown;
            let verdict = match &outright {
                Some(claim) => ending.footprint.masters[number].claim_outright(claim).await,
                None => Ok(None),
            };
            let was_sent = matches!(verdict, Ok(None)) && outright.is_some();
            if was_sent && ending.footprint.claims().erased {
                // Nobody is interested any more, and what it may have taken is about to be removed.
                ending.end = End::Granted;
                return Ok(Verdict::Broken);
            }
            let answer = match verdict {
                // Boxed, as what is rare here would make each claim large.
                Ok(None) => Box::pin(ending.footprint.ask(number, ttl, token)).await,
                Ok(Some(verdict)) => Ok(verdict),
                Err(error) => Err(error),
            };
            ending.end = match &answer {
                Ok(Verdict::Granted(_)) => End::Granted,
                Ok(Verdict::Busy { .. }) => End::Refused,
                Ok(Verdict::Broken) => End::Unknown,
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

    async fn ask(&self, number: usize, ttl: Duration, token: Token) -> Result<Verdict> {
        let request = self.request(ttl, token, self.place(number).as_ref());
        self.masters[number].claim(&request).await
    }

    fn request(&self, ttl: Duration, token: Token, place: Option<&Place>) -> Request {
        self.claimed(ttl, token).request(place.map(Place::waiter).as_ref())
    }

    fn claimed(&self, ttl: Duration, token: Token) -> Claim<'_> {
        let proposal = Some(Proposal { token, since: self.since });
        Claim { keys: &self.keys, owner: self.owner, ttl, info: &self.info, proposal }
    }

    /// Claims the lock on these masters too, in the background: on a quorum it is ours, and the others have lost it, or
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
            drop(Wave::new(healed));
        }
    }

    /// Removes it from every master, after the claim there has come to its end, and tells for each
    /// whether the key was ours. `ttl` is the longest that the keys were given.
    pub(crate) fn erase(self: &Arc<Self>, ttl: Duration, because: Because) -> Wave<Option<bool>> {
        self.claims().erased = true;
        if let Some(seat) = self.seat.as_ref().filter(|_| because == Because::Released) {
            seat.rise();
        }
        let for_all = self.seat.is_none().then(|| Arc::new(self.vacation(None, because)));
        Wave::new((0..self.masters.len()).map(|number| {
            let (footprint, for_all) = (Arc::clone(self), for_all.clone());
            let counted = Some(self.masters[number].server.cleanup().count());
            Erasing { footprint, number, ttl, because, for_all, counted }.run()
        }))
    }

    fn vacation(&self, place: Option<&Place>, because: Because) -> Request {
        // Who does not wait may have overtaken one who was called.
        let has_left = self.seat.as_ref().is_none_or(|seat| seat.has_left());
        let turn = (because == Because::Released || has_left).then_some(TURN);
        Request::vacate(&self.keys, self.owner, place.map(Place::waiter).as_ref(), turn)
    }

    fn place(&self, number: usize) -> Option<Place> {
        self.seat.as_ref().and_then(|seat| seat.place(number))
    }

    /// A holder may still stand in the line of a master that refused.
    fn may_be_called(&self, number: usize, because: Because) -> Option<Sent> {
        let stood = self.seat.as_ref().is_some_and(|seat| seat.has_stood(number));
        (stood && because == Because::Released).then_some(Sent::Answered)
    }

    /// Notes that another claim is about to leave, unless one is on its way, or none may leave any more.
    fn begin_again(&self, number: usize) -> bool {
        let bit = 1 << number;
        let mut claims = self.claims();
        if claims.erased || claims.ended & bit == 0 {
            return false;
        }
        claims.ended &= !bit;
        claims.several |= bit;
        if claims.in_doubt & bit == 0 {
            let connection = self.masters[number].server.generation(&self.keys);
            self.sent_on.lock().unwrap_or_else(PoisonError::into_inner)[number] = connection;
        }
        true
    }

    /// What became of the claims to a master, once the last has come to its end: `None` when none left anything.
    async fn ended(&self, number: usize) -> Option<Sent> {
        let bit = 1 << number;
        let claims = loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let claims = *self.claims();
            if claims.ended & bit != 0 {
                break claims;
            }
            ended.await;
        };
        if claims.in_doubt & bit != 0 {
            let sent_on = self.sent_on.lock().unwrap_or_else(PoisonError::into_inner);
            return Some(Sent::InDoubt { connection: sent_on[number] });
        }
        (claims.refused & bit == 0).then_some(Sent::Answered)
    }

    /// Whether a master was sent more than one claim.
    fn is_claimed_again(&self, number: usize) -> bool {
        self.claims().several & (1 << number) != 0
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is removed from one master.
struct Erasing {
    footprint: Arc<Footprint>,
    number: usize,
    ttl: Duration,
    because: Because,
    /// What is sent to all masters, if it is the same.
    for_all: Option<Arc<Request>>,
    /// Until the master has answered.
    counted: Option<Counted>,
}

impl Erasing {
    async fn run(mut self) -> Option<bool> {
        let counted = self.counted.take();
        let sent = self.footprint.ended(self.number).await;
        let Some(sent) = sent.or_else(|| self.footprint.may_be_called(self.number, self.because)) else {
            return Some(false);
        };
        let removed = self.remove(sent, counted).await;
        if removed == Some(true) && sent != Sent::Answered && self.footprint.is_claimed_again(self.number) {
            self.go_on(sent);
        }
        removed
    }

    async fn remove(&self, sent: Sent, counted: Option<Counted>) -> Option<bool> {
        let Self { footprint, number, .. } = self;
        let master = &footprint.masters[*number];
        let vacate = || async {
            let asked = Instant::now();
            let answer = match &self.for_all {
                Some(request) => master.server.vacate(request).await,
                None => Box::pin(self.vacate_from(master)).await,
            };
            let vacated = master.noted(asked, answer)?;
            if vacated.is_wanted {
                footprint.contention.note();
            }
            Ok(vacated.was_ours)
        };
        let mut terms = TakeBack::new(&footprint.keys, self.ttl, sent).counted(counted);
        if sent != Sent::Answered {
            terms = terms.over_an_outage(master.server.cleanup());
        }
        master.server.take_back(terms, vacate).await
    }

    /// Of one who waits, or did.
    async fn vacate_from(&self, master: &Master) -> Result<Vacated> {
        let place = self.footprint.place(self.number);
        master.server.vacate(&self.footprint.vacation(place.as_ref(), self.because)).await
    }

    /// Looks for the other claims, in the background, until none has been found for as long as one may take to arrive.
    fn go_on(self, sent: Sent) {
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move { while self.remove(sent, None).await == Some(true) {} }));
        }
    }
}

/// Notes that a claim has come to its end, also when it was dropped with the runtime.
struct Ending {
    footprint: Arc<Footprint>,
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
        let mut claims = self.footprint.claims();
        claims.ended |= bit;
        claims.refused &= !bit;
        match self.end {
            End::Granted => {}
            End::Refused => claims.refused |= bit,
            End::Unknown => claims.in_doubt |= bit,
        }
        drop(claims);
        self.footprint.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use lock_core::LockName;

    use super::*;
    use crate::master::tests::dead;

    /// Each acquisition has one for each master, and larger ones are slow to allocate.
    #[tokio::test]
    async fn a_claim_takes_little_memory() {
        let keys = Arc::new(Keys::new("", &LockName::new("a").unwrap()));
        let ttl = Duration::from_secs(30);
        let footprint = Footprint::new(&dead(3), &keys, ttl, &"{}".into(), 1, None, &Arc::default());
        let claim = footprint.claim(0, ttl, Token::new(1), None, None);
        assert!(size_of_val(&claim) <= 768, "{}", size_of_val(&claim));
        let (number, because, for_all) = (0, Because::Released, None);
        let erasing = Erasing { footprint, number, ttl, because, for_all, counted: None }.run();
        assert!(size_of_val(&erasing) <= 1024, "{}", size_of_val(&erasing));
    }
}
