use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::process::{Child, Output, tail};

/// The process of a server and the directory in which it works: what all servers have in common.
#[derive(Debug)]
pub(crate) struct Site {
    name: String,
    // Fields are dropped in order: the process must be gone before its directory is removed.
    child: Mutex<Option<Child>>,
    dir: TempDir,
}

/// How a start went wrong.
#[derive(Debug)]
pub(crate) enum StartError {
    /// Somebody else has the port: worth another try with other ports.
    PortTaken,
    Other(Error),
}

impl Site {
    pub(crate) fn new(name: String) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("lock-testkit-")
            .tempdir()
            .map_err(|e| Error::io("make a temporary directory", e))?;
        Ok(Self { name, child: Mutex::new(None), dir })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the process, without waiting until it serves. A process from before is killed first.
    pub(crate) fn launch(&self, command: &Command) -> Result<()> {
        let mut child = self.child();
        *child = None;
        *child = Some(Child::spawn(command, &Output::File(self.log()))?);
        Ok(())
    }

    /// Asks `serves` until it says yes.
    pub(crate) fn wait_ready(&self, mut serves: impl FnMut(u32) -> bool) -> Result<(), StartError> {
        let start = Instant::now();
        loop {
            let (pid, ended) = {
                let child = self.child();
                let child = child.as_ref().ok_or_else(|| StartError::Other(self.down()))?;
                (child.pid(), child.try_wait())
            };
            let log = || tail(&self.log());
            if let Some(status) = ended {
                let log = log();
                return Err(if log.contains(PORT_TAKEN) {
                    StartError::PortTaken
                } else {
                    StartError::Other(Error::Exited { server: self.name.clone(), status, log })
                });
            }
            if serves(pid) {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited > READY_DEADLINE {
                let log = log();
                return Err(if log.contains(PORT_TAKEN) {
                    StartError::PortTaken
                } else {
                    StartError::Other(Error::NotReady { server: self.name.clone(), waited, log })
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Runs `action` on the process, if there is one.
    pub(crate) fn with_child<T>(&self, action: impl FnOnce(&Child) -> T) -> Option<T> {
        self.child().as_ref().map(action)
    }

    /// The log with what the process printed.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    /// Forgets the log, so that a second try is not judged by the words of the first.
    pub(crate) fn clear_log(&self) {
        let _ = fs::remove_file(self.log());
    }

    fn down(&self) -> Error {
        Error::Protocol { peer: self.name.clone(), what: "it was never started".to_owned() }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StartError {
    /// The error for a server that must have exactly this port.
    pub(crate) fn into_error(self, site: &Site) -> Error {
        match self {
            Self::PortTaken => Error::NoPort { server: site.name.clone() },
            Self::Other(error) => error,
        }
    }
}

impl From<Error> for StartError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Starts a server on fresh ports until it gets ports that nobody else took in the meantime.
pub(crate) fn on_free_ports<T>(server: &str, mut start: impl FnMut() -> Result<T, StartError>) -> Result<T> {
    for _ in 0..PORT_TRIES {
        match start() {
            Err(StartError::PortTaken) => {}
            Err(StartError::Other(error)) => return Err(error),
            Ok(started) => return Ok(started),
        }
    }
    Err(Error::NoPort { server: server.to_owned() })
}

const POLL: Duration = Duration::from_millis(2);
const PORT_TAKEN: &str = "Address already in use";
const PORT_TRIES: usize = 5;
/// Generous: many virtual machines may start at once on a small machine.
const READY_DEADLINE: Duration = Duration::from_secs(30);
