//! What a backend implements.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// The attribute that implementations of [`Backend`] and [`Lease`] need.
pub use async_trait::async_trait;
use tokio::time::Instant;

use crate::{DoctorReport, Error, ErrorKind, Lease, LockName, LockState, OwnerInfo, Result, Token};

/// A store that grants locks.
///
/// # Contract
///
/// * A lock is granted to one holder at a time, or to several that may share it by their [`Mode`], and
///   the token of a grant is larger than every token granted before under the same name, by whatever
///   process.
/// * Who shares a lock has a lease of its own: that of one may end while the others last.
/// * Every acquisition has an [`OwnerId`](crate::OwnerId) of its own.
/// * Dropping a future at any await leaves nothing behind: what may have reached the server is
///   undone by a task that outlives the caller.
/// * A lock that is held by somebody else is [`Acquired::Busy`], never an error. So is one whose key
///   or node somebody uses for other things.
/// * The first answer of the server is awaited however short the deadline is; after it, the deadline
///   is kept, but for a moment in which a lock that nobody has may still be taken. An outage while
///   waiting is ridden out for about as long as a lease or session lasts.
///
/// One that wraps another backend and forwards its [`capabilities`](Self::capabilities) forwards every method, those with
/// a default too: `doctor` and `settle` of the wrapper would do nothing, and what the wrapped one
/// [can do](Support::Yes) would fail with [`Unexpected`](crate::ErrorKind::Unexpected).
///
/// The caller sends at most one `acquire` that waits for each process and name at a time: the others wait
/// in a queue of the process. Beside it may come some that do not wait, in a mode that may share the lock.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// What this backend can do.
    fn capabilities(&self) -> &Capabilities;

    /// Takes the lock, waiting as long as the request says.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or refuses.
    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired>;

    /// Looks at a lock without touching it.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or refuses.
    async fn inspect(&self, name: &LockName) -> Result<LockState>;

    /// Takes the lock away from whoever holds it, from all who share it, and says whether somebody did.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or refuses.
    async fn break_lock(&self, name: &LockName) -> Result<bool>;

    /// Takes the lock away from the holder with this token, if it still holds the lock, and says whether it did. Others
    /// that share the lock keep it. A backend whose [`Capabilities::breaks_one`] is there has its own way to do it; without
    /// one, each call is an error.
    ///
    /// The token is the one that [`inspect`](Self::inspect) shows. The store compares and removes in one step: a later
    /// holder is never touched.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot tell the holder by its token; when the
    /// server cannot be asked, or refuses.
    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let _ = (name, token);
        let capabilities = self.capabilities();
        capabilities.check_breaks_one().and_then(|()| Err(capabilities.not_there("break_lock_if")))
    }

    /// Gives the names of the locks that begin with this prefix, in any order and perhaps several times, at most
    /// [`MAX_LISTED`]. A backend whose [`Capabilities::listing`] is there has its own way to do it; without one, each call
    /// is an error.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where there is no list, or too many names are in it; when the server
    /// cannot be asked, or refuses.
    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let _ = prefix;
        let capabilities = self.capabilities();
        capabilities.check_listing().and_then(|()| Err(capabilities.not_there("list")))
    }

    /// Asks all who hold the lock to give it up, and says whether somebody did hold it. A backend whose
    /// [`Capabilities::revocation`] is there has its own way to do it; without one, each call is an error.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where there is no way to ask; when the server cannot
    /// be asked, or refuses.
    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        let _ = name;
        let capabilities = self.capabilities();
        capabilities.check_revocation().and_then(|()| Err(capabilities.not_there("request_revocation")))
    }

    /// Examines the servers: what they are, and what about them is a danger to locks. A backend that
    /// has nothing to examine reports nothing.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    async fn doctor(&self) -> Result<DoctorReport> {
        Ok(DoctorReport::default())
    }

    /// Waits until what dropped acquisitions may have left is removed, as far as the servers answer.
    /// [`Locks::close`](crate::Locks::close) waits for it before it calls [`close`](Self::close), for some seconds at most.
    ///
    /// Nothing by default. A wrapper has to forward it: else `close` leaves behind what was about to be removed.
    async fn settle(&self) {}

    /// Ends the connections. Locks that are held end as their leases or sessions do.
    ///
    /// # Errors
    ///
    /// When the server does not answer the farewell; the connections are closed all the same.
    async fn close(&self) -> Result<()>;
}

