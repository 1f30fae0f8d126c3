//! Faults by probability and seed, for tests.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Layer;
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, DoctorReport, Error, ErrorKind,
    GuardState, HandOver, Lease, LockName, LockState, Locks, LossReason, Outcome, OwnerId, Released, Result,
    Revocation, Token, Validity, ValidityCell,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Injects faults, by probability and seed: for tests of the code that uses locks. Never in production.
///
/// Without an option it injects nothing. The faults:
///
/// | option | what happens |
/// |---|---|
/// | [`delay`](Self::delay) | requests are delayed before they are sent |
/// | [`not_applied`](Self::not_applied) | requests fail as [`Unavailable`](ErrorKind::Unavailable), [`NotApplied`](Outcome::NotApplied): they were not sent |
/// | [`unknown`](Self::unknown) | requests fail as `Unavailable`, [`Unknown`](Outcome::Unknown): half of them were applied |
/// | [`suspect`](Self::suspect) | the server of a held lock does not answer for a while, and then does |
/// | [`lose`](Self::lose) | a held lock is lost, as after renewals that failed, or by an operator; another client can acquire it then |
///
/// The code of these errors is `injected`. Exclusion and the order of tokens stay those of the backend below: a lock that is
/// lost here is invalid first, and then released below. An acquisition that fails as unknown is rolled back in the
/// background if it was granted; [`Locks::close`](lock_core::Locks::close) waits for that.
///
/// The same seed makes the same decisions in the order of the requests. So a test is reproducible if its requests come in
/// the same order, as with one task after the other, or on a `current_thread` runtime with paused time.
///
/// Requests are all operations of [`Locks`](lock_core::Locks) and [`Guard`](lock_core::Guard) that ask the store, except
/// for `close`. A hand-over that fails as unknown is a release.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::{GuardState, LossReason, MemoryConfig};
/// # use lock_layers::ChaosLayer;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let store = MemoryConfig::new().connect()?;
/// // Every lock is lost within 50 ms.
/// let chaos = ChaosLayer::new(7).lose(1.0, Duration::from_millis(50));
/// let locks = store.clone().layer(chaos);
/// let zombie = locks.mutex("orders/42").acquire().await?;
/// zombie.lost().await;
/// // Another client acquires it, though the guard of the lost one still lives.
/// let next = store.mutex("orders/42").acquire().await?;
/// assert!(next.token() > zombie.token());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ChaosLayer {
    seed: u64,
    odds: Odds,
}

/// The probabilities of all faults.
#[derive(Clone, Copy, Debug, Default)]
struct Odds {
    delay: f64,
    longest_delay: Duration,
    not_applied: f64,
    unknown: f64,
    suspect: f64,
    lose: f64,
    within: Duration,
    suspect_within: Duration,
}

impl ChaosLayer {
    /// A layer without faults, whose decisions follow from this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, odds: Odds::default() }
    }

    /// Delays requests with this probability, each by up to `longest`.
    ///
    /// # Panics
    ///
    /// If the probability is not between 0 and 1; so do the other options.
    #[must_use]
    pub fn delay(mut self, probability: f64, longest: Duration) -> Self {
        (self.odds.delay, self.odds.longest_delay) = (checked(probability), longest);
        self
    }

    /// Lets requests fail with this probability before they are sent.
    #[must_use]
    pub fn not_applied(mut self, probability: f64) -> Self {
        self.odds.not_applied = checked(probability);
        self
    }

    /// Lets requests fail with this probability and an unknown outcome.
    #[must_use]
    pub fn unknown(mut self, probability: f64) -> Self {
        self.odds.unknown = checked(probability);
        self
    }

    /// Makes locks that are held suspect with this probability: within this time of the grant, and for up to this time.
    #[must_use]
    pub fn suspect(mut self, probability: f64, within: Duration) -> Self {
        (self.odds.suspect, self.odds.suspect_within) = (checked(probability), within);
        self
    }

    /// Loses locks that are held with this probability, within this time of the grant. Half of them are suspect before, and
    /// lost because the deadline passed; the others were removed on the server.
    #[must_use]
    pub fn lose(mut self, probability: f64, within: Duration) -> Self {
        (self.odds.lose, self.odds.within) = (checked(probability), within);
        self
    }
}

