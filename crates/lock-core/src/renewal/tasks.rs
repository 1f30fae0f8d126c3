//! The renewal tasks of one server: one on each runtime that has holders.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::RandomState;
use tokio::runtime::{Handle, Id};

use super::renew::Renew;
use super::task::RenewalTask;
use crate::Clock;

/// Each lease is renewed on the runtime of its holder: one that is paused, or whose only thread computes, delays no renewal
/// of another one.
pub(super) struct RenewalTasks<R: Renew> {
    pub(super) renew: R,
    pub(super) clock: Clock,
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
        Self { renew, clock, registry: Mutex::new(registry) }
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

    /// A runtime that has leases, other than these.
    pub(super) fn runtime_except(&self, ended: &HashSet<Id>) -> Option<Handle> {
        self.all().iter().map(|task| task.runtime()).find(|runtime| !ended.contains(&runtime.id()))
    }

    fn registry(&self) -> MutexGuard<'_, Registry<R>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
