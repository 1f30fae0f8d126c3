//! Acquires a lock on its rung.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::backend::{AcquireRequest, Acquired, Mode, OnQueued, Wait};
use lock_core::migration::{Reading, Swapped};
use lock_core::unpolled::unless_unpolled;
use lock_core::{BootInstant, Error, ErrorKind, Lease, Result, Token};
use tokio::time::{Instant, sleep, timeout};

use crate::context::Context;
use crate::error::{BACKEND, no_seal};
use crate::leases::half::Half;
use crate::leases::lead::{LARGEST_LEAD, RAISE_LEAD, check_lead, check_near};
use crate::leases::lease::LadderLease;
use crate::leases::one::OneLease;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;
use crate::rungs::time::{micros, wall_clock};

/// How long a mover tries to have its tombstone confirmed.
const MOVE_LIMIT: Duration = Duration::from_secs(10);
/// How long after the last lease the seal is written.
const SEAL_LIMIT: Duration = Duration::from_secs(10);
/// How long the server of a session may lag behind another one that has the seal.
const FOLLOW_LIMIT: Duration = Duration::from_secs(10);
/// How long a caller that does not wait lets a mover finish with which it shares the lock.
const MOMENT: Duration = Duration::from_millis(500);
/// How long a caller whose patience is over waits for the release of the new store. It gets no answer after 100 ms.
const RELEASE_LIMIT: Duration = Duration::from_millis(50);
/// How often a caller that does not wait acquires the lock: to start over is no contention.
const MOST_STARTS: u32 = 4;
/// In microseconds of the old store's clock, and transactions of the new one.
const FOR_SHARERS: u64 = 1_000;
/// How long an acquisition that may rely on an earlier reading waits for a new one.
const READ_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// Acquires a lock on its rung.
pub(crate) async fn acquire(context: &Arc<Context>, request: AcquireRequest) -> Result<Acquired> {
    context.keep_tasks();
    let rung = context.rung(&request.name);
    if rung < Rung::New {
        request.lease.ttl.into_iter().for_each(|ttl| context.process.note_ttl(ttl));
    }
    match rung {
        Rung::Old | Rung::Shadow => old(context, request, rung).await,
        Rung::Dual | Rung::Move => climb(context, request, rung).await,
        Rung::New => new(context, request).await,
    }
}

/// Acquires the lock of the old store.
async fn old(context: &Arc<Context>, request: AcquireRequest, rung: Rung) -> Result<Acquired> {
    let acquired = tokio::select! {
        biased;
        acquired = context.from.acquire(request.clone()) => acquired,
        () = context.process.sealed() => return new(context, request).await,
    };
    match acquired {
        Ok(Acquired::Held(lease)) => {
            Ok(Acquired::Held(Box::new(OneLease::new(context, rung, lease, &request))))
        }
        // A process that is a rung ahead has moved it. On both stores this process excludes that one too.
        Err(error) if error.kind() == ErrorKind::Moved => climb(context, request, Rung::Dual).await,
        // The old store was closed for the seal.
        Err(_) if context.process.is_sealed() => new(context, request).await,
        acquired => acquired,
    }
}

/// Acquires the lock of the new store alone, which the seal allows. The record is read while it is held.
async fn new(context: &Arc<Context>, request: AcquireRequest) -> Result<Acquired> {
    let sealed = || {
        let (context, request) = (Arc::clone(context), request.clone());
        async move { acquire_new(&context, request).await }
    };
    unless_unpolled(sealed).await
}

async fn acquire_new(context: &Arc<Context>, request: AcquireRequest) -> Result<Acquired> {
    let mut since = None;
    let mut lags = |now: BootInstant| now < *since.get_or_insert(now) + FOLLOW_LIMIT;
    for left in (0..MOST_STARTS).rev().chain(iter::repeat(0)) {
        let Acquired::Held(lease) = context.to.acquire(request.clone()).await? else {
            return Ok(Acquired::Busy);
        };
        let new = context.half(lease);
        let held = match context.record_at(&**new).await {
            Ok(record) if record.phase == Phase::Sealed => above_the_seal(new, &record).await,
            // Another session of this process has seen the seal, and the server of this one follows. One that was set back does not.
            Ok(_) if context.process.is_sealed() && lags(context.clock.now()) => give_back(new).await,
            Ok(_) => return Err(no_seal()),
            Err(error) if error.kind() == ErrorKind::Lost => None,
            Err(error) => return Err(error),
        };
        match held {
            Some(new) => {
                let lease = OneLease::new(context, Rung::New, new.into_lease(), &request);
                return Ok(Acquired::Held(Box::new(lease)));
            }
            None if left == 0 && request.wait.is_expired() => break,
            None => sleep(PAUSE).await,
        }
    }
    Ok(Acquired::Busy)
}

