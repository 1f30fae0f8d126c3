//! One lock that was granted, and the task that looks after it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    BootInstant, Capabilities, Clock, Error, ErrorKind, GuardState, Lease, LeasePolicy, LossReason, OwnerId,
    Released, Result, Token, Validity, ValidityCell,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::acquire::Grant;
use crate::error::{BACKEND, no_thread};
use crate::file_name::Paths;
use crate::ledger::Ledger;
use crate::lock_file::{FileId, LockFile, Sharing};

/// A lock is looked at so often within a session timeout.
const LOOKS: u32 = 3;

/// The tasks that look after the locks of one backend.
#[derive(Debug)]
pub(crate) struct Keepers {
    session_timeout: Duration,
    steps: TaskTracker,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// What the lease and its keeper share.
#[derive(Debug)]
struct Hold {
    paths: Paths,
    token: Token,
    id: FileId,
    /// None once the lock was given up or lost.
    file: Mutex<Option<LockFile>>,
    cell: ValidityCell,
    session_timeout: Duration,
    /// The end of a lock with a fixed time to live.
    end: Mutex<BootInstant>,
    /// The end that no extension moves.
    max_hold: BootInstant,
}

#[derive(Debug)]
pub(crate) struct FlockLease {
    /// The only reference that lasts: the file is unlocked when it is dropped.
    hold: Arc<Hold>,
    validity: Validity,
    owner: OwnerId,
    renewed: bool,
    /// Tells the keeper that the end was moved.
    moved: Arc<Notify>,
    steps: TaskTracker,
    keeper: AbortHandle,
    capabilities: Capabilities,
}

impl Drop for FlockLease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Keepers {
    pub(crate) fn new(session_timeout: Duration, steps: TaskTracker, closed: CancellationToken) -> Self {
        Self { session_timeout, steps, tasks: TaskTracker::new(), closed }
    }

    /// Waits until no lock is held, after the backend was closed.
    pub(crate) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl FlockLease {
    pub(crate) fn new(
        grant: Grant,
        paths: Paths,
        policy: LeasePolicy,
        keepers: &Keepers,
        capabilities: &Capabilities,
    ) -> Self {
        let start = grant.looked;
        let fixed = policy.ttl.filter(|_| !policy.renewed);
        let hold = Arc::new(Hold {
            paths,
            token: grant.token,
            id: grant.file.id().clone(),
            file: Mutex::new(Some(grant.file)),
            cell: ValidityCell::new(Clock::boot(), start + keepers.session_timeout),
            session_timeout: keepers.session_timeout,
            end: Mutex::new(fixed.map_or(BootInstant::NEVER, |ttl| start + ttl)),
            max_hold: policy.max_hold.map_or(BootInstant::NEVER, |hold| start + hold),
        });
        hold.confirm(start);
        let moved = Arc::new(Notify::new());
        let keeper = Keeper {
            hold: Arc::downgrade(&hold),
            moved: Arc::clone(&moved),
            closed: keepers.closed.clone(),
            steps: keepers.steps.clone(),
        };
        let keeper = keepers.tasks.spawn(keeper.keep()).abort_handle();
        Self {
            validity: hold.cell.validity(),
            hold,
            owner: OwnerId::random(),
            renewed: policy.renewed,
            moved,
            steps: keepers.steps.clone(),
            keeper,
            capabilities: capabilities.clone(),
        }
    }

    /// Takes a step in a thread of its own, which runs to its end when the future is dropped.
    async fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Hold) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let hold = Arc::clone(&self.hold);
        self.steps.spawn_blocking(move || step(&hold)).await.map_err(no_thread)?
    }
}

#[async_trait]
impl Lease for FlockLease {
    fn token(&self) -> Token {
        self.hold.token
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn locked_file(&self) -> Option<OwnedFd> {
        self.hold.file().as_ref()?.file().try_clone().ok().map(OwnedFd::from)
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.capabilities.check_lease_ttl(ttl)?;
        let start = Clock::boot().now();
        let is_fixed = !self.renewed;
        self.step(move |hold| {
            hold.must_be_held()?;
            if is_fixed {
                *hold.end() = start + ttl;
            }
            hold.confirm(start);
            Ok(())
        })
        .await?;
        self.moved.notify_one();
        if self.validity.is_valid() { Ok(self.validity.until()) } else { Err(Error::lost(BACKEND)) }
    }

    async fn verify(&self) -> Result<GuardState> {
        let start = Clock::boot().now();
        self.step(move |hold| hold.look(start)).await?;
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        self.step(Hold::downgrade).await
    }

    async fn release(&mut self) -> Result<Released> {
        self.step(Hold::release).await
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        if floor.get() >= i64::MAX as u64 {
            return Err(Error::new(ErrorKind::Exhausted, BACKEND)
                .with_message(format!("no token is larger than {floor}"))
                .with_hint("raise the tokens to a smaller number")
                .with_can_pass(false));
        }
        self.step(move |hold| {
            hold.must_be_held()?;
            Ledger::lock(&hold.paths)?.raise(floor.get())
        })
        .await
    }
}

impl Hold {
    fn file(&self) -> MutexGuard<'_, Option<LockFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> MutexGuard<'_, BootInstant> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end that is known already, and the reason for which it will be one.
    fn known_end(&self) -> (BootInstant, LossReason) {
        let end = *self.end();
        if self.max_hold <= end {
            (self.max_hold, LossReason::MaxHold)
        } else {
            (end, LossReason::DeadlinePassed)
        }
    }

