//! What the tests of the command share: its runs, and a terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lock_testkit::process;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

pub(crate) const POLYLOCK: &str = env!("CARGO_BIN_EXE_polylock");
/// Far more than any of it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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
        let deadline = Instant::now() + PATIENCE;
        while self.screen().matches(text).count() < times {
            assert!(Instant::now() < deadline, "{text:?} is missing:\n{}", self.screen());
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) async fn ends(mut self) -> (i32, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            // What was written last may still be on its way.
            if let Some(status) = self.child.try_wait().unwrap()
                && self.reader.is_finished()
            {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.screen());
            sleep(Duration::from_millis(20)).await;
        };
        println!("{}[{status}]\n", self.screen());
        (status.code().unwrap(), self.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until this holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let what = what.to_owned();
    async move {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(Instant::now() < deadline, "{what}: it does not come");
            sleep(Duration::from_millis(20)).await;
        }
    }
}
