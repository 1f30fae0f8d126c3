//! Child processes that cannot outlive the test.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A child process.
///
/// It is killed when this value is dropped. The kernel kills it when this process dies in any other way, SIGKILL included:
/// a test that crashes leaves no server behind.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    inner: Mutex<std::process::Child>,
}

/// Where the output of a [`Child`] goes.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// To the streams of this process.
    Inherit,
    /// Discarded.
    Null,
    /// Standard output and standard error are appended to this file.
    File(PathBuf),
}

impl Child {
    /// Starts `command`: its program, arguments, environment changes and working directory.
    ///
    /// Standard input is empty. The command's own settings of standard streams and `env_clear` have no effect.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] when the program is missing, [`Error::Io`] when it cannot be started.
    pub fn spawn(command: &Command, output: &Output) -> Result<Self> {
        let (stdout, stderr) = match output {
            Output::Inherit => (Stdio::inherit(), Stdio::inherit()),
            Output::Null => (Stdio::null(), Stdio::null()),
            Output::File(path) => {
                let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
                let log = open(path).map_err(|e| Error::io(format!("open {}", path.display()), e))?;
                let twin = log.try_clone().map_err(|e| Error::io("duplicate a log file", e))?;
                (log.into(), twin.into())
            }
        };
        spawn(command, Stdio::null(), stdout, stderr).map(Self::new)
    }

    /// The process id. It stays the same after the process has ended.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process has not ended. A stopped process counts as running.
    pub fn is_running(&self) -> bool {
        self.try_wait().is_none()
    }

    /// Kills the process by SIGKILL and waits for its end. Does nothing when it has ended already.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Sends SIGTERM. Does not wait.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGQUIT. Does not wait.
    pub fn quit(&self) {
        self.signal(Signal::QUIT);
    }

    /// Stops the process by SIGSTOP, as a long garbage collection or a suspended virtual machine would, and waits until it
    /// has stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + STOP_DEADLINE;
        while self.is_running() && !matches!(state(self.pid), Some('T')) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }

    /// Continues a stopped process by SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Blocks until the process has ended.
    pub fn wait(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.wait_for(Duration::from_secs(3600)) {
                return status;
            }
        }
    }

    /// Blocks until the process has ended, for at most `patience`.
    pub fn wait_for(&self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            match self.try_wait() {
                Some(status) => return Some(status),
                None if Instant::now() >= deadline => return None,
                None => thread::sleep(POLL),
            }
        }
    }

    /// The exit status, when the process has ended.
    pub fn try_wait(&self) -> Option<ExitStatus> {
        self.lock().try_wait().expect("only we wait for our child")
    }

    pub(crate) fn new(inner: std::process::Child) -> Self {
        Self { pid: inner.id(), inner: Mutex::new(inner) }
    }

    fn signal(&self, signal: Signal) {
        let mut inner = self.lock();
        // After the wait the pid may belong to another process.
        let running = inner.try_wait().expect("only we wait for our child").is_none();
        if running && let Some(pid) = Pid::from_raw(self.pid as i32) {
            kill_process(pid, signal).expect("our own child accepts our signals");
        }
    }

    fn lock(&self) -> MutexGuard<'_, std::process::Child> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs blocking `work` on a new thread, so that the test's runtime goes on, whatever its kind.
///
/// When the future is dropped, the work continues and its result is dropped: a server that it started is killed.
pub(crate) async fn off_thread<T, F>(work: F) -> T
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (done, result) = oneshot::channel();
    start_thread("testkit-blocking", move || drop(done.send(work())))
        .expect("the system has a thread to spare");
    result.await.expect("the work does not panic")
}

/// Finds `program` in `PATH`.
pub(crate) fn locate(program: &str, install: &str) -> Result<PathBuf> {
    find(OsStr::new(program))
        .ok_or_else(|| Error::NotInstalled { program: program.to_owned(), install: install.to_owned() })
}

