//! Elects one leader among candidates in any number of processes.
//!
//! | file | content |
//! |---|---|
//! | `leader` | the leader, as everybody sees it |
//! | `leadership` | the guard of the leader |
//! | `observer` | the stream of leaders |

mod leader;
mod leadership;
mod observer;

use std::sync::Arc;

pub use self::leader::Leader;
pub use self::leadership::Leadership;
pub use self::observer::Observer;
use self::observer::look;
use crate::api::run::run_and_release;
use crate::process::connection::Connection;
use crate::{GuardView, LockName, LockOptions, Mutex, Persistence, Result, RunError};

/// An election: at most one leader at a time among candidates in any number of processes.
///
/// Made by [`Locks::election`](crate::Locks::election). It is a handle and leads nothing itself: clone it freely. The leader
/// is the holder of the [`Mutex`] of the same name, so everything that is said about locks is true of leaders: an old leader
/// that was paused may still treat itself as the leader, and its [fencing token](crate::Token) is smaller than that of the next.
///
/// * After [`resign`](Leadership::resign), the next candidate leads within the time of a hand-over.
/// * After a crash of the leader, within its lease or session: [`LockOptions::ttl`] sets it.
///
/// Source of the idea: `concurrency.Election` of etcd (`Campaign`, `Observe`, `Resign`), and `LeaderSelector` of Curator.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let election = locks.election("scheduler");
/// let mut leaders = election.observe();
/// assert!(leaders.next().await.expect("it runs for ever")?.is_none());
///
/// let leadership = election.campaign("web-1").await?;
/// let leader = leaders.next().await.expect("it runs for ever")?.expect("somebody leads");
/// assert_eq!((leader.label(), leader.token), (Some("web-1"), Some(leadership.token())));
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
///
/// A service that leads whenever it can, for as long as it runs:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// # let shutdown = async {};
/// let election = locks.election("scheduler");
/// let leads = election.run("web-1", |leadership| async move {
///     println!("leading with token {}", leadership.token());
///     std::future::pending::<()>().await; // the work of the leader; dropped when the leadership is lost
/// });
/// tokio::select! {
///     ended = leads => ended?,
///     () = shutdown => {} // resigns in the background
/// }
/// locks.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    connection: Arc<Connection>,
    name: String,
    options: LockOptions,
}

