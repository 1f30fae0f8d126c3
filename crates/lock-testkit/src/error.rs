//! The errors of the test kit.

use std::fmt;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The result of the test kit's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the test kit. The message says what failed, and what to do about it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not installed.
    #[error(
        "{program} not found: install it with `{install}` (in a clone of polylock, `cargo xtask setup` installs all servers)"
    )]
    NotInstalled {
        /// The missing program or file.
        program: String,
        /// The command that installs it.
        install: String,
    },

    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's answer.
        source: io::Error,
    },

    /// A server ended before it was ready.
    #[error("{server} ended during its start ({status}); the end of its log:\n{log}")]
    Exited {
        /// Which server.
        server: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// A server runs but did not answer in time.
    #[error("{server} was not ready after {waited:?}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        server: String,
        /// How long the test kit waited.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// Other processes have every port that was tried.
    #[error(
        "no port left for {server}: every port that was tried is in use; end what listens on 20000-32767"
    )]
    NoPort {
        /// Which server.
        server: String,
    },

    /// A server or a worker broke its protocol.
    #[error("{peer} broke the protocol: {what}")]
    Protocol {
        /// The server or worker.
        peer: String,
        /// What it sent.
        what: String,
    },

    /// A worker process ended before it sent the expected message.
    #[error("{worker} ended ({status}) before it sent the expected message")]
    WorkerEnded {
        /// Which worker.
        worker: String,
        /// How it ended, as far as known.
        status: String,
    },

    /// A worker process did not send a message in time.
    #[error("{worker} sent nothing for {waited:?}")]
    WorkerSilent {
        /// Which worker.
        worker: String,
        /// For how long the test waited.
        waited: Duration,
    },
}

/// The message, as `unwrap` shows this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}
