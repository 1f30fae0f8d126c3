//! The processes that use the lock while a fault happens, their history, and the store that they write to.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, History};
use lock_testkit::now_ns;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::store::FencedStore;
use crate::data::{Failure, Outcome};
use crate::rig::{ClientRole, FaultOrder, Job, Order, Task, WorkerHandle, WorkerReport, stuck};

/// The process of the holder; with the memory backend, that of all clients.
pub(super) const HOLDER: u32 = 1;
pub(super) const HOLDERS_ROUTE: usize = 0;
/// The route of the others.
pub(super) const OTHERS_ROUTE: usize = 1;

/// The running processes. They are killed when this is dropped.
pub(super) struct Crew {
    workers: Vec<Arc<WorkerHandle>>,
    shared: Arc<Shared>,
    /// They end with their worker's last report.
    readers: JoinSet<Vec<String>>,
    clients: BTreeMap<(u32, u64), ClientRole>,
}

/// What the readers of all workers write.
struct Shared {
    lock: String,
    events: StdMutex<Vec<Event>>,
    store: StdMutex<FencedStore>,
    changed: Notify,
}

impl Crew {
    /// Starts the processes, and waits until all are connected.
    pub(super) async fn start(jobs: Vec<Job>, store: FencedStore) -> Outcome<Self> {
        let lock = jobs.first().map(|job| job.recorded_as.clone()).unwrap_or_default();
        let clients = jobs.iter().flat_map(clients_of).collect();
        let workers = WorkerHandle::start_all(jobs).await?;
        let (events, store) = (StdMutex::default(), StdMutex::new(store));
        let shared = Arc::new(Shared { lock, events, store, changed: Notify::new() });
        let (mut handles, mut readers) = (Vec::new(), JoinSet::new());
        for worker in workers {
            let worker = Arc::new(worker);
            handles.push(Arc::clone(&worker));
            readers.spawn(read(worker, Arc::clone(&shared)));
        }
        Ok(Self { workers: handles, shared, readers, clients })
    }

    /// Sends an order to every process. One that was killed does not get it.
    pub(super) async fn order(&self, order: FaultOrder) {
        for worker in &self.workers {
            let _ = worker.send_only(Order::Fault(order)).await;
        }
    }

    /// Has the holder's process stop between a check of its guard and the write. Returns when it has.
    pub(super) async fn pause_holder(&self, patience: Duration) -> Outcome<u64> {
        self.order(FaultOrder::Pause).await;
        let stopped = async {
            while !self.workers[0].is_stopped() {
                sleep(LOOK).await;
            }
        };
        let stopped = timeout(patience, stopped).await;
        stopped.map_err(|_| Failure::new(format!("the holder did not stop within {patience:?}")))?;
        Ok(now_ns())
    }

    /// Continues the holder's process, and waits for its late write.
    pub(super) async fn continue_holder(&self, patience: Duration) {
        let since_ns = now_ns();
        self.workers[0].cont();
        self.wrote(|client| client == (HOLDER, 0), since_ns, patience).await;
    }

    /// Kills the holder's process by SIGKILL.
    pub(super) fn kill_holder(&mut self) {
        self.clients.remove(&(HOLDER, 0));
        self.workers[0].kill();
        // Taken after its end: it may have acquired the lock in its last moment.
        let (process, lock, at_ns) = (HOLDER, self.shared.lock.clone(), now_ns());
        self.shared.add(Event { process, client: 0, lock, at_ns, kind: EventKind::Died });
    }

    pub(super) async fn abort_holder(&mut self) {
        self.clients.remove(&(HOLDER, 0));
        self.order(FaultOrder::Abort).await;
    }

    /// Those of the first clients that wait for the lock instead of polling it.
    pub(super) fn waiters(&self) -> Vec<(u32, u64)> {
        let waiters = self.clients.iter().filter(|(_, role)| **role != ClientRole::Poller);
        waiters.map(|(client, _)| *client).collect()
    }

    pub(super) fn was_silent_since(&self, since_ns: u64) -> bool {
        self.shared.events().iter().all(|event| event.at_ns <= since_ns)
    }

    /// Waits until the lock was granted. Whether that came in time.
    pub(super) async fn granted(&self, patience: Duration) -> bool {
        self.shared.until(patience, || !self.shared.granted(0).is_empty()).await
    }

