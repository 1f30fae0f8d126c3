//! The tasks that send the renewals of one server when they are due: one on each runtime that has holders. They run only while there is
//! something to renew.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::sync::{Notify, oneshot};

use super::renew::{Renew, Renewed};
use super::schedule::{Batch, Caller, Schedule, ScheduledLease, TICK};
use crate::process::poison::lock;
use crate::values::error::NO_BACKEND;
use crate::{BootInstant, Clock, Error, ErrorKind, Outcome};

/// How many batches may be under way: one that a server does not answer delays no other.
const MOST_BATCHES: usize = 16;

/// Each lease is renewed on the runtime of its holder: one that is paused, or whose only thread computes, delays no renewal
/// of another one.
pub(super) struct RenewalTasks<R: Renew> {
    pub(super) renew: R,
    pub(super) clock: Clock,
    /// Where they were made, if in a runtime.
    home: Option<Handle>,
    registry: Mutex<Registry<R>>,
}

struct Registry<R: Renew> {
    /// A task lives as long as its leases do.
    by_runtime: HashMap<Id, Weak<RenewalTask<R>>, RandomState>,
    /// Whether renewal has stopped for good.
    closed: bool,
}

impl<R: Renew> RenewalTasks<R> {
    pub(super) fn new(renew: R, clock: Clock) -> Self {
        let registry = Registry { by_runtime: HashMap::default(), closed: false };
        Self { renew, clock, home: Handle::try_current().ok(), registry: Mutex::new(registry) }
    }

    /// The task of this runtime.
    pub(super) fn on(self: &Arc<Self>, runtime: Handle) -> Arc<RenewalTask<R>> {
        let mut registry = self.registry();
        if let Some(task) = registry.by_runtime.get(&runtime.id()).and_then(Weak::upgrade) {
            return task;
        }
        registry.by_runtime.retain(|_, task| task.strong_count() > 0);
        let id = runtime.id();
        let task = Arc::new(RenewalTask::new(Arc::clone(self), runtime, registry.closed));
        registry.by_runtime.insert(id, Arc::downgrade(&task));
        drop(registry);
        // Leases of a runtime that has ended may have waited for another one.
        self.all().iter().for_each(RenewalTask::start);
        task
    }

    pub(super) fn all(&self) -> Vec<Arc<RenewalTask<R>>> {
        self.registry().by_runtime.values().filter_map(Weak::upgrade).collect()
    }

    /// Stops all renewals for good.
    pub(super) fn close(&self) {
        self.registry().closed = true;
        self.all().iter().for_each(|task| task.schedule().close());
    }

    /// A runtime that has leases, or that on which the locks were connected, other than these.
    pub(super) fn runtime_except(&self, ended: &HashSet<Id>) -> Option<Handle> {
        let holders = self.all().into_iter().map(|task| task.runtime());
        holders.chain(self.home.clone()).find(|runtime| !ended.contains(&runtime.id()))
    }

    fn registry(&self) -> MutexGuard<'_, Registry<R>> {
        lock(&self.registry)
    }
}

pub(super) struct RenewalTask<R: Renew> {
    tasks: Arc<RenewalTasks<R>>,
    /// That of its holders, or another one once that has ended.
    runtime: Mutex<Handle>,
    schedule: Mutex<Schedule<R::Key>>,
    /// Notified when a renewal became due earlier than planned.
    sooner: Notify,
    /// Notified after each answer.
    answered: Notify,
}

/// The part of a task that does not depend on the backend.
pub(super) trait RenewalControl: Send + Sync {
    fn answered(&self) -> &Notify;
    /// Removes the lease, and returns whether a request for it is in flight.
    fn remove(&self, id: u64) -> bool;
    fn is_closed(&self) -> bool;
    /// Renews the lease now: with this ttl from now on, or with its own.
    fn renew_now(self: Arc<Self>, id: u64, ttl: Option<Duration>, answer: oneshot::Sender<Renewed>);
    /// Renews the lease by itself from now on.
    fn renew_automatically(self: Arc<Self>, id: u64);
}