/// The last lines of a log file.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// The state letter of a process from `/proc`: `R`unning, `S`leeping, s`T`opped, `Z`ombie.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name comes first, in parentheses, and may contain anything.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Starts a command with these streams so that the kernel kills it when this process dies: for programs that a test talks
/// to, or whose output it reads. A [`Child`] also ends when it is dropped.
///
/// # Errors
///
/// As for [`Child::spawn`].
pub fn spawn(command: &Command, stdin: Stdio, stdout: Stdio, stderr: Stdio) -> Result<std::process::Child> {
    let program = command.get_program();
    let path = find(program).ok_or_else(|| Error::NotInstalled {
        program: program.to_string_lossy().into_owned(),
        install: format!("the package that contains {}", program.to_string_lossy()),
    })?;
    // The standard library sets a parent-death signal only through unsafe code.
    let mut wrapped = Command::new(locate("setpriv", "apt-get install util-linux")?);
    wrapped.args(["--pdeathsig", "KILL", "--"]).arg(path).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped.stdin(stdin).stdout(stdout).stderr(stderr);

    let (reply, child) = mpsc::sync_channel(1);
    let what = || format!("start {}", program.to_string_lossy());
    SPAWNER.send((wrapped, reply)).map_err(|_| Error::io(what(), io::ErrorKind::BrokenPipe.into()))?;
    child.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map_err(|e| Error::io(what(), e))
}

type Order = (Command, mpsc::SyncSender<io::Result<std::process::Child>>);

/// The thread that starts all children. The kernel sends the parent-death signal when the *thread* that started the child
/// ends: a child started by a test's thread would die with that thread.
static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<Order>();
    start_thread("testkit-spawner", move || {
        for (mut command, reply) in inbox {
            // Without a receiver the child must not stay.
            if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(command.spawn()) {
                let _ = orphan.kill();
                let _ = orphan.wait();
            }
        }
    })
    .expect("the system has a thread to spare");
    orders
});

/// Removes a directory once this process has ended, however it ends.
pub(crate) fn remove_at_exit(dir: &Path) -> Result<()> {
    let what = |e| Error::io(format!("remember to remove {}", dir.display()), e);
    let mut remover = REMOVER.lock().unwrap_or_else(PoisonError::into_inner);
    if remover.is_none() {
        let mut shell = Command::new("sh");
        // Its input ends with this process. The servers, which end then too, may write for a moment yet.
        shell.args(["-c", "while read -r dir; do set -- \"$@\" \"$dir\"; done; sleep 1; rm -rf -- \"$@\""]);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        *remover = shell.spawn().map_err(what)?.stdin;
    }
    let input = remover.as_mut().expect("its input is a pipe");
    writeln!(input, "{}", dir.display()).map_err(what)
}

/// The input of a shell that removes what it has read.
static REMOVER: Mutex<Option<ChildStdin>> = Mutex::new(None);

fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(path)).find(|path| path.is_file())
}

pub(crate) fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|e| Error::io("start a thread", e))
}

const POLL: Duration = Duration::from_millis(1);
const STOP_DEADLINE: Duration = Duration::from_secs(2);
const TAIL_LINES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        let mut command = Command::new("sleep");
        command.arg("60");
        Child::spawn(&command, &Output::Null).unwrap()
    }

    #[test]
    fn a_child_is_stopped_continued_and_killed() {
        let child = sleeper();
        assert!(child.is_running());
        child.stop();
        assert_eq!(state(child.pid()), Some('T'));
        child.cont();
        assert_ne!(state(child.pid()), Some('T'));
        child.stop();
        child.kill();
        assert!(!child.is_running());
        assert_eq!(state(child.pid()), None);
        // The pid is not ours any more: these must send no signal.
        child.kill();
        child.stop();
    }

    #[test]
    fn a_child_ends_by_sigterm() {
        let child = sleeper();
        child.terminate();
        let status = child.wait_for(Duration::from_secs(5)).unwrap();
        assert!(!status.success());
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let pid = sleeper().pid();
        assert_eq!(state(pid), None);
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let child = thread::spawn(sleeper).join().unwrap();
        assert_eq!(child.wait_for(Duration::from_millis(100)), None);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Child::spawn(&Command::new("no-such-program"), &Output::Null).unwrap_err();
        assert!(
            matches!(&error, Error::NotInstalled { program, .. } if program == "no-such-program"),
            "{error}"
        );
        let error = locate("no-such-server", "apt-get install it").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("no-such-server not found: install it with `apt-get install it`"), "{text}");
    }
}