impl Layer for ChaosLayer {
    fn layer(self, locks: Locks) -> Locks {
        let dice = Dice { odds: self.odds, rng: Mutex::new(StdRng::seed_from_u64(self.seed)) };
        let chaos = Chaos { dice: Arc::new(dice), rollbacks: TaskTracker::new() };
        locks.over(|inner| Faulty { inner, chaos })
    }
}

fn checked(probability: f64) -> f64 {
    assert!((0.0..=1.0).contains(&probability), "{probability} is no probability");
    probability
}

/// A backend with faults.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Backend>,
    chaos: Chaos,
}

/// The faults of one backend.
#[derive(Clone, Debug)]
struct Chaos {
    dice: Arc<Dice>,
    /// Of granted locks whose acquisition failed as unknown, and of lost ones.
    rollbacks: TaskTracker,
}

/// Decides on faults.
struct Dice {
    odds: Odds,
    rng: Mutex<StdRng>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
struct Fault {
    delay: Duration,
    failure: Failure,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    None,
    /// It is not sent.
    NotApplied,
    /// It is not sent, and the caller does not know.
    Lost,
    /// It is answered, and the caller does not know.
    NoReply,
}

/// What happens to a lock that is held.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Suspect {
        after: Duration,
        length: Duration,
    },
    /// Renewals fail: it is suspect, then lost.
    Expires {
        after: Duration,
        suspect: Duration,
    },
    Removed {
        after: Duration,
    },
}

impl Dice {
    fn fault(&self) -> Fault {
        let (odds, mut rng) = (&self.odds, self.rng.lock().unwrap_or_else(PoisonError::into_inner));
        let delay = match rng.random_bool(odds.delay) {
            true => odds.longest_delay.mul_f64(rng.random()),
            false => Duration::ZERO,
        };
        let failure = if rng.random_bool(odds.not_applied) {
            Failure::NotApplied
        } else if rng.random_bool(odds.unknown) {
            if rng.random() { Failure::Lost } else { Failure::NoReply }
        } else {
            Failure::None
        };
        Fault { delay, failure }
    }

    fn fate(&self) -> Option<Fate> {
        let (odds, mut rng) = (&self.odds, self.rng.lock().unwrap_or_else(PoisonError::into_inner));
        if rng.random_bool(odds.lose) {
            let after = odds.within.mul_f64(rng.random());
            let suspect = after.mul_f64(rng.random());
            return Some(match rng.random() {
                true => Fate::Expires { after: after - suspect, suspect },
                false => Fate::Removed { after },
            });
        }
        rng.random_bool(odds.suspect).then(|| Fate::Suspect {
            after: odds.suspect_within.mul_f64(rng.random()),
            length: odds.suspect_within.mul_f64(rng.random()),
        })
    }

    /// Runs a request that may be sent again after an unknown outcome.
    async fn send<T>(
        &self,
        backend: &'static str,
        operation: &'static str,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let failure = self.before(backend, operation).await?;
        let answered = request.await?;
        failure.after(backend, operation, answered)
    }

    /// Delays a request, and fails if it is not sent.
    async fn before(&self, backend: &'static str, operation: &'static str) -> Result<Failure> {
        let fault = self.fault();
        if !fault.delay.is_zero() {
            sleep(fault.delay).await;
        }
        match fault.failure {
            Failure::NotApplied => Err(injected(backend, operation, Outcome::NotApplied)),
            Failure::Lost => Err(injected(backend, operation, Outcome::Unknown)),
            failure => Ok(failure),
        }
    }
}

impl Failure {
    fn after<T>(self, backend: &'static str, operation: &'static str, answered: T) -> Result<T> {
        match self {
            Self::NoReply => Err(injected(backend, operation, Outcome::Unknown)),
            _ => Ok(answered),
        }
    }
}

fn injected(backend: &'static str, operation: &'static str, outcome: Outcome) -> Error {
    let message = match outcome {
        Outcome::NotApplied => "the chaos layer did not send the request",
        _ => "the chaos layer lost the request or its reply",
    };
    Error::new(ErrorKind::Unavailable, backend)
        .with_message(message)
        .with_hint("handle it as an outage of the server, or remove the layer")
        .with_code("injected")
        .with_outcome(outcome)
        .during(operation)
}

impl Faulty {
    fn backend(&self) -> &'static str {
        self.inner.capabilities().backend
    }

    async fn call<T: Send>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.chaos.dice.send(self.backend(), operation, request).await
    }
}

