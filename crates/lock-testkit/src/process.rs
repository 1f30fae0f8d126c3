//! Child processes that cannot outlive the test, and workers that speak JSON lines.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fmt};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::sync::{mpsc as channel, oneshot};

use crate::error::{Error, Result};

/// A child process.
///
/// It is killed when this value is dropped, and the kernel kills it when this process dies in any other way
/// (also by SIGKILL), so a test that crashes leaves no server behind.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    inner: Mutex<std::process::Child>,
}

/// Where the output of a [`Child`] goes.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// To where this process writes its own.
    Inherit,
    /// Nowhere.
    Null,
    /// Standard output and standard error, appended to this file.
    File(PathBuf),
}

/// A child process that reads one JSON value per line from its standard input and writes one per line to its
/// standard output: the far end of a cross-process test.
///
/// Its standard error goes to where this process writes its own. Lines on its standard output that are not JSON
/// go there too, so that a test binary can run itself as its worker in spite of what the test harness prints.
/// The worker must begin a message at the start of a line.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    name: String,
    outbox: mpsc::Sender<(Vec<u8>, oneshot::Sender<io::Result<()>>)>,
    inbox: tokio::sync::Mutex<channel::UnboundedReceiver<Value>>,
}

impl Child {
    /// Starts `command`: its program, arguments, environment changes and working directory.
    ///
    /// Standard input is empty. What `command` says about standard streams or `env_clear` has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] when the program is not there, [`Error::Io`] when it cannot be started.
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

    /// Whether the process has not ended yet. A stopped process counts as running.
    pub fn is_running(&self) -> bool {
        self.try_wait().is_none()
    }

    /// Ends the process by SIGKILL and waits until it is gone. Does nothing when it is gone already.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Asks the process to end (SIGTERM). Does not wait.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Freezes the process (SIGSTOP), as a long garbage collection or a suspended virtual machine would.
    ///
    /// Returns when the process has stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + STOP_DEADLINE;
        while self.is_running() && !matches!(state(self.pid), Some('T')) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }

    /// Lets a stopped process go on (SIGCONT).
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

    /// How the process ended, when it has.
    pub fn try_wait(&self) -> Option<ExitStatus> {
        self.lock().try_wait().expect("nobody else waits for our child")
    }

    fn new(inner: std::process::Child) -> Self {
        Self { pid: inner.id(), inner: Mutex::new(inner) }
    }

    fn signal(&self, signal: Signal) {
        let mut inner = self.lock();
        // A child that was waited for has given its pid back: the number may be somebody else's by now.
        let running = inner.try_wait().expect("nobody else waits for our child").is_none();
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

impl Worker {
    /// Starts `command`: its program, arguments, environment changes and working directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] when the program is not there, [`Error::Io`] when it cannot be started.
    pub fn spawn(command: &Command) -> Result<Self> {
        let mut inner = spawn(command, Stdio::piped(), Stdio::piped(), Stdio::inherit())?;
        let stdin = inner.stdin.take().expect("standard input is a pipe");
        let stdout = inner.stdout.take().expect("standard output is a pipe");
        let child = Child::new(inner);
        let name = format!("worker {} (pid {})", command.get_program().to_string_lossy(), child.pid());

        let (outbox, letters) = mpsc::channel();
        let (messages, inbox) = channel::unbounded_channel();
        start_thread("testkit-worker-in", move || write_letters(stdin, &letters))?;
        start_thread("testkit-worker-out", move || read_messages(stdout, &messages))?;
        Ok(Self { child, name, outbox, inbox: tokio::sync::Mutex::new(inbox) })
    }

    /// Sends one value as one line.
    ///
    /// Waits only while the worker does not read and its pipe is full.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the worker has closed its standard input or has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled send may still be delivered.
    pub async fn send(&self, message: &Value) -> Result<()> {
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        let (done, written) = oneshot::channel();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let result = match self.outbox.send((line, done)) {
            Ok(()) => written.await.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(gone()),
        };
        result.map_err(|e| Error::io(format!("send a message to {}", self.name), e))
    }

    /// The next value that the worker sends, or `None` when it has closed its standard output or has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses no message.
    pub async fn recv(&self) -> Option<Value> {
        self.inbox.lock().await.recv().await
    }

    /// The next value that the worker sends within `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerSilent`] when the time has passed, [`Error::WorkerEnded`] when there is no more to come.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses no message.
    pub async fn recv_deadline(&self, patience: Duration) -> Result<Value> {
        match tokio::time::timeout(patience, self.recv()).await {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(Error::WorkerEnded { worker: self.name.clone(), status: self.status() }),
            Err(_) => Err(Error::WorkerSilent { worker: self.name.clone(), waited: patience }),
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The process itself.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Ends the worker by SIGKILL and waits until it is gone.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Freezes the worker (SIGSTOP).
    pub fn stop(&self) {
        self.child.stop();
    }

    /// Lets a stopped worker go on (SIGCONT).
    pub fn cont(&self) {
        self.child.cont();
    }

    fn status(&self) -> String {
        self.child.try_wait().map_or_else(|| "its standard output is closed".to_owned(), |s| s.to_string())
    }
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Runs blocking `work` on a thread of its own, so that a test's runtime goes on, whatever its kind.
///
/// When the future is dropped the work goes on and its result is dropped: a server that it started is killed.
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

/// Where `program` is, by `PATH`.
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

fn spawn(command: &Command, stdin: Stdio, stdout: Stdio, stderr: Stdio) -> Result<std::process::Child> {
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

/// The one thread that starts children. The parent-death signal is sent when the *thread* that started the child
/// ends, so a child started by a test's thread would die with that test.
static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<Order>();
    start_thread("testkit-spawner", move || {
        for (mut command, reply) in inbox {
            // When nobody waits for the child any more it must not stay.
            if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(command.spawn()) {
                let _ = orphan.kill();
                let _ = orphan.wait();
            }
        }
    })
    .expect("the system has a thread to spare");
    orders
});

fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(path)).find(|path| path.is_file())
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|e| Error::io("start a thread", e))
}