impl Election {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, options: LockOptions) -> Self {
        Self { connection, name: name.to_owned(), options }
    }

    /// Fails if nobody can ever lead.
    pub(crate) fn check(self) -> Result<Self> {
        self.mutex(&self.options).check().map(|_| self)
    }

    /// Waits until this candidate leads. Candidates lead in the order of their campaigns where the backend has that order
    /// ([`Capabilities::fifo`](crate::Capabilities::fifo)).
    ///
    /// The label says who leads: all see it by [`leader`](Self::leader), [`observe`](Self::observe) and
    /// [`Locks::inspect`](crate::Locks::inspect).
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::acquire`] that cannot [pass](crate::Error::can_pass), such as a closed connection. Through all others the
    /// candidate goes on, unless the options say otherwise: see [`Persistence`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the campaign, and leaves nothing behind. A leadership that was granted already is given up
    /// in the background.
    pub async fn campaign(&self, label: impl Into<String>) -> Result<Leadership> {
        let mut options = self.options.clone().label(label);
        options.persistence.get_or_insert(Persistence::Always);
        self.mutex(&options).acquire().await.map(Leadership::new)
    }

    /// Campaigns, runs `body` while this candidate leads, and resigns when the body has ended. When the leadership is lost,
    /// `body` is dropped, and the candidate campaigns again: for ever, if need be.
    ///
    /// A panic of the body resigns first, as with [`Mutex::run`].
    ///
    /// To resign from within the body, let it return: the next candidate leads then, and this one after it if it calls
    /// `run` again. A body that campaigns in the same election waits for itself.
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign), and
    /// [`Lost`](crate::ErrorKind::Lost) when the leadership was found lost right after the body had ended:
    /// [`RunError::into_output`] has what it returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `body` first, and then resigns in the background.
    pub async fn run<F: Future>(
        &self,
        label: impl Into<String>,
        mut body: impl FnMut(GuardView) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        let label = label.into();
        loop {
            let leadership = self.campaign(&label).await.map_err(RunError::not_acquired)?;
            match run_and_release(leadership.into(), &mut body).await {
                Err(lost) if lost.has_no_output() => {
                    tracing::warn!(error = %lost.error(), "the leadership was lost; campaigning again");
                }
                ended => return ended,
            }
        }
    }

    /// The leader, if there is one: one look.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::inspect`](crate::Locks::inspect); [`Moved`](crate::ErrorKind::Moved) if the election is on another
    /// store.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let name = LockName::new(&self.name)?;
        let state = look(&self.connection, &name, None).await;
        Ok(Leader::of(&state.map_err(|error| error.during("leader").on(&name))?))
    }

    /// The leaders from now on: the current one first, then every change, in order. See [`Observer`].
    ///
    /// Nothing is sent before the stream is polled.
    #[must_use]
    pub fn observe(&self) -> Observer {
        let persistence = self.options.persistence.unwrap_or(Persistence::Always);
        Observer::new(Arc::clone(&self.connection), &self.name, persistence)
    }

    fn mutex(&self, options: &LockOptions) -> Mutex {
        Mutex::new(Arc::clone(&self.connection), &self.name, options).observed()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{ErrorKind, Locks, MemoryConfig, Released};

    /// Shorter than a lease: what happens within it does not wait for the end of one.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn locks() -> Locks {
        MemoryConfig::new().clock(crate::Clock::tokio()).connect().unwrap()
    }

    /// Another process with the same store.
    fn another(locks: &Locks) -> Locks {
        Locks::from_dyn(Arc::clone(locks.backend()))
    }

    async fn label(leaders: &mut Observer) -> Option<String> {
        let item = timeout(PATIENCE, leaders.next()).await.expect("a change is reported");
        item.unwrap().unwrap().and_then(|leader| leader.label().map(str::to_owned))
    }

    #[tokio::test(start_paused = true)]
    async fn every_change_is_reported_once() {
        let locks = locks();
        let election = locks.election("a");
        let mut leaders = election.observe();
        assert_eq!(label(&mut leaders).await, None);
        for name in ["one", "two"] {
            let leadership = election.campaign(name).await.unwrap();
            assert_eq!(label(&mut leaders).await.as_deref(), Some(name));
            assert_eq!(election.leader().await.unwrap().unwrap().token, Some(leadership.token()));
            assert_eq!(leadership.resign().await.unwrap(), Released::Released);
            assert_eq!(label(&mut leaders).await, None);
        }
        assert!(timeout(PATIENCE, leaders.next()).await.is_err(), "nothing has changed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_vanished_is_reported_as_gone() {
        let locks = locks();
        let election =
            locks.election_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(5))).unwrap();
        let mut leaders = another(&locks).election("a").observe();
        assert_eq!(label(&mut leaders).await, None);
        std::mem::forget(election.campaign("one").await.unwrap());
        assert_eq!(label(&mut leaders).await.as_deref(), Some("one"));
        assert_eq!(label(&mut leaders).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_candidate_that_lost_the_leadership_campaigns_again() {
        let locks = locks();
        let election = locks.election("a");
        let (sender, mut led) = mpsc::unbounded_channel();
        let run = tokio::spawn(async move {
            let body = |leadership: GuardView| {
                sender.send(leadership.token()).unwrap();
                pending::<()>()
            };
            election.run("one", body).await
        });
        let first = led.recv().await.unwrap();
        assert!(locks.break_lock("a").await.unwrap());
        assert!(led.recv().await.unwrap() > first);
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        // The dropped run resigns.
        assert!(timeout(PATIENCE, another(&locks).mutex("a").acquire()).await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn two_candidates_that_resign_in_their_own_loops_alternate() {
        let locks = locks();
        let (sender, mut led) = mpsc::unbounded_channel();
        for name in ["one", "two"] {
            let (locks, sender) = (another(&locks), sender.clone());
            tokio::spawn(async move {
                let election = locks.election("a");
                for round in 0..5 {
                    let body = |_| sleep(Duration::from_secs(1));
                    match round % 2 {
                        0 => election.run(name, body).await.unwrap(),
                        _ => drop(election.campaign(name).await.unwrap().resign().await.unwrap()),
                    }
                    sender.send(name).unwrap();
                }
            });
        }
        drop(sender);
        let mut order = Vec::new();
        while let Some(name) = timeout(PATIENCE, led.recv()).await.expect("nobody waits for itself") {
            order.push(name);
        }
        assert_eq!(order, ["one", "two"].repeat(5));
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_ends_with_an_error_that_does_not_pass() {
        let locks = locks();
        let mut leaders = locks.election("a").observe();
        assert_eq!(label(&mut leaders).await, None);
        let (closed, last) = tokio::join!(locks.close(), leaders.next());
        closed.unwrap();
        let error = last.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Closed, Some("observe")));
        assert!(leaders.next().await.is_none());
        let unnamed = locks.election("").observe().next().await;
        assert_eq!(unnamed.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(locks.election("").leader().await.unwrap_err().kind(), ErrorKind::InvalidName);
    }
}