/// Everything but migrations: a store of a migration expects its own leases, not those of a layer.
#[async_trait]
impl Backend for Faulty {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn connect(&self) -> Result<()> {
        self.call("connect", self.inner.connect()).await
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let (backend, chaos) = (self.backend(), &self.chaos);
        let failure = chaos.dice.before(backend, "acquire").await?;
        match self.inner.acquire(request).await? {
            Acquired::Held(lease) if failure == Failure::NoReply => {
                let below = AsyncMutex::new(Below::new(lease));
                chaos.rollbacks.spawn(async move { release(&below).await });
                Err(injected(backend, "acquire", Outcome::Unknown))
            }
            Acquired::Held(lease) => Ok(Acquired::Held(Box::new(ChaosLease::new(lease, backend, chaos)))),
            other => failure.after(backend, "acquire", other),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.call("inspect", self.inner.inspect(name)).await
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        self.call("await change", self.inner.await_change(name, seen)).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.call("break", self.inner.break_lock(name)).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.call("break", self.inner.break_lock_if(name, token)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.call("list", self.inner.list(prefix)).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.call("request revocation", self.inner.request_revocation(name)).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.call("doctor", self.inner.doctor()).await
    }

    async fn settle(&self) {
        self.chaos.rollbacks.close();
        self.chaos.rollbacks.wait().await;
        self.inner.settle().await;
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

/// Releases a lease until that is answered, or cannot be.
async fn release(below: &AsyncMutex<Below>) {
    let mut pause = FIRST_RETRY;
    loop {
        // Not locked during the pause: the caller may release it, too.
        let released = below.lock().await.release().await;
        match released {
            Err(error) if error.kind() != ErrorKind::Closed => sleep(pause).await,
            _ => return,
        }
        pause = (pause * 2).min(LAST_RETRY);
    }
}

/// A lease whose requests may fail, and which may be lost.
///
/// It is never passed on without the server, so that each hand-over meets the faults.
struct ChaosLease {
    token: Token,
    owner: OwnerId,
    revocation: Option<Revocation>,
    backend_specific: Option<Arc<dyn Any + Send + Sync>>,
    /// That of the faults, and of the lease below. In this order: the reason of a lost lock is that of the fault.
    validity: Validity,
    faults: ValidityCell,
    backend: &'static str,
    chaos: Chaos,
    below: Arc<AsyncMutex<Below>>,
    /// Ends the task that would lose the lock.
    _ends: DropGuard,
}

/// The lease below, which the task that loses the lock releases, too.
struct Below {
    lease: Box<dyn Lease>,
    /// The answer to the release, also if the caller never got it: that is final.
    released: Option<Released>,
    is_downgraded: bool,
}

impl ChaosLease {
    fn new(lease: Box<dyn Lease>, backend: &'static str, chaos: &Chaos) -> Self {
        let faults = ValidityCell::new(Clock::boot(), BootInstant::NEVER);
        let ended = CancellationToken::new();
        let (token, owner, backend_specific) = (lease.token(), lease.owner(), lease.backend_specific());
        let (revocation, validity) =
            (lease.revocation().cloned(), faults.validity().and(lease.validity().clone()));
        let lease = Self {
            token,
            owner,
            revocation,
            backend_specific,
            validity,
            faults,
            backend,
            chaos: chaos.clone(),
            below: Arc::new(AsyncMutex::new(Below::new(lease))),
            _ends: ended.clone().drop_guard(),
        };
        if let Some(fate) = chaos.dice.fate() {
            let (faults, below) = (lease.faults.clone(), Arc::clone(&lease.below));
            drop(tokio::spawn(befall(fate, ended, faults, below, chaos.rollbacks.clone())));
        }
        lease
    }

    fn was_lost(&self) -> bool {
        matches!(self.faults.validity().state(), GuardState::Lost(reason) if reason != LossReason::Released)
    }

    fn check(&self) -> Result<()> {
        if self.was_lost() { Err(Error::lost(self.backend)) } else { Ok(()) }
    }

    async fn end(&self, below: &mut Below, was_lost: bool, failure: Failure) -> Result<Released> {
        let released = below.release().await?;
        self.faults.lose(LossReason::Released);
        failure.after(self.backend, "release", if was_lost { Released::AlreadyLost } else { released })
    }
}

impl Below {
    fn new(lease: Box<dyn Lease>) -> Self {
        Self { lease, released: None, is_downgraded: false }
    }

    async fn release(&mut self) -> Result<Released> {
        match self.released {
            Some(released) => Ok(released),
            None => Ok(*self.released.insert(self.lease.release().await?)),
        }
    }
}

/// Lets the fate of a lock happen, unless its lease ends before. A lost lock is invalid before it is released.
async fn befall(
    fate: Fate,
    ended: CancellationToken,
    faults: ValidityCell,
    below: Arc<AsyncMutex<Below>>,
    rollbacks: TaskTracker,
) {
    let happens = async {
        match fate {
            Fate::Suspect { after, length } => {
                sleep(after).await;
                faults.suspect();
                sleep(length).await;
                faults.set_until(BootInstant::NEVER);
                None
            }
            Fate::Expires { after, suspect } => {
                sleep(after).await;
                faults.suspect();
                sleep(suspect).await;
                Some(LossReason::DeadlinePassed)
            }
            Fate::Removed { after } => {
                sleep(after).await;
                Some(LossReason::Removed)
            }
        }
    };
    let lost = tokio::select! {
        biased;
        () = ended.cancelled() => return,
        lost = happens => lost,
    };
    let Some(reason) = lost else { return };
    faults.lose(reason);
    let _counted = rollbacks.token();
    release(&below).await;
}

#[async_trait]
impl Lease for ChaosLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        self.revocation.as_ref()
    }

    /// `None` also while a request is under way.
    #[cfg(unix)]
    fn locked_file(&self) -> Option<std::os::fd::OwnedFd> {
        self.below.try_lock().ok()?.lease.locked_file()
    }

    /// Without faults: its requests go past this lease.
    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.backend_specific.clone()
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.check()?;
        let request = async { self.below.lock().await.lease.extend(ttl).await };
        let until = self.chaos.dice.send(self.backend, "extend", request).await?;
        self.check().map(|()| until)
    }

