//! The error of all lock operations.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{LockName, one_line};

/// The result of a lock operation.
///
/// # Examples
///
/// ```
/// async fn count(locks: &lock_core::Locks) -> lock_core::Result<usize> {
///     Ok(locks.list("orders/").await?.len())
/// }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock operation failed.
///
/// Contention is not an error: `try_acquire` returns `Ok(None)` when the lock is held.
///
/// The text says what failed, on which backend and lock, and what to do next; it never contains a
/// password. Use [`kind`](Self::kind), [`is_retryable`](Self::is_retryable) and
/// [`outcome`](Self::outcome) to decide in code, and [`code`](Self::code) in logs and metrics.
///
/// # Examples
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
    /// Where it differs from what the kind says.
    can_pass: Option<bool>,
    was_waiting: bool,
    backend: &'static str,
    operation: Option<&'static str>,
    lock: Option<LockName>,
    message: String,
    hint: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
///
/// # Examples
///
/// ```
/// # use lock_core::{ErrorKind, MemoryConfig};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let error = locks.mutex("").acquire().await.unwrap_err();
/// match error.kind() {
///     ErrorKind::Unavailable => println!("try again later: {error}"),
///     ErrorKind::InvalidName => println!("fix the program: {error}"),
///     kind => println!("{}: {error}", kind.code()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock name is empty or too long, or the backend refuses it.
    InvalidName,
    /// A URL or an option is wrong.
    InvalidConfig,
    /// The backend cannot honour the option or the operation.
    Unsupported,
    /// The server, or a quorum of servers, did not answer.
    Unavailable,
    /// The server refuses the client: a wrong password, a missing right.
    Denied,
    /// The lock has moved to another store, and this one refuses it: see [`migration`](crate::seam::migration).
    Moved,
    /// The lock was lost: its lease expired, its key or node was removed, its session ended.
    Lost,
    /// A limit of the store is reached, and granting the lock would not be safe.
    Exhausted,
    /// The [`Locks`](crate::Locks) were closed.
    Closed,
    /// The server gave an unexpected answer.
    Unexpected,
}

impl ErrorKind {
    /// The kind as a stable word for logs and metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidName => "invalid_name",
            Self::InvalidConfig => "invalid_config",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Moved => "moved",
            Self::Lost => "lost",
            Self::Exhausted => "exhausted",
            Self::Closed => "closed",
            Self::Unexpected => "unexpected",
        }
    }
}

/// What became of a request that failed.
///
/// # Examples
///
/// ```
/// # use lock_core::{Locks, Outcome, Token};
/// async fn remove(locks: &Locks, lock: &str, token: Token) -> lock_core::Result<bool> {
///     match locks.break_lock_if(lock, token).await {
///         // It may have been applied. With a token it is safe to repeat.
///         Err(error) if error.outcome() == Outcome::Unknown => locks.break_lock_if(lock, token).await,
///         result => result,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It had no effect on the server.
    NotApplied,
    /// It took effect, and the error came later.
    Applied,
    /// It may have taken effect. The library rolls it back in the background where that is needed.
    Unknown,
}

/// The backend of an error that no backend caused.
pub(crate) const NO_BACKEND: &str = "polylock";

impl Error {
    /// An error of this kind on this backend, not applied and without any text yet.
    #[must_use]
    pub fn new(kind: ErrorKind, backend: &'static str) -> Self {
        let details = Details {
            kind,
            outcome: Outcome::NotApplied,
            code: None,
            can_pass: None,
            was_waiting: false,
            backend,
            operation: None,
            lock: None,
            message: String::new(),
            hint: None,
            source: None,
        };
        Self { details: Box::new(details) }
    }

    /// The error of a holder that lost its lock.
    #[must_use]
    pub fn lost(backend: &'static str) -> Self {
        Self::new(ErrorKind::Lost, backend)
            .with_message("the lock was lost")
            .with_hint("stop the work that it protects, and acquire it again")
    }

    /// The error of locks that were closed.
    #[must_use]
    pub fn closed(backend: &'static str) -> Self {
        Self::new(ErrorKind::Closed, backend).with_message("the locks were closed").with_hint("connect again")
    }