impl<R: Renew> RenewalTask<R> {
    fn new(tasks: Arc<RenewalTasks<R>>, runtime: Handle, closed: bool) -> Self {
        let schedule = Mutex::new(Schedule::new(closed, tasks.renew.spares_longer()));
        let runtime = Mutex::new(runtime);
        Self { tasks, runtime, schedule, sooner: Notify::new(), answered: Notify::new() }
    }

    pub(super) fn runtime(&self) -> Handle {
        lock(&self.runtime).clone()
    }

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule<R::Key>> {
        lock(&self.schedule)
    }

    /// Adds a lease, and returns its id.
    pub(super) fn add(self: &Arc<Self>, lease: ScheduledLease<R::Key>) -> u64 {
        let due = lease.due;
        let mut schedule = self.schedule();
        let id = schedule.add(lease);
        if due < BootInstant::NEVER {
            self.plan(schedule, id, due);
        }
        id
    }

    /// Plans a renewal, and starts the task if it does not run.
    fn plan(self: &Arc<Self>, mut schedule: MutexGuard<'_, Schedule<R::Key>>, id: u64, due: BootInstant) {
        let Some(lease) = schedule.leases.get_mut(&id) else { return };
        let earlier = mem::replace(&mut lease.due, due);
        schedule.due.remove(&(earlier, id));
        schedule.due.insert((due, id));
        match schedule.wakes {
            None => {
                drop(schedule);
                self.start();
            }
            Some(wakes) if due < wakes => self.sooner.notify_one(),
            Some(_) => {}
        }
    }

    /// Starts the task if there is something to renew: on its runtime; once that has ended, on that of another holder, of the connect
    /// or of the caller.
    pub(super) fn start(self: &Arc<Self>) {
        let mut ended = HashSet::new();
        let mut runtime = self.runtime();
        loop {
            let mut schedule = self.schedule();
            let Some(&(due, _)) = schedule.due.first().filter(|_| schedule.wakes.is_none()) else { return };
            schedule.wakes = Some(due);
            // Outside the mutex: a runtime that was shut down drops the task at once, which locks it again.
            drop(schedule);
            let settled = Arc::new(AtomicBool::new(false));
            drop(runtime.spawn(Arc::clone(self).run(Arc::clone(&settled))));
            if !settled.swap(true, Ordering::AcqRel) {
                *lock(&self.runtime) = runtime;
                return;
            }
            ended.insert(runtime.id());
            let here = Handle::try_current().ok().filter(|here| !ended.contains(&here.id()));
            // One of a single thread runs only while that thread drives it.
            let runs = here.clone().filter(|here| here.runtime_flavor() != RuntimeFlavor::CurrentThread);
            let Some(other) = runs.or_else(|| self.tasks.runtime_except(&ended)).or(here) else { return };
            runtime = other;
        }
    }

