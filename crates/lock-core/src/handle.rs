//! The handle of one lock in one mode: what mutexes, read/write locks and semaphores have in common.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::local_queue::QueueEvent;
use crate::lock_spec::LockSpec;
use crate::patience::{no_answer, within};
use crate::reentrant::LockKey;
use crate::{Acquired, Error, ErrorKind, Guard, LockOptions, LockState, Mode, OwnerId, Result, Wait};

/// One lock in one mode. It holds nothing itself.
#[derive(Clone, Debug)]
pub(crate) struct LockHandle {
    connection: Arc<Connection>,
    spec: Result<Arc<LockSpec>>,
}

impl LockHandle {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, mode: Mode, options: &LockOptions) -> Self {
        let spec = LockSpec::new(&connection, name, mode, options).map(Arc::new);
        Self { connection, spec }
    }

    /// The same lock as the write side of a read/write lock.
    pub(crate) fn into_writer(self) -> Self {
        self.with(|spec| spec.writes = true)
    }

    /// The same lock, each holder of which gets it from the store, where others can observe it.
    pub(crate) fn observed(self) -> Self {
        self.with(|spec| spec.is_observed = true)
    }

    fn with(self, change: impl FnOnce(&mut LockSpec)) -> Self {
        let spec = self.spec.map(|mut spec| {
            change(Arc::make_mut(&mut spec));
            spec
        });
        Self { spec, ..self }
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

    /// The state of the lock in the store.
    pub(crate) async fn inspect(&self) -> Result<LockState> {
        let name = &self.spec.as_ref().map_err(Clone::clone)?.name;
        self.connection.request(|backend| backend.inspect(name)).await
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
            let runtimes = &self.connection.origin.runtimes;
            let runtime = runtimes.enter()?;
            // Dropping the acquisition rolls it back.
            let acquired =
                within(wait, self.answer_timeout(), acquire_held(&self.connection, spec, wait, runtime));
            acquired.await.unwrap_or_else(|| Err(runtimes.explain(no_answer(self.backend_name()))))
        };
        let acquired = match self.own_reader(spec) {
            Some(reader) => Box::pin(self.warning_of(reader, spec, acquired)).await,
            None => acquired.await,
        };
        acquired.map_err(|error| error.during("acquire").on(&spec.name))
    }

    /// The reader that an acquisition which cannot share the lock with it waits for, if its own task has one.
    fn own_reader(&self, spec: &LockSpec) -> Option<OwnerId> {
        (spec.mode != Mode::Shared).then(|| self.connection.origin.readers.of_this_task(&spec.name)).flatten()
    }

    async fn warning_of<T>(&self, reader: OwnerId, spec: &LockSpec, acquired: impl Future<Output = T>) -> T {
        let warned = self.connection.origin.readers.warn_of(reader, &spec.name);
        let mut acquired = pin!(acquired);
        tokio::select! {
            biased;
            acquired = &mut acquired => return acquired,
            () = warned => {}
        }
        acquired.await
    }

    /// How long an acquisition that must not wait takes at most.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.connection.backend.capabilities().answer_timeout
    }
}

/// Acquires a lock that is held as long as the options say.
async fn acquire_held(
    connection: &Connection,
    spec: &Arc<LockSpec>,
    wait: Wait,
    runtime: Handle,
) -> Result<Option<Guard>> {
    match (acquire(connection, spec, wait, runtime).await?, spec.hold_at_least) {
        (Some(guard), Some(hold)) => guard.hold_at_least(hold, spec.lease).await.map(Some),
        (acquired, _) => Ok(acquired),
    }
}

async fn acquire(
    connection: &Connection,
    spec: &Arc<LockSpec>,
    wait: Wait,
    runtime: Handle,
) -> Result<Option<Guard>> {
    let turn = loop {
        let event = match wait {
            _ if wait.is_expired() => connection.queues.try_turn(&spec.name, spec.mode).map(QueueEvent::Turn),
            _ => wait_for_turn(connection, spec, wait, &runtime).await,
        };
        match event {
            Some(QueueEvent::Turn(turn)) => break turn,
            // This task was not polled for a while.
            Some(QueueEvent::HandedOver(guard)) if !guard.is_valid() => {}
            Some(QueueEvent::HandedOver(guard)) => return Ok(Some(guard)),
            None => return Ok(None),
        }
    };
    let acquired = connection.backend.acquire(spec.request(wait)).await;
    match acquired.map_err(|error| connection.origin.runtimes.explain(error))? {
        Acquired::Busy => Ok(None),
        Acquired::Held(lease) => {
            // A sharer gives up its turn, so that the next task of this process can ask to share the lock.
            let turn = Some(turn).filter(|_| spec.mode == Mode::Exclusive);
            Ok(Some(Guard::new(lease, turn, Arc::clone(spec), runtime, Arc::clone(&connection.origin))))
        }
    }
}

async fn wait_for_turn(
    connection: &Connection,
    spec: &Arc<LockSpec>,
    wait: Wait,
    runtime: &Handle,
) -> Option<QueueEvent<Guard>> {
    if let Some(turn) = connection.queues.free_turn(&spec.name, spec.mode) {
        return Some(QueueEvent::Turn(turn));
    }
    let event = connection.queues.wait(spec, wait, runtime);
    match wait {
        Wait::Until(deadline) => timeout_at(deadline, event).await.ok(),
        Wait::Never | Wait::Forever => Some(event.await),
    }
}
