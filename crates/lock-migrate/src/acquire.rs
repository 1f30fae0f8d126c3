//! Acquires a lock on its rung.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{AcquireRequest, Acquired, Mode, Wait};
use lock_core::migration::{Reading, Swapped};
use lock_core::{BootInstant, Error, ErrorKind, Lease, Result, Token, ValidityCell};
use tokio::time::sleep;

use crate::context::{Context, wall_clock};
use crate::half::Half;
use crate::lease::LadderLease;
use crate::record::{BACKEND, Phase, Record};
use crate::rung::Rung;

/// How far tokens of the new store may be ahead of the clock of the old one.
const LARGEST_LEAD: Duration = Duration::from_secs(86_400);
/// By how much a raise of the tokens is ahead of the clock of the old store.
const HOUR: Duration = Duration::from_secs(3_600);
/// How long a mover tries to have its tombstone confirmed.
const MOVE_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// Acquires a lock on its rung.
pub(crate) async fn acquire(context: &Arc<Context>, request: AcquireRequest) -> Result<Acquired> {
    match context.rung(&request.name) {
        Rung::Old | Rung::Shadow => match context.from.acquire(request.clone()).await {
            // A process that is a rung ahead has moved it. On both stores this process excludes that one too.
            Err(error) if error.kind() == ErrorKind::Moved => climb(context, request, false).await,
            acquired => acquired,
        },
        Rung::Dual => climb(context, request, false).await,
        Rung::Move => climb(context, request, true).await,
        Rung::New => new(context, request).await,
    }
}

/// Acquires the lock of the new store alone, which the seal allows.
async fn new(context: &Arc<Context>, request: AcquireRequest) -> Result<Acquired> {
    let Acquired::Held(lease) = context.to.acquire(request).await? else { return Ok(Acquired::Busy) };
    let new = context.half(lease);
    if context.record_at(&**new).await?.phase == Phase::Sealed {
        return Ok(Acquired::Held(new.into_lease()));
    }
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message("the rung new needs the seal of the migration, which is not written yet")
        .with_hint("use the rung move, or finish the migration first"))
}

/// Acquires the lock of the new store, then that of the old one, or relies on the tombstone in its place.
async fn climb(context: &Arc<Context>, request: AcquireRequest, moves: bool) -> Result<Acquired> {
    loop {
        let attempt = Attempt { context, request: &request, moves };
        match attempt.run().await? {
            Climbed::Held(lease) => return Ok(Acquired::Held(lease)),
            Climbed::Busy => return Ok(Acquired::Busy),
            Climbed::StartOver if request.wait.is_expired() => return Ok(Acquired::Busy),
            Climbed::StartOver => sleep(PAUSE).await,
        }
    }
}

/// One attempt to acquire the locks of both stores.
struct Attempt<'a> {
    context: &'a Arc<Context>,
    request: &'a AcquireRequest,
    moves: bool,
}

