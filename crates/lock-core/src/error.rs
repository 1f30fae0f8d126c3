//! What can go wrong, told to the person who reads it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::LockName;

/// The result of a lock operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock operation failed.
///
/// Contention is not an error: `try_acquire` answers `Ok(None)` when somebody else holds the lock.
///
/// The text says what failed, on which backend and lock, and what to do next; it never holds a
/// password. Use [`kind`](Self::kind), [`is_retryable`](Self::is_retryable) and
/// [`outcome`](Self::outcome) to decide in code, and [`code`](Self::code) in logs and metrics.
///
/// ```
/// # use lock_core::{ErrorKind, Locks, Memory, MemoryConfig, Outcome};
/// let error = MemoryConfig::from_url("memory://?tll=10s").unwrap_err();
/// assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "invalid_config"));
/// assert_eq!((error.backend(), error.outcome()), ("memory", Outcome::NotApplied));
/// assert!(!error.is_retryable());
/// println!("{}: {}", error.message(), error.hint().unwrap_or("ask the operator"));
/// ```
#[derive(Clone)]
pub struct Error {
    details: Box<Details>,
}

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    outcome: Outcome,
    /// Narrower than that of the kind.
    code: Option<&'static str>,
    backend: &'static str,
    operation: Option<&'static str>,
    lock: Option<LockName>,
    message: String,
    hint: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock name is empty or too long, or the backend cannot take it.
    InvalidName,
    /// A URL or an option is wrong.
    InvalidConfig,
    /// The backend cannot honour the option or the operation.
    Unsupported,
    /// The server, or a quorum of servers, did not answer.
    Unavailable,
    /// The server refuses us: wrong password, missing right.
    Denied,
    /// The lock was lost: its lease ran out, its key or node was removed, its session ended.
    Lost,
    /// A limit of the store is reached, and granting the lock would not be safe.
    Exhausted,
    /// The [`Locks`](crate::Locks) were closed.
    Closed,
    /// The server answered something that it should not.
    Unexpected,
}

impl ErrorKind {
    /// The kind as a word of a log or a metric; it never changes.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidName => "invalid_name",
            Self::InvalidConfig => "invalid_config",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Lost => "lost",
            Self::Exhausted => "exhausted",
            Self::Closed => "closed",
            Self::Unexpected => "unexpected",
        }
    }
}

/// What became of the request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It had no effect on the server.
    NotApplied,
    /// It took effect, and the error came later.
    Applied,
    /// It may have taken effect. What it may have left behind is cleaned up in the background.
    Unknown,
}

/// What is named where no backend is known.
pub(crate) const NO_BACKEND: &str = "polylock";

impl Error {
    /// An error of this kind on this backend, not applied and without any text yet.
    #[must_use]
    pub fn new(kind: ErrorKind, backend: &'static str) -> Self {
        let details = Details {
            kind,
            outcome: Outcome::NotApplied,
            code: None,
            backend,
            operation: None,
            lock: None,
            message: String::new(),
            hint: None,
            source: None,
        };
        Self { details: Box::new(details) }
    }

    /// The error of a holder that is none any more.
    #[must_use]
    pub fn lost(backend: &'static str) -> Self {
        Self::new(ErrorKind::Lost, backend)
            .with_message("the lock is no longer ours")
            .with_hint("stop the work that it protects, and acquire it again")
    }

    /// The error of locks that were closed.
    #[must_use]
    pub fn closed(backend: &'static str) -> Self {
        Self::new(ErrorKind::Closed, backend).with_message("the locks were closed").with_hint("connect again")
    }