/// The lock of the new store, granted with the seal, if its token is larger than all of the old store. One that was granted
/// just before the seal is given back, to be acquired again.
async fn above_the_seal(new: Half, record: &Record) -> Option<Half> {
    if new.token().get() > record.floor { Some(new) } else { give_back(new).await }
}

/// At once, so that the next attempt does not find it. What fails is done in the background.
async fn give_back(mut new: Half) -> Option<Half> {
    let _ = new.release().await;
    None
}

/// Acquires the lock of the new store, then that of the old one, or relies on the tombstone in its place. The lock of the new store is
/// held during the wait for the old one.
async fn climb(context: &Arc<Context>, request: AcquireRequest, rung: Rung) -> Result<Acquired> {
    let both = || {
        let (context, request) = (Arc::clone(context), request.clone());
        async move { acquire_both(&context, request, rung).await }
    };
    unless_unpolled(both).await
}

async fn acquire_both(context: &Arc<Context>, mut request: AcquireRequest, rung: Rung) -> Result<Acquired> {
    let queued = Queued::in_the_new_store(&mut request);
    // Also one whose patience is zero.
    let tries_once = request.wait.is_expired();
    // A store without tombstones has no moves.
    let moves = rung == Rung::Move && context.source()?.keeps_tombstones().is_supported();
    let mut closing = Closing::default();
    for left in (0..MOST_STARTS).rev().chain(iter::repeat(0)) {
        let attempt = Attempt { context, request: &request, tries_once, moves, rung };
        match attempt.run().await {
            Ok(Climbed::Held(lease)) => return Ok(Acquired::Held(lease)),
            Ok(Climbed::Busy) => return Ok(Acquired::Busy),
            Ok(Climbed::StartOver) if left == 0 && request.wait.is_expired() => break,
            Ok(Climbed::StartOver) => sleep(PAUSE).await,
            // Of a lock that nobody was given yet.
            Err(error) if error.kind() == ErrorKind::Lost => {
                if left == 0 && request.wait.is_expired() {
                    break;
                }
                sleep(PAUSE).await;
            }
            Err(error) if closing.may_explain(&error, context) && !request.wait.is_expired() => {
                tracing::debug!(%error, "the old store may be closed for the seal; trying again");
                sleep(PAUSE).await;
            }
            Err(error) if queued.has() => return Err(error.while_waiting()),
            Err(error) => return Err(error),
        }
    }
    Ok(Acquired::Busy)
}

/// Whether an acquisition had to wait in the new store. What the old one refuses it then ends a wait.
struct Queued(Arc<AtomicBool>);

impl Queued {
    fn in_the_new_store(request: &mut AcquireRequest) -> Self {
        let (queued, on_queued) = (Arc::new(AtomicBool::new(false)), request.on_queued.take());
        let noted = Arc::clone(&queued);
        request.on_queued = Some(OnQueued::new(move |ahead| {
            noted.store(true, Ordering::Relaxed);
            if let Some(on_queued) = &on_queued {
                on_queued.call(ahead);
            }
        }));
        Self(queued)
    }

    fn has(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time from the closing of the old store to the seal, when a waiter gets errors that end by themselves.
#[derive(Debug, Default)]
struct Closing {
    /// The end of that time, counted from the first error.
    until: Option<BootInstant>,
}

impl Closing {
    /// Whether this error may come from the closing.
    fn may_explain(&mut self, error: &Error, context: &Context) -> bool {
        let is_refusal = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied);
        let is_old_store = error.backend() == context.from.capabilities().backend;
        let now = context.clock.now();
        let until = self.until.get_or_insert_with(|| now + context.process.longest_ttl() + SEAL_LIMIT);
        is_refusal && is_old_store && now < *until
    }
}

/// One attempt to acquire the locks of both stores.
struct Attempt<'a> {
    context: &'a Arc<Context>,
    request: &'a AcquireRequest,
    /// Whether the caller does not wait; and not that its patience is over.
    tries_once: bool,
    moves: bool,
    rung: Rung,
}

