//! What the tests of the command share: its runs, and a terminal.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use lock_testkit::process;
use lock_testkit::{PATIENCE, RedisServer, until};
use polylock::Locks;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

pub(crate) const POLYLOCK: &str = env!("CARGO_BIN_EXE_polylock");

/// What a run of the command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Runs the command to its end, without standard input.
    pub(crate) async fn of(command: Command) -> Self {
        Self::with_input(command, Vec::new()).await
    }

    /// Runs the command to its end.
    pub(crate) async fn with_input(command: Command, input: Vec<u8>) -> Self {
        let arguments: Vec<_> = command.get_args().map(|text| text.to_string_lossy().into_owned()).collect();
        let output = spawn_blocking(move || {
            let mut child = process::spawn(&command, Stdio::piped(), Stdio::piped(), Stdio::piped()).unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let writer = thread::spawn(move || drop(stdin.write_all(&input)));
            let output = child.wait_with_output().unwrap();
            writer.join().unwrap();
            output
        });
        let Output { status, stdout, stderr } = output.await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let run = Self { code: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) };
        let shown: String = run.stdout.chars().take(MOST_SHOWN).collect();
        println!("$ {}\n{}{shown}[{}]\n", arguments.join(" "), run.stderr, run.code);
        run
    }

    /// Checks the exit code, and that all of this was printed.
    #[track_caller]
    pub(crate) fn is(&self, code: i32, parts: &[&str]) {
        let all = format!("{}{}", self.stdout, self.stderr);
        assert_eq!(self.code, code, "{all}");
        for part in parts {
            assert!(all.contains(part), "{part:?} is missing:\n{all}");
        }
    }

    #[track_caller]
    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

const MOST_SHOWN: usize = 4_000;

/// A program in a terminal. `script` makes the terminal: it is a part of every Linux, and ends with its test.
pub(crate) struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<String>>,
    reader: thread::JoinHandle<()>,
}