    /// Says what failed.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.details.message = message.into();
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.details.hint = Some(hint.into());
        self
    }

    /// Says what became of the request.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.details.outcome = outcome;
        self
    }

    /// Gives it a narrower [code](Self::code) than that of its kind.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.details.code = Some(code);
        self
    }

    /// Names the operation, such as `acquire`, unless it is named already.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.details.operation.get_or_insert(operation);
        self
    }

    /// Names the backend, unless it is named already.
    pub(crate) fn on_backend(mut self, backend: &'static str) -> Self {
        if self.details.backend == NO_BACKEND {
            self.details.backend = backend;
        }
        self
    }

    /// Names the lock, unless it is named already.
    #[must_use]
    pub fn on(mut self, lock: &LockName) -> Self {
        self.details.lock.get_or_insert_with(|| lock.clone());
        self
    }

    /// Keeps the error below this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.details.source = Some(Arc::new(source));
        self
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.details.kind
    }

    /// Whether the same call on the same object may succeed later without a change to code or configuration.
    ///
    /// `while error.is_retryable()` is right, with a pause between two calls, but for two of them:
    ///
    /// * [`break_lock`](crate::Locks::break_lock) with [`Outcome::Unknown`] may have broken the lock, and a second call breaks
    ///   the next holder. [`break_lock_if`](crate::Locks::break_lock_if) with the token of the first can be repeated.
    /// * [`close`](crate::Locks::close) closes also when it fails. A second call answers `Ok`, though dropped guards were
    ///   not released.
    ///
    /// It is false for [`Lost`](ErrorKind::Lost): a guard that was lost stays lost. Acquire the lock again instead.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.details.kind, ErrorKind::Unavailable)
    }

    /// A stable word for programs, logs and metrics: that of the [kind](ErrorKind::code), or a narrower one.
    ///
    /// | code | kind | | set by |
    /// |---|---|---|---|
    /// | `invalid_name` `invalid_config` `unsupported` `unavailable` `denied` `lost` `exhausted` `closed` `unexpected` | the same | nothing more is known | all |
    /// | `dns` | `Unavailable` | the host name could not be resolved | redis, redlock |
    /// | `refused` | `Unavailable` | nobody listens at the port | redis, redlock |
    /// | `no_socket` | `Unavailable` | the Unix socket does not exist | redis, redlock |
    /// | `no_tls` | `Unavailable` | the port does not speak TLS | redis, redlock |
    /// | `bad_certificate` | `InvalidConfig` | one side does not trust the certificate of the other | redis, redlock |
    /// | `timeout` | `Unavailable` | no answer in time | redis, redlock; zk for some requests |
    /// | `broken` | `Unavailable` | the connection broke | redis, redlock; zk for some requests |
    /// | `no_quorum` | any | too few masters agreed | redlock |
    /// | `wrong_server` | `InvalidConfig` | a sentinel, a plain server or a node of a cluster where another is expected | redis, redlock |
    /// | `replica` | `Unavailable` | the server follows another one | redis, redlock |
    ///
    /// On ZooKeeper the driver tells no more about a connection that cannot be made: a host that is not known, a port that is
    /// refused and a silence are all `unavailable`. On Redlock those of single masters are in the text.
    ///
    /// New codes may come; one that an error has does not change.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.details.code.unwrap_or_else(|| self.details.kind.code())
    }

    /// What failed, without backend, operation, lock and hint.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.details.message
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.details.hint.as_deref()
    }

    /// What became of the request.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.details.outcome
    }

    /// The name of the backend, such as `redis`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.details.backend
    }

    /// The operation that failed, such as `acquire`.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.details.operation
    }

    /// The lock that the operation was for.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        self.details.lock.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &*self.details;
        write!(f, "{}: ", details.backend)?;
        if let Some(operation) = details.operation {
            write!(f, "{operation}")?;
            if let Some(lock) = &details.lock {
                write!(f, " {lock:?}")?;
            }
            f.write_str(": ")?;
        } else if let Some(lock) = &details.lock {
            write!(f, "lock {lock:?}: ")?;
        }
        f.write_str(&details.message)?;
        if let Some(hint) = &details.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.details.source.as_deref().map(|source| source as _)
    }
}

/// The whole story in one line, as it is printed when `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_string();
        write!(f, "{text} [{:?}, {:?}]", self.details.kind, self.details.outcome)?;
        let mut cause = self.source();
        while let Some(error) = cause {
            let told = error.to_string();
            // Some are in the text already.
            if !text.contains(&told) {
                write!(f, ": {told}")?;
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn text_names_backend_operation_lock_and_way_out() {
        let name = LockName::new("orders/42").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "redis")
            .with_message("connection refused")
            .with_hint("start the server")
            .during("acquire")
            .on(&name);
        assert_eq!(error.to_string(), "redis: acquire \"orders/42\": connection refused; start the server");
        assert!(error.is_retryable());
        assert_eq!(error.outcome(), Outcome::NotApplied);
    }

    #[test]
    fn debug_tells_the_causes_that_the_text_does_not() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let below = Error::new(ErrorKind::Unavailable, "redis")
            .with_message("cannot connect to \"b\"")
            .caused_by(refused);
        let error = Error::new(ErrorKind::Denied, "redlock").with_outcome(Outcome::Unknown);
        let silent = error.clone().with_message("no quorum").caused_by(below.clone());
        let cause = "connection refused";
        assert_eq!(
            format!("{silent:?}"),
            format!("redlock: no quorum [Denied, Unknown]: redis: cannot connect to \"b\": {cause}")
        );
        let telling = error.with_message(format!("no quorum: {below}")).caused_by(below);
        assert_eq!(
            format!("{telling:?}"),
            format!("redlock: no quorum: redis: cannot connect to \"b\" [Denied, Unknown]: {cause}")
        );
    }

    #[test]
    fn the_first_operation_stays() {
        let error = Error::new(ErrorKind::Lost, "zk").with_message("gone").during("extend").during("acquire");
        assert_eq!(error.operation(), Some("extend"));
    }
}