fn write_letters(
    mut stdin: ChildStdin,
    letters: &mpsc::Receiver<(Vec<u8>, oneshot::Sender<io::Result<()>>)>,
) {
    for (line, done) in letters {
        let result = stdin.write_all(&line).and_then(|()| stdin.flush());
        let _ = done.send(result);
    }
}

fn read_messages(stdout: ChildStdout, messages: &channel::UnboundedSender<Value>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line) {
            Ok(message) => {
                if messages.send(message).is_err() {
                    return;
                }
            }
            Err(_) if line.trim().is_empty() => {}
            Err(_) => eprintln!("{line}"),
        }
    }
}

const POLL: Duration = Duration::from_millis(1);
const STOP_DEADLINE: Duration = Duration::from_secs(2);
const TAIL_LINES: usize = 40;

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        // The pid is not ours any more: these must not signal anybody.
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
        assert_eq!(error.to_string(), "no-such-server not found: install it with `apt-get install it`");
    }

    #[tokio::test]
    async fn a_worker_answers_in_json_lines() {
        let worker = Worker::spawn(&Command::new("cat")).unwrap();
        for number in 0..3 {
            worker.send(&json!({ "number": number })).await.unwrap();
        }
        for number in 0..3 {
            let message = worker.recv_deadline(Duration::from_secs(5)).await.unwrap();
            assert_eq!(message, json!({ "number": number }));
        }
        worker.stop();
        worker.send(&json!("late")).await.unwrap();
        let silent = worker.recv_deadline(Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(silent, Error::WorkerSilent { .. }), "{silent}");
        worker.cont();
        assert_eq!(worker.recv().await, Some(json!("late")));
        worker.kill();
        assert_eq!(worker.recv().await, None);
        let ended = worker.recv_deadline(Duration::from_secs(1)).await.unwrap_err();
        assert!(ended.to_string().contains("signal: 9"), "{ended}");
        assert!(worker.send(&json!(null)).await.is_err());
    }

    #[tokio::test]
    async fn lines_that_are_not_json_are_no_messages() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo running 1 test; echo; echo '{\"ready\":true}'"]);
        let worker = Worker::spawn(&command).unwrap();
        assert_eq!(worker.recv().await, Some(json!({ "ready": true })));
        assert_eq!(worker.recv().await, None);
    }
}