    async fn leave(&self, ttl: Duration) -> Result<BootInstant> {
        self.check()?;
        let request = async { self.below.lock().await.lease.leave(ttl).await };
        let until = self.chaos.dice.send(self.backend, "extend", request).await?;
        self.check().map(|()| until)
    }

    async fn verify(&self) -> Result<GuardState> {
        let request = async { self.below.lock().await.lease.verify().await };
        let state = self.chaos.dice.send(self.backend, "verify", request).await?;
        Ok(if self.was_lost() { self.validity.state() } else { state })
    }

    async fn release(&mut self) -> Result<Released> {
        let was_lost = self.was_lost();
        let failure = self.chaos.dice.before(self.backend, "release").await?;
        let mut below = self.below.lock().await;
        self.end(&mut below, was_lost, failure).await
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        let was_lost = self.was_lost();
        let failure = self.chaos.dice.before(self.backend, "hand over").await?;
        let mut below = self.below.lock().await;
        if was_lost || failure == Failure::NoReply || below.released.is_some() {
            return Ok(HandOver::Released(self.end(&mut below, was_lost, failure).await?));
        }
        match below.lease.hand_over(next).await? {
            HandOver::HandedOver(lease) => {
                below.released = Some(Released::Released);
                self.faults.lose(LossReason::Released);
                Ok(HandOver::HandedOver(Box::new(Self::new(lease, self.backend, &self.chaos))))
            }
            HandOver::Released(released) => {
                below.released = Some(released);
                self.faults.lose(LossReason::Released);
                Ok(HandOver::Released(released))
            }
            other => Ok(other),
        }
    }

    async fn downgrade(&mut self) -> Result<()> {
        self.check()?;
        let failure = self.chaos.dice.before(self.backend, "downgrade").await?;
        let mut below = self.below.lock().await;
        self.check()?;
        if !below.is_downgraded {
            below.lease.downgrade().await?;
            below.is_downgraded = true;
        }
        failure.after(self.backend, "downgrade", ())
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        self.check()?;
        let request = async { self.below.lock().await.lease.raise_token(floor).await };
        self.chaos.dice.send(self.backend, "raise token", request).await
    }
}

/// Without the owner id.
impl fmt::Debug for ChaosLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChaosLease")
            .field("token", &self.token)
            .field("state", &self.validity.state())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Dice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dice").field("odds", &self.odds).finish_non_exhaustive()
    }
}
