//! A third-party backend, written with nothing but what `polylock` exports.

use std::sync::Arc;
use std::time::Duration;

use polylock::backend::renewal::{Answered, Due, Renew, Renewed, Renewer, Terms};
use polylock::backend::{
    AcquireRequest, Acquired, Backend, HandOver, Lease, Revocation, RevocationCell, Support, ValidityCell,
    async_trait,
};
use polylock::{
    BootInstant, CancellationToken, Capabilities, Clock, Error, ErrorKind, Guard, GuardState, LeaseKind,
    LockName, LockState, Locks, LossReason, OwnerId, Released, Result, RunError, Token, Validity,
};
use tokio::sync::{Mutex, OwnedMutexGuard};

const TTL: Duration = Duration::from_secs(30);

/// One lock for all names.
#[derive(Debug)]
struct OneLock {
    capabilities: Capabilities,
    last: Arc<Mutex<u64>>,
}

#[derive(Debug)]
struct OneLease {
    last: Option<OwnedMutexGuard<u64>>,
    token: Token,
    owner: OwnerId,
    cell: ValidityCell,
    validity: Validity,
    wish: RevocationCell,
    revocation: Revocation,
}

#[async_trait]
impl Backend for OneLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.capabilities.check_mode(request.mode)?;
        let last = match request.wait.left() {
            None => Some(Arc::clone(&self.last).lock_owned().await),
            Some(left) => tokio::time::timeout(left, Arc::clone(&self.last).lock_owned()).await.ok(),
        };
        let Some(mut last) = last else { return Ok(Acquired::Busy) };
        *last += 1;
        let clock = Clock::boot();
        let cell = ValidityCell::new(clock.clone(), clock.now() + TTL);
        let wish = RevocationCell::new();
        Ok(Acquired::Held(Box::new(OneLease {
            token: Token::new(*last),
            last: Some(last),
            owner: OwnerId::random(),
            validity: cell.validity(),
            cell,
            revocation: wish.revocation(),
            wish,
        })))
    }

    async fn inspect(&self, _: &LockName) -> Result<LockState> {
        Ok(LockState::free())
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        Err(Error::new(ErrorKind::Unsupported, "one").with_message("it is never broken").on(name))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Lease for OneLease {
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
        Some(&self.revocation)
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.cell.set_until(Clock::boot().now() + ttl);
        Ok(self.validity.until())
    }

    async fn verify(&self) -> Result<GuardState> {
        Ok(self.validity.state())
    }

    async fn release(&mut self) -> Result<Released> {
        self.wish.request();
        self.cell.lose(LossReason::Released);
        Ok(self.last.take().map_or(Released::AlreadyLost, |_| Released::Released))
    }

    async fn hand_over(&mut self, _: &AcquireRequest) -> Result<HandOver> {
        Ok(HandOver::Released(self.release().await?))
    }
}

#[tokio::test]
async fn a_backend_of_somebody_elses_needs_no_other_crate() {
    // Time: the shortest lease.
    let kind = LeaseKind::ttl(TTL, Duration::from_millis(1));
    let mut capabilities = Capabilities::new("one", kind);
    capabilities.revocation = Support::Yes;
    let backend: Arc<dyn Backend> = Arc::new(OneLock { capabilities, last: Arc::default() });
    let locks = Locks::from(backend);
    let first = locks.mutex("a").acquire().await.unwrap();
    assert!(locks.mutex("b").try_acquire().await.unwrap().is_none());
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Released::Released);
    let second = locks.mutex("b").acquire().await.unwrap();
    assert!(second.token() > token);
    assert_eq!(run(&second, second.cancellation_token()).await.unwrap(), 7);
    drop(second);
    takes_either(&locks);
}

#[tokio::test]
async fn a_backend_that_says_more_than_it_can_is_told_so() {
    // Time: the shortest lease.
    let kind = LeaseKind::ttl(TTL, Duration::from_millis(1));
    let mut capabilities = Capabilities::new("one", kind);
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities.revocation = Support::Yes;
    let locks = Locks::from(Arc::new(OneLock { capabilities, last: Arc::default() }) as Arc<dyn Backend>);
    for (method, error) in [
        ("break_lock_if", locks.break_lock_if("a", Token::new(1)).await.map(drop)),
        ("list", locks.list("").await.map(drop)),
        ("request_revocation", locks.request_revocation("a").await.map(drop)),
    ] {
        let error = error.expect_err(method);
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
        assert!(error.to_string().contains(method), "{error}");
    }
}

/// What `run` fails with, and the token that says so elsewhere, have names.
async fn run(guard: &Guard, cancelled: CancellationToken) -> Result<u32, RunError<u32>> {
    guard.run(async { if cancelled.is_cancelled() { 0 } else { 7 } }).await
}

/// Leases that last for ever.
struct Always;

#[async_trait]
impl Renew for Always {
    type Key = u32;

    async fn renew(&self, batch: &[Due<u32>], answered: &dyn Answered<Renewed>) {
        for (at, due) in batch.iter().enumerate() {
            answered(at, Renewed::Until(Clock::boot().now() + due.ttl));
        }
    }
}

#[tokio::test]
async fn leases_of_somebody_elses_are_renewed_by_what_renews_ours() {
    let clock = Clock::boot();
    let renewer = Renewer::new(Always, clock.clone());
    let mut terms = Terms::new(TTL);
    assert!(terms.auto && terms.hold_until == BootInstant::NEVER);
    terms.hold_until = clock.now() + 2 * TTL;
    let renewal = renewer.add(1, terms, ValidityCell::new(clock.clone(), clock.now() + TTL));
    let until = renewal.extend(3 * TTL).await.deadline("one").unwrap();
    assert!(until > clock.now() + TTL && until <= clock.now() + 2 * TTL, "{until:?}");
    assert_eq!(Renewed::Lost.deadline("one").unwrap_err().backend(), "one");
}

/// What typed configurations connect to has a name, and ours is taken for it.
fn takes_either(locks: &polylock::backend::Locks) {
    assert_eq!(locks.capabilities().backend, "one");
}