/// What an acquisition ended with.
#[derive(Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// The lock is ours.
    Held(Box<dyn Lease>),
    /// Somebody else holds it.
    Busy,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Not at all.
    Never,
    /// Until this instant; one that has passed asks once, as [`Wait::Never`] does.
    Until(Instant),
    /// Until the lock is ours.
    Forever,
}

impl Wait {
    /// Whether there is no time left.
    #[must_use]
    pub fn is_over(self) -> bool {
        match self {
            Self::Never => true,
            Self::Until(deadline) => Instant::now() >= deadline,
            Self::Forever => false,
        }
    }

    /// Until when, `None` for ever; in the past when not at all.
    #[must_use]
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Self::Never => Some(Instant::now()),
            Self::Until(deadline) => Some(deadline),
            Self::Forever => None,
        }
    }

    /// The time left, `None` for ever.
    #[must_use]
    pub fn left(self) -> Option<Duration> {
        match self {
            Self::Never => Some(Duration::ZERO),
            Self::Until(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }
}

/// How the lock ends when its holder does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasePolicy {
    /// The time to live: the lock ends at most this long after its holder died. `None` for the backend's default.
    pub ttl: Option<Duration>,
    /// Whether the lock lasts while the guard lives: the backend renews the lease, or the session keeps it. If not, it
    /// also ends `ttl` after it was granted or [extended](crate::Lease::extend).
    pub renewed: bool,
    /// The longest time that a renewed lease lasts in all.
    pub max_hold: Option<Duration>,
}

impl Default for LeasePolicy {
    fn default() -> Self {
        Self { ttl: None, renewed: true, max_hold: None }
    }
}

/// With whom a lock may be held at the same time.
///
/// All modes of one name are one lock: a holder of one mode excludes all of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// With nobody: a mutex, or the write side of a read/write lock.
    Exclusive,
    /// With everybody who asks for the same: the read side of a read/write lock.
    Shared,
    /// With others who ask for the same, until there are `max` of them: a semaphore.
    Permit {
        /// How many may hold the lock at once, by the one who asks.
        max: NonZeroU32,
    },
}

/// What is to be acquired, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub name: LockName,
    /// With whom it may be held at the same time.
    pub mode: Mode,
    /// How long to wait.
    pub wait: Wait,
    /// How the lock ends when its holder does nothing.
    pub lease: LeasePolicy,
    /// Who asks.
    pub owner: Arc<OwnerInfo>,
    /// Whether an exclusive lock is the write side of a read/write lock. It is the same lock as a mutex,
    /// but clients of other libraries may have to find it under another name.
    pub writes: bool,
    /// Who wants to know the place in the queue.
    pub on_queued: Option<OnQueued>,
}

/// Is told how many are before us in the queue, whenever that becomes known.
#[derive(Clone)]
pub struct OnQueued(Arc<dyn Fn(usize) + Send + Sync>);

impl OnQueued {
    /// Calls this, which must not block.
    pub fn new(told: impl Fn(usize) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    /// So many are before us.
    pub fn tell(&self, before: usize) {
        (self.0)(before);
    }
}

impl Debug for OnQueued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnQueued")
    }
}

impl AcquireRequest {
    /// A request for an exclusive lock.
    #[must_use]
    pub const fn exclusive(name: LockName, wait: Wait, lease: LeasePolicy, owner: Arc<OwnerInfo>) -> Self {
        Self { name, mode: Mode::Exclusive, wait, lease, owner, writes: false, on_queued: None }
    }

    /// The same request in another mode.
    #[must_use]
    pub const fn in_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Tells the one who asks how many are before it in the queue, where the backend knows.
    pub fn report_position(&self, before: usize) {
        if let Some(on_queued) = &self.on_queued {
            on_queued.tell(before);
        }
    }
}

/// What a backend can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the backend, such as `redis`.
    pub backend: &'static str,
    /// What keeps a lock.
    pub lease: LeaseKind,
    /// Whether other processes see the locks.
    pub cross_process: bool,
    /// Whether processes get a lock in the order in which they asked for it.
    pub fifo: bool,
    /// Whether [`Backend::inspect`] counts the waiters of other processes.
    pub counts_waiters: bool,
    /// Whether [`Backend::inspect`] shows who each of several holders is; else of one of them only.
    pub names_sharers: bool,
    /// Whether locks can be shared by readers, and a writer can [become one](crate::Lease::downgrade).
    pub shared: Support,
    /// Whether locks can be held by a limited number at once.
    pub permits: Support,
    /// Whether holders can be asked to give a lock up.
    pub revocation: Support,
    /// Whether a lock can be taken away from [one holder](Backend::break_lock_if), and only while it holds it.
    pub breaks_one: Support,
    /// Whether the locks can be [listed](Backend::list).
    pub listing: Support,
}

