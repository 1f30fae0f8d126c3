//! The read sides that this process holds, and which task acquired each: it would wait for itself on the write side.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::task;
use tokio::time::sleep;

use crate::{LockName, OwnerId};

/// How long a wait is before it is reported.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// The read sides that are held, by name.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    held: Mutex<ByName>,
}

type ByName = HashMap<LockName, Vec<(Caller, OwnerId)>, RandomState>;

/// A task, or outside of tasks a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Task(task::Id),
    Thread(ThreadId),
}

impl Caller {
    fn current() -> Self {
        task::try_id().map_or_else(|| Self::Thread(thread::current().id()), Self::Task)
    }
}

impl Readers {
    /// Adds a reader that the current task has acquired.
    pub(crate) fn enter(&self, name: &LockName, owner: OwnerId) {
        self.held().entry(name.clone()).or_default().push((Caller::current(), owner));
    }

    /// Removes a reader, from wherever.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId) {
        let mut held = self.held();
        let Some(readers) = held.get_mut(name) else { return };
        if let Some(at) = readers.iter().position(|(_, reader)| *reader == owner) {
            readers.swap_remove(at);
        }
        if readers.is_empty() {
            held.remove(name);
        }
    }

    /// The reader that the current task has acquired and not released, if there is one.
    pub(crate) fn of_this_task(&self, name: &LockName) -> Option<OwnerId> {
        let held = self.held();
        let readers = held.get(name)?;
        let caller = Caller::current();
        readers.iter().find(|(reader, _)| *reader == caller).map(|(_, owner)| *owner)
    }

    /// Warns, after a while, of an acquisition that waits for this reader of its own task.
    pub(crate) async fn warn_of(&self, reader: OwnerId, name: &LockName) {
        sleep(LONG_WAIT).await;
        if self.of_this_task(name) == Some(reader) {
            tracing::warn!(
                lock = name.as_str(),
                holder = %reader,
                waited = ?LONG_WAIT,
                "a task waits for a lock whose read side it has acquired itself; a reader cannot become a writer: release it \
                 first, and read again"
            );
        }
    }

    fn held(&self) -> MutexGuard<'_, ByName> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryConfig;

    #[tokio::test]
    async fn readers_are_known_to_the_task_that_acquired_them() {
        let locks = MemoryConfig::new().connect().unwrap();
        let (lock, name) = (locks.rw("a"), LockName::new("a").unwrap());
        let readers = || locks.readers();
        let reader = lock.read().await.unwrap();
        assert_eq!(readers().of_this_task(&name), Some(reader.owner()));
        let theirs = tokio::spawn({
            let lock = lock.clone();
            async move { lock.read().await.unwrap() }
        });
        let theirs = theirs.await.unwrap();
        reader.release().await.unwrap();
        assert_eq!(readers().of_this_task(&name), None, "another task acquired it");
        drop(theirs);
        assert!(readers().held().is_empty());
        let mut writer = lock.write().await.unwrap();
        assert_eq!(readers().of_this_task(&name), None);
        writer.downgrade().await.unwrap();
        assert_eq!(readers().of_this_task(&name), Some(writer.owner()));
        writer.release().await.unwrap();
        assert!(readers().held().is_empty());
    }
}
