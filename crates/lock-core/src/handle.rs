//! The handle of one lock in one mode: what mutexes, read/write locks and semaphores have in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::guard::Role;
use crate::local_queue::QueueEvent;
use crate::reentrant::LockKey;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Guard, LeasePolicy, LockName, LockOptions, Mode, OnQueued,
    OwnerInfo, Result, Wait,
};

/// One lock in one mode. It holds nothing itself.
#[derive(Clone, Debug)]
pub(crate) struct LockHandle {
    connection: Arc<Connection>,
    spec: Result<LockSpec>,
}

/// What every request of a handle has in common.
#[derive(Clone, Debug)]
struct LockSpec {
    name: LockName,
    mode: Mode,
    lease: LeasePolicy,
    hold_at_least: Option<Duration>,
    owner: Arc<OwnerInfo>,
    writes: bool,
    on_queued: Option<OnQueued>,
}

impl LockHandle {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, mode: Mode, options: &LockOptions) -> Self {
        let spec = LockSpec::new(&connection, name, mode, options);
        Self { connection, spec }
    }

    /// The same lock as the write side of a read/write lock.
    pub(crate) fn into_writer(mut self) -> Self {
        if let Ok(spec) = &mut self.spec {
            spec.writes = true;
        }
        self
    }

    /// A handle whose acquisitions all fail with this error.
    pub(crate) fn refused(connection: Arc<Connection>, why: Error) -> Self {
        Self { connection, spec: Err(why) }
    }

    /// The error of a handle whose acquisitions all fail.
    pub(crate) fn check(&self) -> Result<()> {
        self.spec.as_ref().map(drop).map_err(Clone::clone)
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.connection.backend_name()
    }

    pub(crate) fn key(&self) -> Result<LockKey> {
        let spec = self.spec.as_ref().map_err(Clone::clone)?;
        Ok((Arc::as_ptr(&self.connection).addr(), spec.name.clone()))
    }

    pub(crate) async fn acquire(&self) -> Result<Guard> {
        match self.acquire_within(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(ErrorKind::Unexpected, self.connection.backend_name())
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
        let acquired = async {
            match (acquire(&self.connection, spec, wait).await?, spec.hold_at_least) {
                (Some(guard), Some(hold)) => guard.hold_at_least(hold, spec.lease).await.map(Some),
                (acquired, _) => Ok(acquired),
            }
        };
        acquired.await.map_err(|error| error.during("acquire").on(&spec.name))
    }
}

impl LockSpec {
    fn new(connection: &Connection, name: &str, mode: Mode, options: &LockOptions) -> Result<Self> {
        let name = LockName::new(name)?;
        let capabilities = connection.backend.capabilities();
        let fits = || {
            capabilities.check_mode(mode)?;
            let lease = match options.hold_at_least {
                Some(hold) => capabilities.at_least(hold, options.lease)?,
                None => options.lease,
            };
            capabilities.check(lease).map(|()| lease)
        };
        let lease = fits().map_err(|error| error.on(&name))?;
        let hold_at_least = options.hold_at_least;
        let owner = match &options.label {
            Some(label) => Arc::new(OwnerInfo::clone(&connection.owner).with_label(label)),
            None => Arc::clone(&connection.owner),
        };
        let on_queued = options.on_queued.clone();
        Ok(Self { name, mode, lease, hold_at_least, owner, writes: false, on_queued })
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

async fn acquire(connection: &Connection, spec: &LockSpec, wait: Wait) -> Result<Option<Guard>> {
    let runtime = connection.origin.runtimes.enter()?;
    let event = match wait {
        _ if wait.is_expired() => connection.queues.try_turn(&spec.name, spec.mode).map(QueueEvent::Turn),
        _ => wait_for_turn(connection, spec, wait, &runtime).await,
    };
    let turn = match event {
        Some(QueueEvent::Turn(turn)) => turn,
        Some(QueueEvent::HandedOver(guard)) => return Ok(Some(guard)),
        None => return Ok(None),
    };
    let acquired = connection.backend.acquire(spec.request(wait)).await;
    match acquired.map_err(|error| connection.origin.runtimes.explain(error))? {
        Acquired::Busy => Ok(None),
        Acquired::Held(lease) => {
            // A sharer gives up its turn, so that the next task of this process can ask to share the lock.
            let turn = Some(turn).filter(|_| spec.mode == Mode::Exclusive);
            let role = Role::of(spec.mode, spec.writes);
            let (name, origin) = (spec.name.clone(), Arc::clone(&connection.origin));
            Ok(Some(Guard::new(lease, turn, role, name, runtime, origin)))
        }
    }
}

async fn wait_for_turn(
    connection: &Connection,
    spec: &LockSpec,
    wait: Wait,
    runtime: &Handle,
) -> Option<QueueEvent<Guard>> {
    if let Some(turn) = connection.queues.free_turn(&spec.name, spec.mode) {
        return Some(QueueEvent::Turn(turn));
    }
    let request = Arc::new(spec.request(wait));
    let event = connection.queues.wait(&request, runtime);
    match wait {
        Wait::Until(deadline) => timeout_at(deadline, event).await.ok(),
        Wait::Never | Wait::Forever => Some(event.await),
    }
}