/// Whether a backend can do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot, for this reason.
    No(&'static str),
}

impl Support {
    /// Whether it can.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        matches!(self, Self::Yes)
    }

    /// Why it cannot.
    #[must_use]
    pub const fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Yes => None,
            Self::No(why) => Some(why),
        }
    }
}

/// What keeps a lock while its holder does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseKind {
    /// A lease of its own, with a time to live; made by [`LeaseKind::ttl`].
    #[non_exhaustive]
    Ttl {
        /// The time to live when nothing else is said.
        default: Duration,
        /// The shortest that is safe.
        min: Duration,
    },
    /// The session of the client, shared by all its locks: they end when it does, which is at most its timeout after the
    /// client died (and up to a tick of the server). A shorter time to live is refused. Made by [`LeaseKind::session`].
    #[non_exhaustive]
    Session {
        /// The session timeout that was negotiated.
        timeout: Duration,
    },
}

impl LeaseKind {
    /// A lease of its own for each lock, with this time to live when nothing else is said, and this one at least.
    #[must_use]
    pub const fn ttl(default: Duration, min: Duration) -> Self {
        Self::Ttl { default, min }
    }

    /// A session with this timeout, shared by all locks of the client.
    #[must_use]
    pub const fn session(timeout: Duration) -> Self {
        Self::Session { timeout }
    }

    /// For how long a lock outlives its holder when nothing else is said.
    #[must_use]
    pub const fn default_ttl(self) -> Duration {
        match self {
            Self::Ttl { default, .. } => default,
            Self::Session { timeout } => timeout,
        }
    }

    /// The shortest time to live that a lock can have.
    #[must_use]
    pub const fn min_ttl(self) -> Duration {
        match self {
            Self::Ttl { min, .. } => min,
            Self::Session { timeout } => timeout,
        }
    }

    /// Whether a session keeps the locks.
    #[must_use]
    pub const fn is_session(self) -> bool {
        matches!(self, Self::Session { .. })
    }
}

impl Capabilities {
    /// The capabilities of a backend that is seen by other processes, grants exclusive locks only, in
    /// no order, and counts no waiters.
    #[must_use]
    pub const fn new(backend: &'static str, lease: LeaseKind) -> Self {
        let not_built = Support::No("this backend has none");
        Self {
            backend,
            lease,
            cross_process: true,
            fifo: false,
            counts_waiters: false,
            names_sharers: false,
            shared: not_built,
            permits: not_built,
            revocation: Support::No("its holders cannot be told anything"),
            breaks_one: not_built,
            listing: not_built,
        }
    }

    /// The error of a backend that says that it can do something, and does not implement it.
    fn not_there(&self, method: &str) -> Error {
        Error::new(ErrorKind::Unexpected, self.backend)
            .with_message(format!("the backend says that it can, and does not implement `{method}`"))
            .with_hint("implement it there; a wrapper has to forward every method of `Backend`")
    }

    fn check_breaks_one(&self) -> Result<()> {
        match self.breaks_one {
            Support::Yes => Ok(()),
            Support::No(why) => Err(Error::new(ErrorKind::Unsupported, self.backend)
                .with_message(format!("a lock cannot be taken away from one holder only: {why}"))
                .with_hint("inspect the lock, and break it for whoever holds it")),
        }
    }

    fn check_listing(&self) -> Result<()> {
        match self.listing {
            Support::Yes => Ok(()),
            Support::No(why) => Err(Error::new(ErrorKind::Unsupported, self.backend)
                .with_message(format!("the locks cannot be listed: {why}"))
                .with_hint("look at those whose names you know")),
        }
    }