    /// The error of a lock whose grant arrived after the end of its lease.
    #[must_use]
    pub fn too_late(backend: &'static str, ttl: Duration) -> Self {
        Self::new(ErrorKind::Unavailable, backend)
            .with_message(format!(
                "the server granted the lock, but its answer took longer than the ttl of {ttl:?}"
            ))
            .with_hint("use a longer ttl; the lock is released")
            .with_outcome(Outcome::Applied)
    }

    /// Sets the message: what failed. It becomes [one line](one_line), as it may quote what others have written.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.details.message = line_of(message.into());
        self
    }

    /// Sets the hint: what to do next, in [one line](one_line).
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.details.hint = Some(line_of(hint.into()));
        self
    }

    /// Sets what became of the request.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.details.outcome = outcome;
        self
    }

    /// Sets a narrower [code](Self::code) than that of the kind.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.details.code = Some(code);
        self
    }

    /// Sets whether the cause [can pass](Self::can_pass), where that does not follow from the kind.
    #[must_use]
    pub fn with_can_pass(mut self, can_pass: bool) -> Self {
        self.details.can_pass = Some(can_pass);
        self
    }

    /// Notes that the error ended a wait: the store had answered that the lock is busy. See [`Persistence`](crate::Persistence).
    #[must_use]
    pub fn while_waiting(mut self) -> Self {
        self.details.was_waiting = true;
        self
    }

    /// Sets the operation, such as `acquire`, unless it is set already.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.details.operation.get_or_insert(operation);
        self
    }

    /// Sets the backend, unless it is set already.
    pub(crate) fn on_backend(mut self, backend: &'static str) -> Self {
        if self.details.backend == NO_BACKEND {
            self.details.backend = backend;
        }
        self
    }

    /// Sets the lock, unless it is set already.
    #[must_use]
    pub fn on(mut self, lock: &LockName) -> Self {
        self.details.lock.get_or_insert_with(|| lock.clone());
        self
    }

    /// Sets the cause.
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
    /// `while error.is_retryable()`, with a pause between two calls, is right for all operations but two:
    ///
    /// * [`break_lock`](crate::Locks::break_lock) with [`Outcome::Unknown`] may have broken the lock, and a second call breaks
    ///   that of the next holder. [`break_lock_if`](crate::Locks::break_lock_if) can be repeated.
    /// * [`close`](crate::Locks::close) closes even when it fails. A second call returns `Ok`, though dropped guards were
    ///   not released.
    ///
    /// It is false for [`Lost`](ErrorKind::Lost), which is final: acquire the lock again instead.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.details.kind, ErrorKind::Unavailable)
    }

    /// Whether the cause may pass while the process runs, as it lies with the servers: one is down, loading, read-only, busy with
    /// a script or out of memory; it refuses a password, a right or a certificate, until an operator has repaired that.
    ///
    /// A wrong name, a wrong option, closed locks and used-up sequence numbers do not pass. See
    /// [`Persistence`](crate::Persistence) for what goes on through an error that can pass. All
    /// [retryable](Self::is_retryable) errors can, but for those of a runtime that was shut down.
    #[must_use]
    pub fn can_pass(&self) -> bool {
        self.details.can_pass.unwrap_or(matches!(
            self.details.kind,
            ErrorKind::Unavailable | ErrorKind::Denied | ErrorKind::Exhausted
        ))
    }

    /// Whether the error [ended a wait](Self::while_waiting) for a busy lock.
    #[must_use]
    pub fn was_waiting(&self) -> bool {
        self.details.was_waiting
    }

    /// A stable word for programs, logs and metrics: that of the [kind](ErrorKind::code), or a narrower one.
    ///
    /// | code | kind | | set by |
    /// |---|---|---|---|
    /// | `invalid_name` `invalid_config` `unsupported` `unavailable` `denied` `lost` `moved` `exhausted` `closed` `unexpected` | the same | no narrower code is known | all |
    /// | `dns` | `Unavailable` | the host name could not be resolved | redis, redlock |
    /// | `refused` | `Unavailable` | no server listens at the port | postgres, redis, redlock |
    /// | `no_socket` | `Unavailable` | the Unix socket does not exist | postgres, redis, redlock |
    /// | `no_tls` | `Unavailable` | the port does not speak TLS | postgres, redis, redlock |
    /// | `bad_certificate` | `InvalidConfig` | one side does not trust the certificate of the other | postgres, redis, redlock |
    /// | `no_credentials` | `InvalidConfig` at the first connect, `Unavailable` later | a password or a file of TLS cannot be read | all but memory, flock, sqlite, s3 |
    /// | `timeout` | `Unavailable` | no answer in time | all |
    /// | `broken` | `Unavailable` | the connection broke | postgres, redis, redlock; zk for some requests |
    /// | `no_quorum` | any | too few masters agreed | redlock |
    /// | `wrong_server` | `InvalidConfig` | a sentinel, a plain server or a cluster node where another of these is expected | redis, redlock |
    /// | `replica` | `Unavailable` | the server is a replica, or read-only | postgres, redis, redlock |
    /// | `not_installed` | `InvalidConfig` | the schema of the locks is missing, or too old | postgres |
    /// | `too_many_connections` | `Unavailable` | the server has no connection left | postgres |
    /// | `locked` | `Unavailable` | an open transaction with a fence has the lock for long | postgres |
    /// | `foreign_schema` | `Denied` | the schema of the locks can be changed by a role that is not trusted | postgres |
    /// | `silent` | `Unavailable` | the store did not answer in time | etcd, mysql, sqlite, s3, kv |
    /// | `contended` | `Unavailable` | others have changed the record of the lock too often | etcd, mysql, sqlite, s3, kv |
    /// | `unconditional` | `InvalidConfig` | the store ignores the condition of a write | s3 |
    /// | `read_only` | `Unavailable` | the server is read-only | mysql |
    /// | `injected` | `Unavailable` | a fault of the chaos layer | any, in tests |
    /// | `refused_step` | `InvalidConfig` | the migration does not allow this step where it is | migrate |
    ///
    /// On ZooKeeper the driver does not distinguish the causes of a failed connection: an unknown host, a refused port and
    /// a silent server are all `unavailable`; the text names the servers that refuse. On Redlock the codes of single masters are in the text.
    ///
    /// New codes may be added; the code of an existing error does not change.
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