impl Terminal {
    /// Runs a line of a shell, with these variables.
    pub(crate) fn open(line: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("script");
        // A test program that was started by nohup passes on that SIGHUP is ignored.
        let line = format!("stty cols 100 rows 40; exec env --default-signal=HUP {line}");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        command.envs(variables.iter().copied()).env("TERM", "xterm");
        let mut child = process::spawn(&command, Stdio::piped(), Stdio::piped(), Stdio::inherit()).unwrap();
        let (keyboard, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keyboard, screen, reader }
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until the screen has shown this so often.
    pub(crate) async fn shows(&self, text: &str, times: usize) {
        until(&format!("{text:?} on the screen"), async || self.screen().matches(text).count() >= times)
            .await;
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for its end, with this exit code and all of this on the screen, which is returned.
    pub(crate) async fn ends_as(mut self, code: i32, parts: &[&str]) -> String {
        let mut status = None;
        until("it ends", async || {
            status = self.child.try_wait().unwrap();
            // What was written last may still be on its way.
            status.is_some() && self.reader.is_finished()
        })
        .await;
        let (screen, ended) = (self.screen(), status.and_then(|status| status.code()));
        println!("{screen}[{ended:?}]\n");
        assert!(ended == Some(code) && parts.iter().all(|part| screen.contains(part)), "{ended:?}: {screen}");
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `polylock run` of this lock and command, with options before them.
pub(crate) fn run(url: &str, options: &str, command: &[&str]) -> Command {
    let mut run = Command::new("env");
    // A test may be started in the background of a script, where these are ignored.
    run.args(["--default-signal=INT,QUIT,HUP", POLYLOCK, "run"]).env("POLYLOCK_URL", url);
    run.args(options.split_whitespace()).args(["job", "--"]).args(command);
    run
}

/// The same with a script of a shell, to its end.
pub(crate) async fn sh(url: &str, options: &str, script: &str) -> Run {
    Run::of(run(url, options, &["sh", "-c", script])).await
}

pub(crate) async fn shell(url: &str, line: &str) -> Run {
    let mut command = Command::new("bash");
    command.args(["-c", line]).env("POLYLOCK_URL", url);
    Run::of(command).await
}

/// Where the lock `job` is: the URL of its store, a client of that, and a folder for logs and files.
pub(crate) struct Stage {
    pub(crate) url: String,
    pub(crate) locks: Locks,
    folder: TempDir,
}

impl Stage {
    pub(crate) async fn at(url: &str) -> Self {
        let locks = Locks::connect(url).await.unwrap_or_else(|error| panic!("{error}"));
        Self { url: url.to_owned(), locks, folder: TempDir::new().unwrap() }
    }

    pub(crate) async fn on_redis() -> (Self, RedisServer) {
        let redis = RedisServer::start().await.unwrap();
        (Self::at(&redis.url()).await, redis)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Begins to run this command; what it prints is appended to a log.
    pub(crate) fn begin(&self, command: &Command) -> Background {
        let log = self.file(&format!("log{}", fs::read_dir(self.folder()).unwrap().count()));
        let process = process::Child::spawn(command, &process::Output::File(log.clone())).unwrap();
        Background { process, log }
    }

    /// Begins to run a script of bash.
    pub(crate) fn runs(&self, options: &str, script: &str) -> Background {
        self.runs_at(&self.url, options, script)
    }

    /// The same by another way to the store.
    pub(crate) fn runs_at(&self, url: &str, options: &str, script: &str) -> Background {
        self.begin(&run(url, options, &["bash", "-c", script]))
    }

    /// Runs a script of bash that prints `running`, and waits until it does.
    pub(crate) async fn running(&self, options: &str, script: &str) -> Background {
        let run = self.runs(options, script);
        run.prints("running").await;
        run
    }

    /// Runs a script of a shell to its end.
    pub(crate) async fn sh(&self, options: &str, script: &str) -> Run {
        sh(&self.url, options, script).await
    }

    /// Waits until so many wait for the lock.
    pub(crate) async fn waits(&self, waiters: usize) {
        let waiting = async || self.locks.inspect("job").await.is_ok_and(|state| state.waiters == waiters);
        until(&format!("{waiters} wait"), waiting).await;
    }

    pub(crate) async fn is_held(&self) -> bool {
        self.locks.inspect("job").await.unwrap().is_held()
    }

    /// The process that holds the lock.
    pub(crate) async fn holder(&self) -> Option<Pid> {
        let state = self.locks.inspect("job").await.unwrap();
        Pid::from_raw(state.holders.first()?.owner()?.pid as i32)
    }

    pub(crate) async fn breaks(&self) {
        assert!(self.locks.break_lock("job").await.unwrap());
    }

    /// A waiter whose command fails if that of the holder before still runs: it has locked this file.
    pub(crate) async fn successor(&self, file: &Path) -> Background {
        let script = format!("flock -n {} echo succeeded || echo OVERLAP", file.display());
        let successor = self.runs("--ttl 10s", &script);
        self.waits(1).await;
        successor
    }
}

/// A `polylock run` in the background.
pub(crate) struct Background {
    pub(crate) process: process::Child,
    log: PathBuf,
}

impl Background {
    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) async fn prints(&self, text: &str) {
        self.prints_often(text, 1).await;
    }

    pub(crate) async fn prints_often(&self, text: &str, times: usize) {
        until(&format!("{text:?} is printed"), async || self.text().matches(text).count() >= times).await;
    }

    pub(crate) fn watchdog(&self) -> Pid {
        children_of(self.process.pid() as i32)[0]
    }

    /// The process of its command.
    pub(crate) fn command(&self) -> Pid {
        children_of(self.watchdog().as_raw_nonzero().get())[0]
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for its end, with this exit code and all of this printed; returns what was printed.
    pub(crate) async fn ends_as(self, code: i32, parts: &[&str]) -> String {
        let (ended, text) = self.ends().await;
        assert!(ended == code && parts.iter().all(|part| text.contains(part)), "{ended}: {text}");
        text
    }

    pub(crate) async fn ends(self) -> (i32, String) {
        let log = self.log.clone();
        let status = spawn_blocking(move || self.process.wait_for(PATIENCE)).await.unwrap();
        let text = fs::read_to_string(log).unwrap();
        println!("{text}[{status:?}]\n");
        (status.expect("it does not end").code().expect("it ends by an exit"), text)
    }

    /// The [successor](Stage::successor) gets the lock, and nobody else uses the file.
    pub(crate) async fn takes_over(self) {
        let text = self.ends_as(0, &["succeeded"]).await;
        assert!(!text.contains("OVERLAP"), "{text}");
    }
}

/// A script that holds a file lock while it runs, and prints `running`. The kernel keeps the lock as long as any process of it
/// lives, so that the successor notices two at once. It ignores SIGTERM, and so do its own children.
pub(crate) fn stubborn(file: &Path) -> String {
    format!(
        "trap 'echo terminated' TERM; exec 9>{}; flock -n 9 || exit 99; echo running; \
         (trap '' TERM; while :; do sleep 0.05; done) & while :; do wait; sleep 0.05; done",
        file.display()
    )
}

/// Waits until a process has ended.
pub(crate) async fn has_ended(pid: Pid) {
    let command_line = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    until("the process ends", async || fs::read(&command_line).unwrap_or_default().is_empty()).await;
}

fn children_of(pid: i32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}
