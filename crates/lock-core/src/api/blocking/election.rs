//! Elects one leader among candidates in any number of processes.

use std::iter::FusedIterator;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Guard;
use super::runtime::wait;
use crate::api::run::conclude;
use crate::{GuardView, Leader, Released, Result, RunError};

/// An election, as the asynchronous [`Election`](crate::Election). It leads nothing itself: clone it freely.
///
/// Made by [`Locks::election`](super::Locks::election).
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let election = locks.election("scheduler");
/// let leadership = election.campaign("web-1")?;
/// let leader = election.leader()?.expect("somebody leads");
/// assert_eq!((leader.label(), leader.token), (Some("web-1"), Some(leadership.token())));
/// leadership.resign()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

impl Election {
    pub(super) const fn new(election: crate::Election) -> Self {
        Self(election)
    }

    /// Blocks until this candidate leads. [`Locks::close`](super::Locks::close) ends the wait.
    ///
    /// # Errors
    ///
    /// Those of [`Election::campaign`](crate::Election::campaign), and [`Unsupported`](crate::ErrorKind::Unsupported) inside
    /// of a tokio task. So it is for the methods below.
    pub fn campaign(&self, label: impl Into<String>) -> Result<Leadership> {
        wait("campaign", self.0.campaign(label)).map(Leadership::new)
    }

    /// Campaigns, runs `body` on this thread while this candidate leads, and resigns when the body has ended, also by a
    /// panic.
    ///
    /// Nothing stops the body when the leadership is lost. So it watches `view.validity().is_valid()` and returns; call `run`
    /// again to be a candidate again:
    ///
    /// ```
    /// # use std::{thread, time::Duration};
    /// # use lock_core::{ErrorKind, MemoryConfig, Result, blocking::Locks};
    /// # fn main() -> Result<()> {
    /// # let locks = Locks::from(MemoryConfig::new().connect()?);
    /// let election = locks.election("scheduler");
    /// # let mut rounds = 0;
    /// loop {
    ///     let led = election.run("web-1", |view| {
    ///         while view.validity().is_valid() {
    ///             // One step of the work of the leader.
    ///             thread::sleep(Duration::from_millis(10));
    /// #           rounds += 1;
    /// #           if rounds == 2 { locks.break_lock("scheduler").unwrap(); }
    /// #           if rounds == 4 { break; }
    ///         }
    ///     });
    ///     match led {
    ///         Err(error) if error.error().kind() == ErrorKind::Lost => continue,
    ///         ended => break ended?,
    ///     }
    /// }
    /// # assert_eq!(rounds, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign), and
    /// [`Lost`](crate::ErrorKind::Lost) when the leadership was lost before the body ended: [`RunError::into_output`] has
    /// what it returned.
    pub fn run<T>(
        &self,
        label: impl Into<String>,
        body: impl FnOnce(GuardView) -> T,
    ) -> Result<T, RunError<T>> {
        let label = label.into();
        let elected = wait("campaign", self.0.campaign(&label)).map(Leadership::new);
        let leadership = elected.map_err(RunError::not_acquired)?;
        let ran = catch_unwind(AssertUnwindSafe(|| leadership.run(|| body(leadership.view()))));
        let lost = leadership.as_async().found_lost();
        conclude(ran, lost, leadership.resign())
    }

    /// The leader, if there is one: one look.
    ///
    /// # Errors
    ///
    /// Those of [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>> {
        wait("leader", self.0.leader())
    }

    /// The leaders from now on: the current one first, then every change, in order. See [`Observer`].
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer(Some(self.0.observe()))
    }
}

/// The guard of a leader, as the asynchronous [`Leadership`](crate::Leadership). It dereferences to its [`Guard`].
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let leadership = locks.election("scheduler").campaign("web-1")?;
/// leadership.run(|| println!("leading with token {}", leadership.token()))?;
/// leadership.resign()?;
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping it resigns in the background, as dropping a [`Guard`] releases its lock.
#[derive(Debug)]
#[must_use = "it resigns when it is dropped"]
pub struct Leadership(Guard);

impl Leadership {
    fn new(leadership: crate::Leadership) -> Self {
        Self(Guard::new(leadership.into()))
    }

    /// Resigns: the next candidate leads. Returns whether this one led until then.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`].
    pub fn resign(self) -> Result<Released> {
        self.0.release()
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

/// The guard of the lock that makes it the leader.
impl From<Leadership> for Guard {
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}

/// Observes an election: an iterator over leaders, `None` while there is none. See the asynchronous
/// [`Observer`](crate::Observer) for what it reports, and what it may skip.
///
/// `next` blocks until there is another leader. [`Locks::close`](super::Locks::close) ends it: its last item is then the error
/// [`Closed`](crate::ErrorKind::Closed). Inside of a tokio task the last item is the error
/// [`Unsupported`](crate::ErrorKind::Unsupported).
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// # let _leads = locks.election("scheduler").campaign("web-1")?;
/// for leader in locks.election("scheduler").observe() {
///     match leader? {
///         Some(leader) => println!("{} leads with token {:?}", leader.holder, leader.token),
///         None => println!("nobody leads"),
///     }
/// #   break;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Observer(Option<crate::Observer>);

impl Iterator for Observer {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let observer = self.0.as_mut()?;
        wait("observe", async { Ok(observer.next().await) }).unwrap_or_else(|error| {
            self.0 = None;
            Some(Err(error))
        })
    }
}

impl FusedIterator for Observer {}

#[cfg(test)]
mod tests {
    use super::super::Locks;
    use crate::{ErrorKind, MemoryConfig};

    #[tokio::test]
    async fn an_observer_in_a_task_ends_with_the_refusal() {
        let locks = Locks::from(MemoryConfig::new().connect().unwrap());
        let mut leaders = locks.election("a").observe();
        let items: Vec<_> = leaders.by_ref().take(3).collect();
        assert!(matches!(&items[..], [Err(error)] if error.kind() == ErrorKind::Unsupported), "{items:?}");
        assert!(leaders.next().is_none());
    }
}