    /// Waits until the lock was granted to every client that runs since then. Whether that came in time.
    pub(super) async fn granted_to_all(&self, since_ns: u64, patience: Duration) -> bool {
        let all_served = || {
            let served = self.shared.granted(since_ns);
            self.clients.keys().all(|client| served.contains(client))
        };
        self.shared.until(patience, all_served).await
    }

    /// Waits until the lock was granted to a client other than the holder since then. Whether that came in time.
    pub(super) async fn granted_to_another(&self, since_ns: u64, patience: Duration) -> bool {
        self.shared
            .until(patience, || self.shared.granted(since_ns).iter().any(|client| *client != (HOLDER, 0)))
            .await
    }

    /// Waits until such a client has written since then. Whether that came in time.
    pub(super) async fn wrote(
        &self,
        wanted: impl Fn((u32, u64)) -> bool + Sync,
        since_ns: u64,
        patience: Duration,
    ) -> bool {
        let is_one = |event: &Event| {
            matches!(event.kind, EventKind::Write { .. })
                && event.at_ns >= since_ns
                && wanted((event.process, event.client))
        };
        self.shared.until(patience, || self.shared.events().iter().any(is_one)).await
    }

    pub(super) async fn end(mut self) -> Outcome<History> {
        self.order(FaultOrder::End).await;
        let mut complaints = Vec::new();
        while let Some(ended) = self.readers.join_next().await {
            complaints.extend(ended?);
        }
        if !complaints.is_empty() {
            return Err(Failure::new(complaints.join("; ") + &stuck::see_logs()));
        }
        let events = std::mem::take(&mut *self.shared.events());
        Ok(History::new(events))
    }
}

impl Shared {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, event: Event) {
        self.events().push(event);
        self.changed.notify_waiters();
    }

    fn has_died(&self, process: u32) -> bool {
        let events = self.events();
        events.iter().any(|event| event.process == process && event.kind == EventKind::Died)
    }

    /// The clients that the lock was granted to since then.
    fn granted(&self, since_ns: u64) -> BTreeSet<(u32, u64)> {
        let events = self.events();
        let grants = events.iter().filter(|event| matches!(event.kind, EventKind::Acquired { .. }));
        let since = grants.filter(|event| event.at_ns >= since_ns);
        since.map(|event| (event.process, event.client)).collect()
    }

    /// Waits until the events make this true. Whether they did in time.
    async fn until(&self, patience: Duration, is_so: impl Fn() -> bool + Sync) -> bool {
        let waiting = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                // From here on it misses no event.
                changed.as_mut().enable();
                if is_so() {
                    break;
                }
                changed.await;
            }
        };
        timeout(patience, waiting).await.is_ok()
    }
}

fn clients_of(job: &Job) -> Vec<((u32, u64), ClientRole)> {
    let Task::Fault(task) = &job.task else { return Vec::new() };
    (0..).zip(&task.roles).map(|(number, role)| ((job.process, number), *role)).collect()
}

/// Reads the reports of a worker until it has ended. Returns its complaints.
async fn read(worker: Arc<WorkerHandle>, shared: Arc<Shared>) -> Vec<String> {
    let process = worker.process();
    loop {
        match worker.receive(SILENCE).await {
            Ok(WorkerReport::Events(events)) => events.into_iter().for_each(|event| shared.add(event)),
            Ok(WorkerReport::Write { client, token }) => {
                // The decisions are in the order of their times.
                let mut store = locked(&shared.store);
                let kind = EventKind::Write { token, accepted: store.write(token) };
                shared.add(Event { process, client, lock: shared.lock.clone(), at_ns: now_ns(), kind });
            }
            Ok(WorkerReport::Stuck(stuck)) => {
                return stuck.into_iter().map(|stuck| format!("process {process}: {stuck}")).collect();
            }
            Ok(other) => return vec![format!("process {process} reported {other:?}")],
            Err(failure) => {
                // `kill_holder` records the death after the kill, so a moment later than this.
                sleep(MOMENT).await;
                let killed = shared.has_died(process);
                return if killed { Vec::new() } else { vec![format!("process {process}: {failure}")] };
            }
        }
    }
}

fn locked<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a worker may be silent: longer than any fault.
const SILENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);
const MOMENT: Duration = Duration::from_millis(200);