enum Climbed {
    Held(Box<dyn Lease>),
    Busy,
    /// A lock was lost on the way.
    StartOver,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let Acquired::Held(lease) = context.to.acquire(self.request.clone()).await? else {
            return Ok(Climbed::Busy);
        };
        let mut new = context.half(lease);
        let record = context.record_at(&**new).await?;
        if record.phase == Phase::Sealed {
            return Ok(Climbed::Held(new.into_lease()));
        }
        if self.moves
            && let Some(reading) = context.earlier_reading(name, &record)
        {
            return self.rely_on_earlier(new, reading, &record).await;
        }
        match self.acquire_old(&new, self.moves && record.phase == Phase::Open).await {
            None => Ok(Climbed::StartOver),
            Some(Ok((Acquired::Held(old), is_whole))) => {
                let old = context.half(old);
                // The wait may have been long: once the way back has begun, nobody writes a tombstone.
                let record = context.record_at(&**new).await?;
                if self.moves && is_whole && record.phase == Phase::Open {
                    self.move_name(new, old, &record).await
                } else {
                    self.hold_both(new, old).await
                }
            }
            Some(Ok(_)) => {
                // At once, so that the next attempt of this process does not find it. What fails is done in the background.
                let _ = new.release().await;
                Ok(Climbed::Busy)
            }
            Some(Err(error)) if error.kind() == ErrorKind::Moved => self.rely(new, &record).await,
            Some(Err(error)) => Err(error),
        }
    }

    /// Acquires the lock of the old store, and reports whether as a whole: a mover of a share tries for that first.
    /// Nothing if the lock of the new store is lost meanwhile.
    async fn acquire_old(&self, new: &Half, tries_whole: bool) -> Option<Result<(Acquired, bool)>> {
        let is_whole = self.request.mode == Mode::Exclusive;
        if tries_whole && !is_whole {
            let mut whole = self.request.clone();
            (whole.mode, whole.wait) = (Mode::Exclusive, Wait::Never);
            match self.unless_lost(new, whole).await? {
                Ok(Acquired::Busy) => {}
                acquired => return Some(acquired.map(|acquired| (acquired, true))),
            }
        }
        let acquired = self.unless_lost(new, self.request.clone()).await?;
        Some(acquired.map(|acquired| (acquired, is_whole)))
    }

    async fn unless_lost(&self, new: &Half, request: AcquireRequest) -> Option<Result<Acquired>> {
        tokio::select! {
            biased;
            acquired = self.context.from.acquire(request) => Some(acquired),
            _ = new.validity().lost() => None,
        }
    }

    async fn hold_both(&self, new: Half, old: Half) -> Result<Climbed> {
        if new.token() > old.token() {
            self.check_lead(new.token()).await?;
            // Before the guard is handed out: the next holder on the old store gets a larger token.
            old.raise_token(new.token()).await?;
        }
        Ok(Climbed::Held(Box::new(LadderLease::both(new, old, &self.context.runtime, &self.context.clock))))
    }

    /// Replaces the lock of the old store by a tombstone.
    async fn move_name(&self, new: Half, mut old: Half, record: &Record) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let (source, target) = (context.source()?, context.target()?);
        let token = new.token().max(old.token());
        self.check_lead(new.token()).await?;
        if new.token() < old.token() {
            // Before the tombstone is written: the next holder of the new store alone gets a larger token.
            let ahead = source.time(name).await? + micros(HOUR);
            new.raise_token(Token::new(old.token().get().max(ahead))).await?;
        }
        let tombstone = context.tombstone(name, target.age(&**new).await?.newest);
        let sent = context.clock.now();
        let until = loop {
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
        // Later acquisitions may rely on it. If it cannot be read now, they read it.
        if let Ok(Some(reading)) = source.read_tombstone(name).await {
            context.keep(name, reading, record);
        }
        tracing::debug!(lock = name.as_str(), took = ?context.clock.now().saturating_duration_since(sent), "a lock has moved");
        Ok(self.hold_moved(new, token, until))
    }

    /// Whether to go on with a move that has no answer yet.
    fn goes_on(&self, new: &Half, began: BootInstant) -> bool {
        new.validity().is_valid() && self.context.clock.now() < began + MOVE_LIMIT
    }

    /// Reads the tombstone that was met, and relies on it.
    async fn rely(&self, new: Half, record: &Record) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let Some(reading) = context.source()?.read_tombstone(name).await? else {
            return Ok(Climbed::StartOver);
        };
        context.check(&reading.tombstone, name)?;
        if self.request.mode != Mode::Exclusive
            && context.target()?.age(&**new).await?.created < reading.tombstone.newest
        {
            // Its token may be smaller than those of the old store.
            return Ok(Climbed::StartOver);
        }
        let until = reading.until;
        if self.moves {
            context.keep(name, reading, record);
        }
        let token = new.token();
        Ok(self.hold_moved(new, token, until))
    }

    /// Relies on what was read before; reads it again once a minute, while the old store answers.
    async fn rely_on_earlier(&self, new: Half, reading: Reading, record: &Record) -> Result<Climbed> {
        let (context, name) = (self.context, &self.request.name);
        let mut until = reading.until;
        if context.is_outdated(&reading) {
            match context.source()?.read_tombstone(name).await {
                Ok(Some(again)) => {
                    context.check(&again.tombstone, name)?;
                    until = again.until;
                    context.keep(name, again, record);
                }
                Ok(None) => {
                    tracing::warn!(lock = name.as_str(), "the tombstone of a lock that has moved is gone");
                    context.forget(name);
                    return Ok(Climbed::StartOver);
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        let token = new.token();
        Ok(self.hold_moved(new, token, until))
    }

    fn hold_moved(&self, new: Half, token: Token, until: BootInstant) -> Climbed {
        let tombstone = ValidityCell::new(self.context.clock.clone(), until);
        Climbed::Held(Box::new(LadderLease::moved(new, token, &tombstone)))
    }

    /// Refuses tokens of the new store that are too far ahead of the clock of the old one.
    async fn check_lead(&self, token: Token) -> Result<()> {
        let (token, lead) = (token.get(), micros(LARGEST_LEAD));
        // The clock of this host says whether it is worth asking.
        if token <= u64::try_from(wall_clock().as_micros()).unwrap_or(u64::MAX).saturating_add(lead / 2) {
            return Ok(());
        }
        let clock = self.context.source()?.time(&self.request.name).await?;
        if token <= clock.saturating_add(lead) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Exhausted, BACKEND)
            .with_message(format!(
                "the token {token} of the new store is more than a day ahead of the old store's clock {clock}"
            ))
            .with_hint(
                "wait until the clock has caught up, or set it right; locks that have moved are not affected",
            ))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
