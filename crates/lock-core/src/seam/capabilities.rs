//! What a backend can do, and the checks that refuse the rest.

use std::time::Duration;

use crate::{Error, ErrorKind, LeasePolicy, Mode, Result};

/// The most names that [`Backend::list`](crate::Backend::list) returns.
pub const MAX_LISTED: usize = 100_000;
/// The answer timeout of a backend that sets no other.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A longer ttl is a mistake: the lock would outlive a dead holder by more than a year.
const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a backend can do.
///
/// # Examples
///
/// ```
/// # fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let capabilities = locks.capabilities();
/// if !capabilities.cross_process {
///     println!("{} locks exclude this process only", capabilities.backend);
/// }
/// if let Some(reason) = capabilities.permits.why_not() {
///     println!("no semaphores: {reason}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the backend, such as `redis`.
    pub backend: &'static str,
    /// What keeps a lock: a lease or a session.
    pub lease: LeaseKind,
    /// How long [`try_acquire`](crate::Mutex::try_acquire) waits for the answer of a server. After that, and 100 ms, the library
    /// drops the acquisition, which rolls it back, and returns [`Unavailable`](crate::ErrorKind::Unavailable).
    ///
    /// | backend | |
    /// |---|---|
    /// | redis | `connect_timeout` and `command_timeout`, and the timeout of `wait_replicas` |
    /// | postgres | `connect_timeout` and `command_timeout` |
    /// | redlock | `connect_timeout`, and twice `master_timeout` |
    /// | zk | the session timeout |
    /// | migrate | twice that of both stores together |
    /// | others | 10 s, if they set no other |
    pub answer_timeout: Duration,
    /// Whether other processes see the locks.
    pub cross_process: bool,
    /// Whether processes get a lock in the order of their requests.
    pub fifo: bool,
    /// Whether [`Backend::inspect`](crate::Backend::inspect) counts the waiters of other processes.
    pub counts_waiters: bool,
    /// Whether [`Backend::inspect`](crate::Backend::inspect) identifies every sharer of a lock; else only one of them.
    pub names_sharers: bool,
    /// Whether readers can share a lock, and a writer can [become one](crate::Lease::downgrade).
    pub shared: Support,
    /// Whether a limited number of holders can share a lock.
    pub permits: Support,
    /// Whether holders can be asked to release a lock.
    pub revocation: Support,
    /// Whether [one holder](crate::Backend::break_lock_if) can be removed, and only while it holds the lock.
    pub breaks_one: Support,
    /// Whether the locks can be [listed](crate::Backend::list).
    pub listing: Support,
}

/// Whether a backend supports an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Support {
    /// It does.
    Yes,
    /// It does not, for this reason.
    No(&'static str),
}

impl Support {
    /// Whether the operation is supported.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        matches!(self, Self::Yes)
    }

    /// Why the operation is not supported; `None` if it is.
    #[must_use]
    pub const fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Yes => None,
            Self::No(why) => Some(why),
        }
    }
}

/// What keeps a lock while its holder is silent.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let lease = locks.capabilities().lease;
/// println!("a lock outlives a crashed holder by at most {:?}", lease.default_ttl());
/// assert!(!lease.is_session() && lease.default_ttl() == Duration::from_secs(30));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseKind {
    /// A lease per lock, with a time to live. Made by [`LeaseKind::ttl`].
    #[non_exhaustive]
    Ttl {
        /// The time to live of a lock without a ttl of its own.
        default: Duration,
        /// The shortest safe time to live.
        min: Duration,
    },
    /// The session of the client, shared by all its locks. It ends at most its timeout (and a tick of the server) after the
    /// client died, and its locks end with it. A shorter ttl is refused. Made by [`LeaseKind::session`].
    #[non_exhaustive]
    Session {
        /// The session timeout that was negotiated.
        timeout: Duration,
    },
}

impl LeaseKind {
    /// A lease per lock, with this default and this shortest time to live.
    #[must_use]
    pub const fn ttl(default: Duration, min: Duration) -> Self {
        Self::Ttl { default, min }
    }

    /// A session with this timeout, shared by all locks of the client.
    #[must_use]
    pub const fn session(timeout: Duration) -> Self {
        Self::Session { timeout }
    }

    /// How long a lock without a ttl of its own outlives its holder.
    #[must_use]
    pub const fn default_ttl(self) -> Duration {
        match self {
            Self::Ttl { default, .. } => default,
            Self::Session { timeout } => timeout,
        }
    }

