//! A backend whose leases do what a test says: they are suspect, renewed or lost, and hand-overs go through it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, Error, ErrorKind, Guard, GuardState,
    HandOver, Lease, LeaseKind, LeasePolicy, LockName, LockState, Locks, LossReason, OwnerId, OwnerInfo,
    Released, Result, Token, Validity, ValidityCell, Wait,
};

/// What is in no log line, label or text.
pub const SECRET: &str = "hunter2";

/// Locks of this name go from task to task without the store.
pub const PASSED_ON: &str = "passed on";

/// A request that does not wait.
pub fn request(name: &str) -> AcquireRequest {
    let (name, owner) = (LockName::new(name).unwrap(), Arc::new(OwnerInfo::this_process()));
    AcquireRequest::exclusive(name, Wait::Never, LeasePolicy::default(), owner)
}

/// The lease of a lock that was granted.
pub async fn lease(backend: &dyn Backend, name: &str) -> Box<dyn Lease> {
    match backend.acquire(request(name)).await {
        Ok(Acquired::Held(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

/// The holder that waits for the lock while the first one releases it.
pub async fn next_of(locks: &Locks, name: &str, first: Guard) -> Guard {
    let mutex = locks.mutex(name);
    let releases = async {
        tokio::task::yield_now().await;
        first.release().await
    };
    tokio::join!(mutex.acquire(), releases).0.unwrap()
}

/// The lease that was granted last.
#[derive(Clone, Debug, Default)]
pub struct LastLease(Arc<Mutex<Option<StageLease>>>);

impl LastLease {
    pub fn get(&self) -> StageLease {
        self.0.lock().unwrap().clone().expect("a lease was granted")
    }
}

/// Grants every request.
#[derive(Debug)]
pub struct Stage {
    capabilities: Capabilities,
    pub last: LastLease,
    pub password: &'static str,
}

/// A lease, of which the test has a clone.
#[derive(Clone, Debug)]
pub struct StageLease {
    token: u64,
    pub name: LockName,
    pub owner: OwnerId,
    pub cell: ValidityCell,
    validity: Validity,
    last: LastLease,
}

impl Stage {
    pub fn new() -> Self {
        let kind = LeaseKind::ttl(Duration::from_secs(30), Duration::from_secs(5));
        Self { capabilities: Capabilities::new("stage", kind), last: LastLease::default(), password: SECRET }
    }
}

impl StageLease {
    fn new(token: u64, name: &LockName, last: &LastLease) -> Self {
        let clock = Clock::boot();
        let cell = ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(30));
        let (owner, validity) = (OwnerId::random(), cell.validity());
        let lease = Self { token, name: name.clone(), owner, cell, validity, last: last.clone() };
        *last.0.lock().unwrap() = Some(lease.clone());
        lease
    }
}

#[async_trait]
impl Backend for Stage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        match request.name.as_str() {
            "busy" => Ok(Acquired::Busy),
            "never" => std::future::pending().await,
            "down" => Err(Error::new(ErrorKind::Unavailable, "stage")
                .with_message("no answer")
                .with_code("timeout")),
            _ => Ok(Acquired::Held(Box::new(StageLease::new(1, &request.name, &self.last)))),
        }
    }

    async fn inspect(&self, _: &LockName) -> Result<LockState> {
        Err(Error::new(ErrorKind::Denied, "stage").with_message("no right"))
    }

    async fn break_lock(&self, _: &LockName) -> Result<bool> {
        Ok(false)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Lease for StageLease {
    fn token(&self) -> Token {
        Token::new(self.token)
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, _: Duration) -> Result<BootInstant> {
        Err(Error::new(ErrorKind::Unavailable, "stage").with_message("no answer"))
    }

    async fn verify(&self) -> Result<GuardState> {
        Ok(self.validity.state())
    }

    async fn release(&mut self) -> Result<Released> {
        let was_valid = self.validity.is_valid();
        self.cell.lose(LossReason::Released);
        Ok(if was_valid { Released::Released } else { Released::AlreadyLost })
    }

    fn pass_on(&mut self, is_token_known: bool) -> bool {
        let passes = self.name.as_str().ends_with(PASSED_ON) && !is_token_known;
        self.token += u64::from(passes);
        passes
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        self.cell.lose(LossReason::Released);
        Ok(HandOver::HandedOver(Box::new(Self::new(self.token + 1, &next.name, &self.last))))
    }
}