    /// Refuses a list of more than [`MAX_LISTED`] names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn check_listed(&self, names: usize) -> Result<()> {
        if names <= MAX_LISTED {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, self.backend)
            .with_message(format!("there are more than {MAX_LISTED} locks whose names begin so"))
            .with_hint("ask for a longer prefix"))
    }

    /// Refuses to ask holders where they cannot be asked.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], with the reason.
    pub fn check_revocation(&self) -> Result<()> {
        match self.revocation {
            Support::Yes => Ok(()),
            Support::No(why) => Err(Error::new(ErrorKind::Unsupported, self.backend)
                .with_message(format!("nobody can be asked to give up a lock here: {why}"))
                .with_hint("break the lock, or use another backend, such as zk://")),
        }
    }

    /// Refuses a mode that the backend does not have.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], with the reason.
    pub fn check_mode(&self, mode: Mode) -> Result<()> {
        let (what, support) = match mode {
            Mode::Exclusive => return Ok(()),
            Mode::Shared => ("read/write locks", self.shared),
            Mode::Permit { .. } => ("semaphores", self.permits),
        };
        match support {
            Support::Yes => Ok(()),
            Support::No(why) => Err(Error::new(ErrorKind::Unsupported, self.backend)
                .with_message(format!("there are no {what} here: {why}"))
                .with_hint("use another backend for them, such as redis://")),
        }
    }

    /// Refuses what the backend cannot honour.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::InvalidConfig`].
    pub fn check(&self, policy: LeasePolicy) -> Result<()> {
        if policy.max_hold.is_some_and(|hold| hold.is_zero()) {
            return Err(self.invalid("max_hold is zero", "give a longer time or leave it out".into()));
        }
        policy.ttl.map_or(Ok(()), |ttl| self.check_lease_ttl(ttl))
    }

    /// Refuses a time to live that a lock cannot have here. Where a session keeps the locks, they last for the session
    /// timeout after their holder died, so that no ttl below that can be kept.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`]; for a session, with the option of the URL that makes it possible.
    pub fn check_lease_ttl(&self, ttl: Duration) -> Result<()> {
        match self.lease {
            LeaseKind::Ttl { min, .. } => self.check_ttl(ttl, min),
            LeaseKind::Session { timeout } if ttl < timeout => {
                let message = format!(
                    "a ttl of {ttl:?} is shorter than the session timeout of {timeout:?}: a lock lasts for so long \
                     after its holder died"
                );
                let hint = format!(
                    "set session_timeout={}ms in the URL, if the servers allow it, or use at least {timeout:?}",
                    ttl.as_millis().max(1)
                );
                Err(self.invalid(&message, hint))
            }
            LeaseKind::Session { timeout } => self.check_ttl(ttl, timeout),
        }
    }

    /// Refuses a time to live below the minimum, or above a year.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`].
    pub fn check_ttl(&self, ttl: Duration, min: Duration) -> Result<()> {
        if ttl < min {
            return Err(
                self.invalid(&format!("a ttl of {ttl:?} is too short"), format!("use at least {min:?}"))
            );
        }
        if ttl > MAX_TTL {
            let hint = format!("use at most {} days", MAX_TTL.as_secs() / 86_400);
            return Err(self.invalid(&format!("a ttl of {ttl:?} is too long"), hint));
        }
        Ok(())
    }

    fn invalid(&self, message: &str, hint: String) -> Error {
        Error::new(ErrorKind::InvalidConfig, self.backend).with_message(message).with_hint(hint)
    }
}

/// The most names that [`Backend::list`] gives.
pub const MAX_LISTED: usize = 100_000;
/// A lock that is to outlive its holder by more than this is a mistake.
const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn options_that_a_backend_cannot_honour_are_refused() {
        let session = Capabilities::new("zk", LeaseKind::Session { timeout: 4 * SECOND });
        for renewed in [true, false] {
            let policy = |ttl| LeasePolicy { ttl: Some(ttl), renewed, max_hold: None };
            let error = session.check(policy(4 * SECOND - Duration::from_millis(1))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains("set session_timeout=3999ms in the URL"), "{error}");
            assert!(session.check(policy(4 * SECOND)).is_ok());
            assert!(session.check(policy(2 * MAX_TTL)).is_err());
        }
        assert!(session.check(LeasePolicy::default()).is_ok());
    }

    #[test]
    fn modes_that_a_backend_does_not_have_are_refused_with_the_reason() {
        let mut capabilities = Capabilities::new("redlock", LeaseKind::Session { timeout: SECOND });
        capabilities.permits = Support::No("quorums do not compose");
        let permit = Mode::Permit { max: NonZeroU32::MIN };
        let error = capabilities.check_mode(permit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("no semaphores here: quorums do not compose"), "{error}");
        assert!(capabilities.check_mode(Mode::Shared).is_err());
        assert!(capabilities.check_mode(Mode::Exclusive).is_ok());
    }

    #[test]
    fn too_short_times_are_refused() {
        let leases = Capabilities::new("redis", LeaseKind::Ttl { default: 30 * SECOND, min: SECOND });
        for ttl in [Duration::ZERO, SECOND / 2] {
            let error = leases.check(LeasePolicy { ttl: Some(ttl), ..LeasePolicy::default() }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains("at least 1s"), "{error}");
        }
        let no_hold = LeasePolicy { max_hold: Some(Duration::ZERO), ..LeasePolicy::default() };
        assert_eq!(leases.check(no_hold).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
