//! The task that sends the renewals of one runtime when they are due. It runs only while there is something to renew.

use std::collections::HashSet;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::renew::{Renew, Renewed};
use super::schedule::{Batch, Caller, Schedule, ScheduledLease, TICK};
use super::tasks::RenewalTasks;
use crate::BootInstant;

pub(super) struct RenewalTask<R: Renew> {
    tasks: Arc<RenewalTasks<R>>,
    /// That of its holders, or another one once that has ended.
    runtime: Mutex<Handle>,
    schedule: Mutex<Schedule<R::Key>>,
    /// Notified when a renewal became due earlier than planned.
    sooner: Notify,
    /// Notified after each batch.
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
}

impl<R: Renew> RenewalTask<R> {
    pub(super) fn new(tasks: Arc<RenewalTasks<R>>, runtime: Handle, closed: bool) -> Self {
        let schedule = Mutex::new(Schedule::new(closed, tasks.renew.spares_longer()));
        let runtime = Mutex::new(runtime);
        Self { tasks, runtime, schedule, sooner: Notify::new(), answered: Notify::new() }
    }

    pub(super) fn runtime(&self) -> Handle {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule<R::Key>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Starts the task if there is something to renew: on its runtime; once that has ended, on that of another holder or of
    /// the caller.
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
                *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = runtime;
                return;
            }
            ended.insert(runtime.id());
            let here = || Handle::try_current().ok().filter(|here| !ended.contains(&here.id()));
            let Some(other) = self.tasks.runtime_except(&ended).or_else(here) else { return };
            runtime = other;
        }
    }

    fn run(self: Arc<Self>, settled: Arc<AtomicBool>) -> impl Future<Output = ()> + Send + 'static {
        // Made here, so that it is dropped even if the runtime never polls the task.
        let running = Running { task: Some(Arc::clone(&self)), settled };
        async move {
            let mut running = running;
            while let Some(wake) = self.next_wake() {
                tokio::select! {
                    () = self.tasks.clock.sleep_until(wake) => self.renew_due().await,
                    () = self.sooner.notified() => {}
                }
            }
            running.task = None;
        }
    }

    /// The next time to wake up; `None`, and the task has ended, when nothing is left to renew.
    ///
    /// Never later than planned before: if a lock is acquired and released again and again, the task already sleeps until
    /// early enough, and need not be woken for each lease.
    fn next_wake(&self) -> Option<BootInstant> {
        let now = self.tasks.clock.now();
        let mut schedule = self.schedule();
        let due = schedule.due.first().map(|(due, _)| *due);
        let planned = schedule.wakes.filter(|planned| *planned > now);
        schedule.wakes = due.into_iter().chain(planned).min();
        schedule.wakes
    }

    async fn renew_due(&self) {
        let mut horizon = self.tasks.clock.now() + TICK;
        while let Some(batch) = self.take_due(horizon) {
            // A lease that was renewed just now is not due again, however short its ttl.
            horizon = self.tasks.clock.now();
            let answers = self.tasks.renew.renew(&batch.leases).await;
            let now = self.tasks.clock.now();
            let mut schedule = self.schedule();
            for (id, answer) in batch.ids.iter().zip(answers) {
                schedule.record(*id, answer, now);
            }
            schedule.in_flight.clear();
            drop(schedule);
            self.answered.notify_waiters();
        }
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