    fn run(self: Arc<Self>, settled: Arc<AtomicBool>) -> impl Future<Output = ()> + Send + 'static {
        // Made here, so that it is dropped even if the runtime never polls the task.
        let running = Running { task: Some(Arc::clone(&self)), settled };
        async move {
            let mut running = running;
            let mut batches = FuturesUnordered::new();
            while let Some(wake) = self.next_wake(!batches.is_empty()) {
                tokio::select! {
                    () = self.tasks.clock.sleep_until(wake), if batches.len() < MOST_BATCHES => {
                        let horizon = self.tasks.clock.now() + TICK;
                        while batches.len() < MOST_BATCHES && let Some(batch) = self.take_due(horizon) {
                            batches.push(self.renew(batch));
                        }
                    }
                    Some(()) = batches.next(), if !batches.is_empty() => {}
                    () = self.sooner.notified() => {}
                }
            }
            drop(batches);
            running.task = None;
        }
    }

    /// The next time to wake up; `None`, and the task has ended, when nothing is left to renew and no batch is under way.
    ///
    /// Never later than planned before: if a lock is acquired and released again and again, the task already sleeps until
    /// early enough, and need not be woken for each lease.
    fn next_wake(&self, is_busy: bool) -> Option<BootInstant> {
        let now = self.tasks.clock.now();
        let mut schedule = self.schedule();
        let due = schedule.due.first().map(|(due, _)| *due);
        let planned = schedule.wakes.filter(|planned| *planned > now && *planned < BootInstant::NEVER);
        let busy = is_busy.then_some(BootInstant::NEVER);
        schedule.wakes = due.into_iter().chain(planned).chain(busy).min();
        schedule.wakes
    }

    /// Renews a batch. An answer counts when it comes, for its lease.
    async fn renew(&self, batch: Batch<R::Key>) {
        let Batch { ids, leases, halves } = &batch;
        let unanswered = Mutex::new(vec![true; ids.len()]);
        let answered = |at: usize, answer| {
            if mem::take(&mut lock(&unanswered)[at]) {
                self.answer(ids[at], answer);
            }
        };
        let suspects = async {
            for (half, at) in halves {
                self.tasks.clock.sleep_until(*half).await;
                if lock(&unanswered)[*at] {
                    self.schedule().suspect(ids[*at]);
                }
            }
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = self.tasks.renew.renew(leases, &answered) => {}
            () = suspects => {}
        }
        for at in 0..ids.len() {
            answered(at, Renewed::Unknown(too_few()));
        }
    }

    fn answer(&self, id: u64, answer: Renewed) {
        let now = self.tasks.clock.now();
        let mut schedule = self.schedule();
        schedule.in_flight.remove(&id);
        schedule.record(id, answer, now);
        // The task may sleep for longer, while the rest of the batch is under way.
        let is_sooner = schedule.due.first().is_some_and(|(due, _)| Some(*due) < schedule.wakes);
        drop(schedule);
        if is_sooner {
            self.sooner.notify_one();
        }
        self.answered.notify_waiters();
    }

    fn take_due(&self, horizon: BootInstant) -> Option<Batch<R::Key>> {
        let now = self.tasks.clock.now();
        self.schedule().take_due(horizon, now)
    }
}

impl<R: Renew> RenewalControl for RenewalTask<R> {
    fn answered(&self) -> &Notify {
        &self.answered
    }

    fn remove(&self, id: u64) -> bool {
        let mut schedule = self.schedule();
        if let Some(lease) = schedule.leases.remove(&id) {
            schedule.due.remove(&(lease.due, id));
        }
        schedule.in_flight.contains(&id)
    }

    fn is_closed(&self) -> bool {
        self.schedule().closed
    }

    fn renew_now(self: Arc<Self>, id: u64, ttl: Option<Duration>, answer: oneshot::Sender<Renewed>) {
        let mut schedule = self.schedule();
        let in_flight = schedule.in_flight.contains(&id);
        let Some(lease) = schedule.leases.get_mut(&id) else { return };
        lease.terms.ttl = ttl.unwrap_or(lease.terms.ttl);
        lease.add_caller(Caller { asked: ttl, answer });
        if !in_flight {
            self.plan(schedule, id, self.tasks.clock.now());
        }
    }

    fn renew_automatically(self: Arc<Self>, id: u64) {
        let mut schedule = self.schedule();
        if let Some(due) = schedule.renew_automatically(id, self.tasks.clock.now()) {
            self.plan(schedule, id, due);
        }
    }
}

/// The error of a lease without an answer.
fn too_few() -> Error {
    Error::new(ErrorKind::Unexpected, NO_BACKEND)
        .with_message("the store answered too few of the renewals")
        .with_outcome(Outcome::Unknown)
}

/// Notices when the shutdown of a runtime ends the task, and starts it on another one.
struct Running<R: Renew> {
    task: Option<Arc<RenewalTask<R>>>,
    /// Set by `start` once it has spawned the task, and by the end of the task. The second of them starts it elsewhere.
    settled: Arc<AtomicBool>,
}

impl<R: Renew> Drop for Running<R> {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        task.schedule().interrupted(task.tasks.clock.now());
        task.answered.notify_waiters();
        if self.settled.swap(true, Ordering::AcqRel) {
            task.start();
        }
    }
}
