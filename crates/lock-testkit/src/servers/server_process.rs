//! The process of a real server, with its directory and log: starts it on free ports and waits until it is ready.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::servers::process::{Child, Output, tail};

/// The process of a server and its working directory. Both go when this is dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    name: String,
    // Dropped first: the process must end before its directory is removed.
    child: Mutex<Option<Child>>,
    dir: TempDir,
}

/// Why a start failed.
#[derive(Debug)]
pub(crate) enum StartError {
    /// Another process has the port: worth another try with other ports.
    PortTaken,
    Other(Error),
}

impl ServerProcess {
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

    /// Polls until `serves` is true for the process id.
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

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child().as_ref().expect("a started server has a process").pid()
    }

    /// Whether the process was started and has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.child().as_ref().is_some_and(Child::is_running)
    }

    /// Kills the process by SIGKILL.
    pub(crate) fn kill(&self) {
        self.child().as_ref().inspect(|child| child.kill());
    }

    /// Asks the process to end by SIGTERM, and returns its exit status; `None` if it is not there after this time.
    pub(crate) fn terminate(&self, patience: Duration) -> Option<ExitStatus> {
        self.end_by(Child::terminate, patience)
    }

    /// Asks the process to end by SIGQUIT; as [`terminate`](Self::terminate).
    pub(crate) fn quit(&self, patience: Duration) -> Option<ExitStatus> {
        self.end_by(Child::quit, patience)
    }

    /// Stops the process by SIGSTOP.
    pub(crate) fn stop(&self) {
        self.child().as_ref().inspect(|child| child.stop());
    }

    /// Continues a stopped process by SIGCONT.
    pub(crate) fn cont(&self) {
        self.child().as_ref().inspect(|child| child.cont());
    }

    /// The log with what the process printed.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    /// Removes the log, so that a second try is not judged by the log of the first.
    pub(crate) fn clear_log(&self) {
        let _ = fs::remove_file(self.log());
    }

    fn end_by(&self, ask: impl FnOnce(&Child), patience: Duration) -> Option<ExitStatus> {
        let child = self.child();
        let child = child.as_ref()?;
        ask(child);
        child.wait_for(patience)
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
    pub(crate) fn into_error(self, site: &ServerProcess) -> Error {
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

/// Starts a server on fresh ports, and again on others when another process took one in the meantime.
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
/// In programs of C with a capital letter, and without one in those of Go.
const PORT_TAKEN: &str = "ddress already in use";
const PORT_TRIES: usize = 5;
/// Long, as many Java virtual machines may start at once on a small machine, and an election of theirs may take several
/// rounds.
const READY_DEADLINE: Duration = Duration::from_secs(90);