    /// The shortest time to live of a lock.
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
    /// The least that a backend can do: exclusive locks across processes, in no order.
    #[must_use]
    pub const fn new(backend: &'static str, lease: LeaseKind) -> Self {
        let none = Support::No("this backend has none");
        Self {
            backend,
            lease,
            answer_timeout: ANSWER_TIMEOUT,
            cross_process: true,
            fifo: false,
            counts_waiters: false,
            names_sharers: false,
            shared: none,
            permits: none,
            revocation: Support::No("its holders cannot be notified"),
            breaks_one: none,
            listing: none,
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
        Err(self.unsupported(
            format!("more than {MAX_LISTED} lock names begin with this prefix"),
            "use a longer prefix",
        ))
    }

    /// Refuses a revocation request where holders cannot be notified.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], with the reason.
    pub fn check_revocation(&self) -> Result<()> {
        self.check_support(
            self.revocation,
            "this backend cannot ask a holder to release its lock",
            "break the lock, or use another backend, such as zk://",
        )
    }

    /// Refuses a mode that the backend does not have.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], with the reason.
    pub fn check_mode(&self, mode: Mode) -> Result<()> {
        let (what, support) = match mode {
            Mode::Exclusive => return Ok(()),
            Mode::Shared => ("this backend has no read/write locks", self.shared),
            Mode::Permit { .. } => ("this backend has no semaphores", self.permits),
        };
        self.check_support(support, what, "use another backend for them, such as redis://")
    }

    /// Refuses a lease policy that the backend cannot honour.
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

    /// The policy of a lock that is [held at least](crate::LockOptions::hold_at_least) this long.
    pub(crate) fn at_least(&self, hold: Duration, policy: LeasePolicy) -> Result<LeasePolicy> {
        if self.lease.is_session() {
            let message =
                "a session keeps the lock, so it ends with its process: hold_at_least cannot be kept";
            return Err(self.unsupported(
                message.into(),
                "leave it out, or use a backend with leases, such as redis://",
            ));
        }
        let fixed = policy.ttl.filter(|_| !policy.renewed);
        if let Some(limit) = fixed.into_iter().chain(policy.max_hold).find(|limit| *limit < hold) {
            let message = format!("the lock ends after {limit:?}, and hold_at_least is {hold:?}");
            return Err(self.invalid(&message, "raise fixed_ttl or max_hold, or lower hold_at_least".into()));
        }
        let ttl = policy.ttl.unwrap_or_else(|| self.lease.default_ttl()).max(hold);
        Ok(LeasePolicy { ttl: Some(ttl), ..policy })
    }

    /// Refuses a time to live that the backend cannot honour. Where a session keeps the locks, they outlive their holder by
    /// the session timeout, so a shorter ttl cannot be kept.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`]; for a session, with the URL option that allows the ttl.
    pub fn check_lease_ttl(&self, ttl: Duration) -> Result<()> {
        match self.lease {
            LeaseKind::Ttl { min, .. } => self.check_ttl(ttl, min),
            LeaseKind::Session { timeout } if ttl < timeout => {
                let message = format!(
                    "a ttl of {ttl:?} is shorter than the session timeout of {timeout:?}, by which a lock outlives its \
                     holder"
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

    /// Refuses a time to live below the minimum or above a year.
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

    pub(crate) fn check_breaks_one(&self) -> Result<()> {
        self.check_support(
            self.breaks_one,
            "the lock of one holder only cannot be broken",
            "break it for all its holders: `Locks::break_lock`",
        )
    }

    pub(crate) fn check_listing(&self) -> Result<()> {
        self.check_support(self.listing, "the locks cannot be listed", "inspect locks whose names you know")
    }

    /// The error of a backend that claims a capability without implementing its method.
    pub(crate) fn not_implemented(&self, method: &str) -> Error {
        Error::new(ErrorKind::Unexpected, self.backend)
            .with_message(format!("the backend claims the capability, but does not implement `{method}`"))
            .with_hint("implement the method; a wrapper has to forward every method of `Backend`")
    }

    fn check_support(&self, support: Support, what: &str, hint: &'static str) -> Result<()> {
        match support {
            Support::Yes => Ok(()),
            Support::No(why) => Err(self.unsupported(format!("{what}: {why}"), hint)),
        }
    }

    fn unsupported(&self, message: String, hint: &'static str) -> Error {
        Error::new(ErrorKind::Unsupported, self.backend).with_message(message).with_hint(hint)
    }

    fn invalid(&self, message: &str, hint: String) -> Error {
        Error::new(ErrorKind::InvalidConfig, self.backend).with_message(message).with_hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

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
        assert!(error.to_string().contains("no semaphores: quorums do not compose"), "{error}");
        assert!(capabilities.check_mode(Mode::Shared).is_err());
        assert!(capabilities.check_mode(Mode::Exclusive).is_ok());
    }

    #[test]
    fn a_lock_that_cannot_be_held_for_so_long_is_refused() {
        let session = Capabilities::new("zk", LeaseKind::Session { timeout: SECOND });
        let error = session.at_least(SECOND, LeasePolicy::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let leases = Capabilities::new("redis", LeaseKind::Ttl { default: 30 * SECOND, min: SECOND });
        let fixed = LeasePolicy { ttl: Some(SECOND), renewed: false, max_hold: None };
        let ended = LeasePolicy { max_hold: Some(SECOND), ..LeasePolicy::default() };
        for policy in [fixed, ended] {
            assert_eq!(leases.at_least(2 * SECOND, policy).unwrap_err().kind(), ErrorKind::InvalidConfig);
            assert!(leases.at_least(SECOND, policy).is_ok());
        }
        let ttl = |hold| leases.at_least(hold, LeasePolicy::default()).unwrap().ttl;
        assert_eq!((ttl(SECOND), ttl(60 * SECOND)), (Some(30 * SECOND), Some(60 * SECOND)));
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