enum Climbed {
    Held(Box<dyn Lease>),
    Busy,
    /// A lock was lost on the way, or the seal was written.
    StartOver,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let Acquired::Held(lease) = context.to.acquire(self.endless()).await? else {
            return Ok(Climbed::Busy);
        };
        let mut new = context.half(lease);
        let record = context.record_at(&**new).await?;
        if record.phase == Phase::Sealed {
            return Ok(match above_the_seal(new, &record).await {
                Some(new) => Climbed::Held(Box::new(LadderLease::sealed(context, self.request, new))),
                None => Climbed::StartOver,
            });
        }
        if self.moves
            && let Some(reading) = context.earlier_reading(name, &record)
        {
            return self.rely_on_earlier(new, reading, &record).await;
        }
        let mut tries_whole = self.may_move(&record);
        loop {
            return match self.acquire_old(&new, tries_whole).await {
                None => {
                    let _ = new.release().await;
                    Ok(Climbed::StartOver)
                }
                Some(Ok((Acquired::Held(old), is_whole))) => {
                    let mut old = context.half(old);
                    if !is_whole && new.token() > old.token() {
                        self.raise_for_sharers(&new, &old).await?;
                        old.release().await?;
                        continue;
                    }
                    // The wait may have been long.
                    let record = context.record_at(&**new).await?;
                    if is_whole
                        && self.may_move(&record)
                        && let Some(clock) = self.can_follow(&old).await?
                    {
                        self.move_name(new, old, &record, clock).await
                    } else if is_whole && self.request.mode != Mode::Exclusive {
                        // As a whole, it would keep the other sharers out.
                        old.release().await?;
                        tries_whole = false;
                        continue;
                    } else {
                        self.hold_both(new, old).await
                    }
                }
                Some(Ok(_)) => {
                    // At once, so that the next attempt of this process does not find it. What fails is done in the background,
                    // and what takes longer than the caller has.
                    let released = new.release();
                    match self.request.wait {
                        Wait::Never => drop(released.await),
                        _ => drop(timeout(RELEASE_LIMIT, released).await),
                    }
                    Ok(Climbed::Busy)
                }
                Some(Err(error)) if error.kind() == ErrorKind::Moved => self.rely(new, &record).await,
                // The old store was closed for the seal.
                Some(Err(_)) if context.process.is_sealed() => {
                    let _ = new.release().await;
                    Ok(Climbed::StartOver)
                }
                Some(Err(error)) => Err(error),
            };
        }
    }

    /// The request for the lock of the new store, which lasts through the wait for the old one: the time of the guard begins
    /// once it has both.
    fn endless(&self) -> AcquireRequest {
        let mut request = self.request.clone();
        (request.lease.renewed, request.lease.max_hold) = (true, None);
        request
    }

    /// Raises the tokens of the old store above that of a sharer of both, which then acquires the old lock once more: another
    /// sharer, of the old store alone, may have got the same number there meanwhile.
    async fn raise_for_sharers(&self, new: &Half, old: &Half) -> Result<()> {
        self.context.check_lead(&self.request.name, new.token(), LARGEST_LEAD).await?;
        // A little more, so that the next sharers do not have to do that, too.
        old.raise_token(Token::new(new.token().get() + FOR_SHARERS)).await
    }

    /// Whether a name moves now, by the record as of the grant: the rung may have changed while this request waited.
    fn may_move(&self, record: &Arc<Record>) -> bool {
        let rung = self.context.process.rung_in(record, &self.request.name);
        self.moves && record.phase == Phase::Open && rung == Rung::Move
    }

    /// The clock of the old store, if the tokens of the new store can be raised above that of the old one. All its locks would get tokens
    /// that are ahead as far.
    async fn can_follow(&self, old: &Half) -> Result<Option<u64>> {
        let checked = async {
            let clock = self.context.source()?.time(&self.request.name).await?;
            check_near(old.token(), clock)?;
            // One that is far ahead of this host's would raise the tokens of the new store for good.
            check_lead(Token::new(clock), micros(wall_clock())).map(|()| clock)
        };
        match checked.await {
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                tracing::warn!(%error, lock = self.request.name.as_str(), "a lock does not move yet");
                Ok(None)
            }
            checked => checked.map(Some),
        }
    }

    /// Whether the tokens of the new store are far behind those of the old one. They follow once in a while, and not for each lock:
    /// sharers raise the old store above them, and both would drive each other up.
    fn falls_behind(&self, new: &Half, old: &Half) -> bool {
        let is_far = old.token().get() - new.token().get() > micros(RAISE_LEAD / 2);
        // A clock that is far ahead of this host's would raise the tokens of the new store for good.
        is_far && check_lead(old.token(), micros(wall_clock())).is_ok()
    }

    /// Acquires the lock of the old store, and reports whether as a whole: a mover of a share tries for that first.
    /// Nothing if the lock of the new store is lost meanwhile, or the seal is written.
    async fn acquire_old(&self, new: &Half, tries_whole: bool) -> Option<Result<(Acquired, bool)>> {
        let is_whole = self.request.mode == Mode::Exclusive;
        if tries_whole && !is_whole {
            let mut whole = self.request.clone();
            (whole.mode, whole.wait) = (Mode::Exclusive, Wait::Never);
            match self.unless_over(new, whole).await? {
                Ok(Acquired::Busy) => {}
                acquired => return Some(acquired.map(|acquired| (acquired, true))),
            }
        }
        let mut acquired = self.unless_over(new, self.request.clone()).await?;
        // A caller whose patience is over gets its answer now.
        if !is_whole && self.tries_once && matches!(acquired, Ok(Acquired::Busy)) {
            // A mover that shares the lock of the new store has the old one as a whole, for a moment.
            let mut again = self.request.clone();
            again.wait = Wait::Until(Instant::now() + MOMENT);
            acquired = self.unless_over(new, again).await?;
        }
        Some(acquired.map(|acquired| (acquired, is_whole)))
    }

    async fn unless_over(&self, new: &Half, request: AcquireRequest) -> Option<Result<Acquired>> {
        tokio::select! {
            biased;
            acquired = self.context.from.acquire(request) => Some(acquired),
            _ = new.validity().lost() => None,
            () = self.context.process.sealed() => None,
        }
    }

    async fn hold_both(&self, new: Half, old: Half) -> Result<Climbed> {
        if new.token() > old.token() {
            self.context.check_lead(&self.request.name, new.token(), LARGEST_LEAD).await?;
            // Before the guard is handed out: the next holder on the old store gets a larger token.
            old.raise_token(new.token()).await?;
        } else if self.falls_behind(&new, &old) && self.can_follow(&old).await?.is_some() {
            // The seal raises the new store by hours above its own tokens. So these follow, even if the old store is gone then.
            new.raise_token(old.token()).await?;
        }
        Ok(Climbed::Held(Box::new(LadderLease::both(self.context, self.rung, self.request, new, old))))
    }

    /// Replaces the lock of the old store by a tombstone, whose clock says this.
    async fn move_name(
        &self,
        mut new: Half,
        mut old: Half,
        record: &Arc<Record>,
        clock: u64,
    ) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let (source, target) = (context.source()?, context.target()?);
        let token = new.token().max(old.token());
        check_near(new.token(), clock)?;
        if new.token() < old.token() {
            // Before the tombstone is written: the next holder of the new store alone gets a larger token.
            let ahead = clock + micros(RAISE_LEAD);
            new.raise_token(Token::new(old.token().get().max(ahead))).await?;
        }
        let tombstone = context.tombstone(name, target.age(&**new).await?.newest, record);
        let sent = context.clock.now();
        let until = loop {
            // What came before may have taken long: once the way back has begun, nobody writes a tombstone.
            let now = context.record_at(&**new).await?;
            if now.phase != Phase::Open || now.generation != record.generation {
                return Ok(Climbed::StartOver);
            }
            match source.swap(&mut **old, &tombstone).await {
                Ok(Swapped::Done { until }) => break until,
                Ok(_) => {
                    old.forget();
                    return Ok(Climbed::StartOver);
                }
                Err(error) if error.kind() == ErrorKind::Unavailable && self.goes_on(&new, sent) => {
                    tracing::debug!(%error, "a tombstone may not be written yet; trying again");
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        old.forget();
        context.note_moved(name);
        match source.read_tombstone(name).await {
            // Later acquisitions may rely on it.
            Ok(Some(reading)) => context.tombstones.keep(name, reading, record),
            Ok(None) => {
                tracing::warn!(lock = name.as_str(), "the tombstone of a lock that has just moved is gone");
                let _ = new.release().await;
                return Ok(Climbed::StartOver);
            }
            // They read it.
            Err(error) => tracing::debug!(%error, lock = name.as_str(), "a tombstone cannot be read now"),
        }
        let took = context.clock.now().saturating_duration_since(sent);
        tracing::debug!(lock = name.as_str(), ?took, "a lock has moved");
        Ok(self.hold_moved(new, token, until, sent))
    }

    /// Whether to go on with a move that has no answer yet.
    fn goes_on(&self, new: &Half, began: BootInstant) -> bool {
        new.validity().is_valid() && self.context.clock.now() < began + MOVE_LIMIT
    }

    /// Reads the tombstone that was met, and relies on it.
    async fn rely(&self, mut new: Half, record: &Arc<Record>) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let Some(reading) = context.source()?.read_tombstone(name).await? else {
            let _ = new.release().await;
            return Ok(Climbed::StartOver);
        };
        context.check(&reading.tombstone, name)?;
        if self.is_older(&new, &reading).await? {
            let _ = new.release().await;
            return Ok(Climbed::StartOver);
        }
        let (token, until, sent) = (new.token(), reading.until, reading.sent);
        if self.moves {
            // The mover may have died before it did.
            context.note_moved(name);
            context.tombstones.keep(name, reading, record);
        }
        Ok(self.hold_moved(new, token, until, sent))
    }

    /// Relies on what was read before; reads it again once a minute, while the old store answers.
    async fn rely_on_earlier(
        &self,
        mut new: Half,
        reading: Arc<Reading>,
        record: &Arc<Record>,
    ) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let mut reading = reading;
        if context.tombstones.is_outdated(reading.sent) {
            let read = timeout(READ_LIMIT, context.source()?.read_tombstone(name)).await;
            match read.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, BACKEND))) {
                Ok(Some(again)) => {
                    context.check(&again.tombstone, name)?;
                    context.tombstones.keep(name, again.clone(), record);
                    reading = Arc::new(again);
                }
                Ok(None) => {
                    tracing::warn!(lock = name.as_str(), "the tombstone of a lock that has moved is gone");
                    context.tombstones.forget(name);
                    let _ = new.release().await;
                    return Ok(Climbed::StartOver);
                }
                // Closed for the seal, it does not answer either.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied) => {
                    context.tombstones.note_silence();
                }
                Err(error) => return Err(error),
            }
        }
        if self.is_older(&new, &reading).await? {
            let _ = new.release().await;
            return Ok(Climbed::StartOver);
        }
        let token = new.token();
        Ok(self.hold_moved(new, token, reading.until, reading.sent))
    }

    /// Whether a sharer's lock is older than a tombstone: its token may be smaller than those of the old store.
    async fn is_older(&self, new: &Half, reading: &Reading) -> Result<bool> {
        if self.request.mode == Mode::Exclusive {
            return Ok(false);
        }
        Ok(self.context.target()?.age(&***new).await?.created < reading.tombstone.newest)
    }

    fn hold_moved(&self, new: Half, token: Token, until: BootInstant, sent: BootInstant) -> Climbed {
        let name = &self.request.name;
        let reliance = self.context.tombstones.rely(name, until, sent);
        Climbed::Held(Box::new(LadderLease::moved(
            self.context,
            self.rung,
            self.request,
            new,
            token,
            reliance,
        )))
    }
}
