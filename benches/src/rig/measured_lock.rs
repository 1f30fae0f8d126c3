//! The seam between scenarios and locks: ours, those of peers, and the bare hand-over.

use lock_testkit::history::ReleaseOutcome;
use lock_testkit::now_ns;
use polylock::{ErrorKind, Guard, Mutex};

use crate::data::events::outcome;
use crate::data::{EventLog, Failure, GrantInfo, Outcome, TimedHold};
use crate::rig::floor::Floor;

/// A lock that a scenario acquires and releases over and over.
pub(crate) trait MeasuredLock: Sync {
    type Held: Send;

    fn acquire(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome<ReleaseOutcome>> + Send;

    /// The token and deadline of the grant, where the lock has them.
    fn grant_info(_held: &Self::Held) -> GrantInfo {
        GrantInfo::default()
    }
}

impl MeasuredLock for Mutex {
    type Held = Guard;

    async fn acquire(&self) -> Outcome<Guard> {
        Ok(Self::acquire(self).await?)
    }

    async fn release(&self, held: Guard) -> Outcome<ReleaseOutcome> {
        Ok(outcome(held.release().await?))
    }

    fn grant_info(held: &Guard) -> GrantInfo {
        GrantInfo::of(held)
    }
}

pub(crate) async fn hold_once<L: MeasuredLock>(lock: &L) -> Outcome<TimedHold> {
    let called_ns = now_ns();
    let held = lock.acquire().await?;
    let (acquired_ns, grant) = (now_ns(), L::grant_info(&held));
    let release_called_ns = now_ns();
    let released = lock.release(held).await?;
    let released_ns = now_ns();
    Ok(TimedHold { called_ns, acquired_ns, grant, release_called_ns, released_ns, released })
}

/// A lock that is acquired and released in turn, in the place of a floor.
///
/// It fails when a fencing token does not grow, and when the lock is lost before its release: answers that reach the wrong
/// one of many tasks would show here.
#[derive(Debug)]
pub(crate) struct InTurn<L: MeasuredLock> {
    lock: L,
    held: Option<L::Held>,
    last_token: Option<u64>,
}

impl<L: MeasuredLock> InTurn<L> {
    pub(crate) const fn new(lock: L) -> Self {
        Self { lock, held: None, last_token: None }
    }
}

impl<L: MeasuredLock + Send> Floor for InTurn<L> {
    async fn acquire(&mut self) -> Outcome<()> {
        let held = self.lock.acquire().await?;
        let token = L::grant_info(&held).token;
        if token.is_some() && token <= self.last_token {
            let last = self.last_token;
            return Err(Failure::new(format!("the fencing token {token:?} is not larger than {last:?}")));
        }
        (self.held, self.last_token) = (Some(held), token);
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        match self.lock.release(held).await? {
            ReleaseOutcome::AlreadyLost => Err(Failure::new("a lock was lost before its release")),
            _ => Ok(()),
        }
    }
}

/// Acquires a lock, holds it meanwhile, and releases it.
pub(crate) async fn hold_through(
    mutex: &Mutex,
    log: &mut EventLog,
    meanwhile: impl Future<Output = Outcome<()>>,
) -> Outcome<()> {
    log.acquire_called();
    let guard = mutex.acquire().await?;
    log.acquired(&guard);
    meanwhile.await?;
    log.release_called();
    log.released(guard.release().await?);
    Ok(())
}

/// Has a rival try to acquire a lock that another client holds.
pub(crate) async fn challenge(rival: &Mutex, log: &mut EventLog) -> Outcome<()> {
    log.acquire_called();
    match rival.try_acquire().await {
        Ok(None) => log.refused(),
        // A client of the old store alone, in a migration.
        Err(error) if error.kind() == ErrorKind::Moved => log.refused(),
        Err(error) => return Err(error.into()),
        Ok(Some(stolen)) => {
            log.acquired(&stolen);
            log.release_called();
            log.released(stolen.release().await?);
        }
    }
    Ok(())
}
