//! Worker processes that speak JSON lines, for tests across processes.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc as channel, oneshot};

use crate::error::{Error, Result};
use crate::servers::process::{Child, spawn, start_thread};

/// A child process that reads one JSON value per line from standard input and writes one per line to standard output.
///
/// It shares our standard error. Lines of its standard output that are not JSON go there too, so that a test binary can run
/// itself as its worker in spite of what the test harness prints. A message must begin at the start of a line.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    name: String,
    outbox: mpsc::Sender<(Vec<u8>, oneshot::Sender<io::Result<()>>)>,
    inbox: tokio::sync::Mutex<channel::UnboundedReceiver<Value>>,
}

impl Worker {
    /// Starts `command`: its program, arguments, environment changes and working directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] when the program is missing, [`Error::Io`] when it cannot be started.
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
    /// The message may be delivered although the future was dropped.
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
    /// This method is cancel safe: no message is lost.
    pub async fn recv(&self) -> Option<Value> {
        self.inbox.lock().await.recv().await
    }

    /// The next value that the worker sends within `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerSilent`] when the time has passed, [`Error::WorkerEnded`] when the worker has ended.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no message is lost.
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

    /// Kills the worker by SIGKILL and waits for its end.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Stops the worker by SIGSTOP.
    pub fn stop(&self) {
        self.child.stop();
    }

    /// Continues a stopped worker by SIGCONT.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
