//! A lock of another language, fought with by a program of its own.

use std::path::PathBuf;
use std::process::Stdio;

use lock_testkit::history::ReleaseOutcome;
use lock_testkit::now_ns;
use polylock::backend::LockUrl;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::diary::{Claim, Diary, Tenure};
use crate::failure::{Failure, Outcome};

/// A program in `benches/peers`, connected and waiting for its order.
#[derive(Debug)]
pub(crate) struct Program {
    /// Killed when it is dropped; it also ends with its standard input.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Curator in a Java process.
    ///
    /// # Errors
    ///
    /// When it cannot be started or cannot connect.
    pub(crate) async fn curator(url: &str, path: &str) -> Outcome<Self> {
        let mut command = Command::new("java");
        command.current_dir(installed("java")).args(["-Xmx64m", "-XX:+UseSerialGC", "@options"]);
        Self::start(command.arg(source("Curator.java")), url, path).await
    }

    /// kazoo in a Python process.
    ///
    /// # Errors
    ///
    /// As for [`curator`](Self::curator).
    pub(crate) async fn kazoo(url: &str, path: &str) -> Outcome<Self> {
        let mut command = Command::new(installed("python").join("bin/python"));
        Self::start(command.arg(source("kazoo_mutex.py")), url, path).await
    }

    async fn start(command: &mut Command, url: &str, path: &str) -> Outcome<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().map_err(
                |error| {
                    Failure::new(format!(
                        "cannot start {:?}: {error}; `cargo xtask setup` installs what it needs",
                        command.as_std().get_program()
                    ))
                },
            )?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("a program without pipes"));
        };
        let mut program = Self { _child: child, input, output: BufReader::new(output).lines() };
        let url = LockUrl::parse(url)?;
        program.say(&format!("{}{} {path}", url.hosts, url.path.trim_end_matches('/'))).await?;
        match program.hear().await?.as_str() {
            "ready" => Ok(program),
            other => Err(Failure::new(format!(
                "the program said {other:?}; `cargo xtask setup` installs what it needs"
            ))),
        }
    }

    /// Has it fight until then, and writes down what it did.
    ///
    /// # Errors
    ///
    /// When it ends before.
    pub(crate) async fn contend(&mut self, until_ns: u64, hold_ns: u64, diary: &mut Diary) -> Outcome<()> {
        let ahead_ns = now_ns() - monotonic_ns();
        self.say(&format!("{} {hold_ns}", until_ns.saturating_sub(ahead_ns))).await?;
        loop {
            let line = self.hear().await?;
            if line == "end" {
                return Ok(());
            }
            let times = line.split(' ').map(str::parse::<u64>).collect::<Result<Vec<_>, _>>()?;
            let [called_ns, acquired_ns, release_called_ns, released_ns] = times[..] else {
                return Err(Failure::new(format!("the program said {line:?}")));
            };
            diary.tenure(&Tenure {
                called_ns: called_ns + ahead_ns,
                acquired_ns: acquired_ns + ahead_ns,
                claim: Claim::default(),
                release_called_ns: release_called_ns + ahead_ns,
                released_ns: released_ns + ahead_ns,
                released: ReleaseOutcome::Unknown,
            });
        }
    }

    async fn say(&mut self, line: &str) -> Outcome<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    async fn hear(&mut self) -> Outcome<String> {
        let line = self.output.next_line().await?;
        line.ok_or_else(|| Failure::new("the program has ended; what it says about it is above"))
    }
}

/// The clock of the programs, which stands still while the machine is suspended.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn source(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/peers")).join(name)
}

/// Where `cargo xtask setup` puts what runs them.
fn installed(language: &str) -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.to_owned()));
    target.unwrap_or_default().join("peers").join(language)
}
