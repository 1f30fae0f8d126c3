//! Who asks for a lock: what mutexes, read/write locks and semaphores have in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::guard::Role;
use crate::locks::Shared;
use crate::queue::Come;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Guard, LeasePolicy, LockName, LockOptions, Mode, OnQueued,
    OwnerInfo, Result, Wait,
};

/// One lock in one mode. A handle, which holds nothing itself.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    shared: Arc<Shared>,
    spec: Result<Spec>,
}

#[derive(Clone, Debug)]
struct Spec {
    name: LockName,
    mode: Mode,
    lease: LeasePolicy,
    owner: Arc<OwnerInfo>,
    writes: bool,
    on_queued: Option<OnQueued>,
}

impl Contender {
    pub(crate) fn new(shared: Arc<Shared>, name: &str, mode: Mode, options: &LockOptions) -> Self {
        let spec = Spec::new(&shared, name, mode, options);
        Self { shared, spec }
    }

    /// The same lock, as the write side of a read/write lock.
    pub(crate) fn that_writes(mut self) -> Self {
        if let Ok(spec) = &mut self.spec {
            spec.writes = true;
        }
        self
    }

    /// One that can never acquire its lock, for this reason.
    pub(crate) fn refused(shared: Arc<Shared>, why: Error) -> Self {
        Self { shared, spec: Err(why) }
    }

    /// Why this lock can never be acquired, if so.
    pub(crate) fn check(&self) -> Result<()> {
        self.spec.as_ref().map(drop).map_err(Clone::clone)
    }

    pub(crate) async fn acquire(&self) -> Result<Guard> {
        match self.acquire_within(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(ErrorKind::Unexpected, self.shared.backend_name())
                .with_message("the backend gave up a wait without a deadline")
                .during("acquire")),
        }
    }

    pub(crate) async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.acquire_within(Wait::Never).await
    }

    pub(crate) async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        let wait = Instant::now().checked_add(patience).map_or(Wait::Forever, Wait::Until);
        self.acquire_within(wait).await
    }

    pub(crate) async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.acquire_within(Wait::Until(deadline)).await
    }

    async fn acquire_within(&self, wait: Wait) -> Result<Option<Guard>> {
        let spec = self.spec.as_ref().map_err(Clone::clone)?;
        self.shared.take(spec, wait).await.map_err(|error| error.during("acquire").on(&spec.name))
    }
}

impl Spec {
    fn new(shared: &Shared, name: &str, mode: Mode, options: &LockOptions) -> Result<Self> {
        let name = LockName::new(name)?;
        let capabilities = shared.backend.capabilities();
        let fits = capabilities.check_mode(mode).and_then(|()| capabilities.check(options.lease));
        fits.map_err(|error| error.on(&name))?;
        let owner = match &options.label {
            Some(label) => Arc::new(OwnerInfo::clone(&shared.owner).with_label(label)),
            None => Arc::clone(&shared.owner),
        };
        let on_queued = options.on_queued.clone();
        Ok(Self { name, mode, lease: options.lease, owner, writes: false, on_queued })
    }

    fn request(&self, wait: Wait) -> AcquireRequest {
        let owner = Arc::clone(&self.owner);
        let request = AcquireRequest::exclusive(self.name.clone(), wait, self.lease, owner);
        AcquireRequest {
            writes: self.writes,
            on_queued: self.on_queued.clone(),
            ..request.in_mode(self.mode)
        }
    }
}

impl Shared {
    async fn take(&self, spec: &Spec, wait: Wait) -> Result<Option<Guard>> {
        let runtime = self.origin.runtimes.enter()?;
        let come = match wait {
            _ if wait.is_over() => self.queue.try_turn(&spec.name, spec.mode).map(Come::Turn),
            _ => self.wait_for_turn(spec, wait, &runtime).await,
        };
        let turn = match come {
            Some(Come::Turn(turn)) => turn,
            Some(Come::Guard(guard)) => return Ok(Some(guard)),
            None => return Ok(None),
        };
        let acquired = self.backend.acquire(spec.request(wait)).await;
        match acquired.map_err(|error| self.origin.runtimes.explain(error))? {
            Acquired::Busy => Ok(None),
            Acquired::Held(lease) => {
                // Who shares the lock lets the others of this process ask for it as well.
                let turn = Some(turn).filter(|_| spec.mode == Mode::Exclusive);
                let role = Role::of(spec.mode, spec.writes);
                let (name, origin) = (spec.name.clone(), Arc::clone(&self.origin));
                Ok(Some(Guard::new(lease, turn, role, name, runtime, origin)))
            }
        }
    }

    async fn wait_for_turn(&self, spec: &Spec, wait: Wait, runtime: &Handle) -> Option<Come> {
        if let Some(turn) = self.queue.free_turn(&spec.name, spec.mode) {
            return Some(Come::Turn(turn));
        }
        let request = Arc::new(spec.request(wait));
        let turn = self.queue.turn(&request, runtime);
        match wait {
            Wait::Until(deadline) => timeout_at(deadline, turn).await.ok(),
            Wait::Never | Wait::Forever => Some(turn.await),
        }
    }
}