/// The error with its causes in one line, as it is printed when `main` returns it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_string();
        write!(f, "{text} [{:?}, {:?}]", self.details.kind, self.details.outcome)?;
        let mut cause = self.source();
        while let Some(error) = cause {
            let cause_text = line_of(error.to_string());
            // Some messages quote their cause.
            if !text.contains(&cause_text) {
                write!(f, ": {cause_text}")?;
            }
            cause = error.source();
        }
        Ok(())
    }
}

/// The text itself, as it is in almost all cases.
pub(crate) fn line_of(text: String) -> String {
    match one_line(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(line) => line,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn text_has_backend_operation_lock_and_hint() {
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
    fn debug_adds_the_causes_that_are_not_in_the_text() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let below = Error::new(ErrorKind::Unavailable, "redis")
            .with_message("cannot connect to \"b\"")
            .caused_by(refused);
        let error = Error::new(ErrorKind::Denied, "redlock").with_outcome(Outcome::Unknown);
        let without_cause = error.clone().with_message("no quorum").caused_by(below.clone());
        let cause = "connection refused";
        assert_eq!(
            format!("{without_cause:?}"),
            format!("redlock: no quorum [Denied, Unknown]: redis: cannot connect to \"b\": {cause}")
        );
        let with_cause = error.with_message(format!("no quorum: {below}")).caused_by(below);
        assert_eq!(
            format!("{with_cause:?}"),
            format!("redlock: no quorum: redis: cannot connect to \"b\" [Denied, Unknown]: {cause}")
        );
    }

    #[test]
    fn what_a_server_says_cannot_forge_a_line() {
        let cause = io::Error::other("c\nd\u{1b}[2K");
        let error = Error::new(ErrorKind::Unexpected, "redis")
            .with_message("a\nb\u{1b}[2K")
            .with_hint("say \"it's\"\u{202e}")
            .caused_by(cause);
        assert_eq!(error.message(), r"a\nb\u{1b}[2K");
        assert_eq!(error.hint(), Some(r#"say "it's"\u{202e}"#));
        let end = r#"say "it's"\u{202e} [Unexpected, NotApplied]: c\nd\u{1b}[2K"#;
        assert_eq!(format!("{error:?}"), format!(r"redis: a\nb\u{{1b}}[2K; {end}"));
    }

    #[test]
    fn the_first_operation_stays() {
        let error =
            Error::new(ErrorKind::Lost, "zk").with_message("deleted").during("extend").during("acquire");
        assert_eq!(error.operation(), Some("extend"));
    }
}
