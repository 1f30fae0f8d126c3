use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The result of what the testkit does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the testkit could not do what the test asked for.
///
/// Every message names what failed and, where there is one, the remedy.
/// A missing server is an error like any other: tests are never skipped in silence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that the testkit starts is not on this machine.
    #[error("{program} not found: install it with `{install}`")]
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
        /// For how long it was asked.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// Other processes took every port that was tried.
    #[error(
        "no port left for {server}: every port that was tried is in use; end what listens on 20000-32767"
    )]
    NoPort {
        /// Which server.
        server: String,
    },

    /// A server or a worker said something that its protocol does not allow.
    #[error("{peer} broke the protocol: {what}")]
    Protocol {
        /// Who spoke.
        peer: String,
        /// What was wrong.
        what: String,
    },

    /// A worker process ended while the test expected a message from it.
    #[error("{worker} ended ({status}) before it sent the message that the test waits for")]
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

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}