    /// Notes that the lock was held at this moment.
    fn confirm(&self, looked: BootInstant) {
        let (end, reason) = self.known_end();
        let until = looked + self.session_timeout;
        self.cell.end_with(if until < end { LossReason::DeadlinePassed } else { reason });
        self.cell.set_until(until.min(end));
    }

    /// Looks whether the file is still the one that others lock, and gives the lock up if not.
    fn look(&self, now: BootInstant) -> Result<()> {
        if self.id.is_current()? {
            self.confirm(now);
        } else {
            self.give_up(LossReason::Removed);
        }
        // A look that came too late confirms nothing.
        if !self.cell.validity().is_valid() {
            self.give_up(LossReason::DeadlinePassed);
        }
        Ok(())
    }

    fn must_be_held(&self) -> Result<()> {
        self.look(Clock::boot().now())?;
        if self.file().is_some() { Ok(()) } else { Err(Error::lost(BACKEND)) }
    }

    /// Ends the validity, then unlocks the file, and returns whether it was locked until now.
    fn give_up(&self, reason: LossReason) -> bool {
        self.cell.lose(reason);
        self.file().take().is_some()
    }

    fn release(&self) -> Result<Released> {
        let is_valid = self.cell.validity().is_valid();
        // What cannot be looked at may be lost.
        let was_ours = is_valid && self.id.is_current().unwrap_or(false);
        let was_held = self.give_up(LossReason::Released);
        if was_held {
            // For people, and the next holder overwrites it. So an error is none: the lock is free.
            drop(self.forget_holder());
        }
        Ok(if was_held && was_ours { Released::Released } else { Released::AlreadyLost })
    }

    /// Removes this holder from the ledger.
    fn forget_holder(&self) -> Result<()> {
        let Some(mut ledger) = Ledger::lock_existing(&self.paths)? else { return Ok(()) };
        let mut holders = std::mem::take(&mut ledger.holders);
        holders.retain(|record| record.token != self.token.get());
        ledger.set_holders(holders)
    }

    /// Shares the file from now on. The kernel unlocks it first: nobody takes a step on this lock meanwhile, but a program
    /// that knows nothing of the ledger may.
    fn downgrade(&self) -> Result<()> {
        let mut ledger = Ledger::lock(&self.paths)?;
        self.must_be_held()?;
        let is_shared = match &*self.file() {
            Some(file) => {
                let is_shared = file.try_lock(Sharing::Shared)?;
                file.touch();
                is_shared
            }
            None => false,
        };
        if !is_shared {
            self.give_up(LossReason::Removed);
            return Err(Error::lost(BACKEND));
        }
        let mut holders = std::mem::take(&mut ledger.holders);
        holders.iter_mut().for_each(|record| record.shared |= record.token == self.token.get());
        // For people only: the lock is shared already.
        drop(ledger.set_holders(holders));
        Ok(())
    }
}

/// Looks after one lock: confirms it, ends it, or finds out that it was lost.
struct Keeper {
    hold: Weak<Hold>,
    moved: Arc<Notify>,
    closed: CancellationToken,
    steps: TaskTracker,
}

impl Keeper {
    /// Until the lock has ended, or the lease was dropped.
    async fn keep(self) {
        let (clock, mut looked) = (Clock::boot(), Clock::boot().now());
        while let Some((end, reason, look)) = self.plan(looked) {
            let now = clock.now();
            if now >= end {
                return self.give_up(reason);
            }
            if now >= look {
                looked = now;
                let Some(hold) = self.hold.upgrade() else { return };
                // A look that failed confirms nothing: the next one may.
                drop(self.steps.spawn_blocking(move || hold.look(now)).await);
                continue;
            }
            tokio::select! {
                () = self.closed.cancelled() => return self.give_up(LossReason::SessionEnded),
                () = self.moved.notified() => {}
                () = clock.sleep_until(look.min(end)) => {}
            }
        }
    }

    /// The end and its reason, and the next look; `None` after the end.
    fn plan(&self, looked: BootInstant) -> Option<(BootInstant, LossReason, BootInstant)> {
        let hold = self.hold.upgrade()?;
        let is_held = hold.file().is_some();
        let (end, reason) = hold.known_end();
        is_held.then(|| (end, reason, looked + hold.session_timeout / LOOKS))
    }

    fn give_up(&self, reason: LossReason) {
        if let Some(hold) = self.hold.upgrade() {
            hold.give_up(reason);
        }
    }
}
