//! What happens to locks, for metrics, traces and logs.

use std::fmt::Debug;
use std::time::Duration;

use crate::{Error, LockName, LossReason, Mode, Token, Wait};

/// Learns what happens to locks: see [`Locks::observe`](crate::Locks::observe). An [`Observer`](crate::Observer) follows an
/// election instead.
///
/// * **Everything that begins ends once.** The last event of an acquisition is one for which [`LockEvent::is_last`] holds, also
///   when its future or guard is dropped. A guard that is forgotten ends with its lock. Events come in order.
/// * **It is called where things happen**, by the task that acquires or releases, and must not block. It may use the same
///   [`Locks`](crate::Locks): nothing that they need is locked meanwhile.
/// * **A panic is caught and logged.** The lock goes on, and so do other observers.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::{LockName, MemoryConfig};
/// use lock_core::observe::{Acquisition, LockEvent, LockObserver, Observation};
///
/// #[derive(Debug)]
/// struct Log;
///
/// #[derive(Debug)]
/// struct LogOf(LockName);
///
/// impl LockObserver for Log {
///     fn begin(&self, acquisition: &Acquisition<'_>) -> Box<dyn Observation> {
///         Box::new(LogOf(acquisition.name.clone()))
///     }
/// }
///
/// impl Observation for LogOf {
///     fn on(&self, event: &LockEvent, after: Duration) {
///         println!("{}: {event:?} after {after:?}", self.0); // orders/42: Requested after 1µs
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let locks = MemoryConfig::new().connect()?.observe(Log);
/// locks.mutex("orders/42").acquire().await?.release().await?;
/// # Ok(())
/// # }
/// ```
pub trait LockObserver: Debug + Send + Sync + 'static {
    /// An acquisition begins. What this returns learns what becomes of it, and of the lock that it gets.
    fn begin(&self, acquisition: &Acquisition<'_>) -> Box<dyn Observation>;

    /// The store refused a request that belongs to no acquisition, such as `inspect`, or did not answer it.
    fn failed(&self, backend: &'static str, operation: &'static str, lock: Option<&LockName>, error: &Error) {
        let _ = (backend, operation, lock, error);
    }
}

/// Learns what becomes of one acquisition, and of the lock that it gets.
pub trait Observation: Debug + Send + Sync {
    /// This has just happened: so long after the acquisition began, or after it got the lock that it holds by now.
    fn on(&self, event: &LockEvent, after: Duration);

    /// Runs a step of the acquisition, or of a later request of its guard, exactly once: for a context of the thread, such as
    /// a span, in which a backend logs what it does.
    fn run(&self, step: &mut dyn FnMut()) {
        step();
    }
}

/// An acquisition that begins.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Acquisition<'a> {
    /// The backend.
    pub backend: &'static str,
    /// The name of the lock, as the caller has it: without the prefixes of layers.
    pub name: &'a LockName,
    /// With which other holders the lock may be shared.
    pub mode: Mode,
    /// How long the caller waits.
    pub wait: Wait,
}

/// What happens to an acquisition, and to the lock that it gets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockEvent {
    /// Other tasks of this process are ahead. [`LeftQueue`](Self::LeftQueue) follows.
    Queued,
    /// It is its turn, it got the lock of the task before, or it gave up: so long after it queued.
    LeftQueue(Duration),
    /// A request is sent to the store, which answers once it grants the lock, or will not.
    Requested,
    /// The store refused the request, or did not answer. It is repeated after a pause.
    Refused(Error),
    /// The lock was acquired.
    Acquired {
        /// Its fencing token.
        token: Token,
        /// Whether another task of this process handed it over, so that the store granted nothing.
        is_handed_over: bool,
    },
    /// Others hold the lock, and the patience of the caller has ended. The last event.
    Busy,
    /// The acquisition failed. The last event.
    Failed(Error),
    /// The future of the acquisition was dropped, or the locks were closed. The last event.
    Cancelled,
    /// The deadline has moved: so much time is left.
    Renewed(Duration),
    /// The server does not answer, and so much time is left until the deadline.
    Suspect(Duration),
    /// The server answers again.
    Confirmed,
    /// A request of the guard failed, such as `extend`. A release is repeated in the background.
    RequestFailed(&'static str, Error),
    /// The lock was held until its release. The last event.
    Released,
    /// The lock went to another task of this process. The last event.
    HandedOver,
    /// The lock was lost. The last event.
    Lost(LossReason),
    /// The guard ended, and left the lock to its time to live or session: it is [held at
    /// least](crate::LockOptions::hold_at_least) for longer, or could not be released. The last event.
    Left,
}

impl LockEvent {
    /// Whether the acquisition, or the lock that it got, has ended. A guard whose lock was lost may still be used, and its
    /// requests [fail](Self::RequestFailed).
    #[must_use]
    pub const fn is_last(&self) -> bool {
        use LockEvent::{Busy, Cancelled, Failed, HandedOver, Left, Lost, Released};
        matches!(self, Busy | Failed(_) | Cancelled | Released | HandedOver | Lost(_) | Left)
    }
}
