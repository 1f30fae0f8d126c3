//! Runs test programs in two lanes.
//!
//! Cargo runs test programs one after another, and most of them wait: for sessions, leases and servers. Here the programs
//! with real servers run in the first lane, one after another. The second lane, at the lowest priority, has the programs that
//! only compute, and builds of the caller: they do not disturb tests that measure time.
//!
//! The test programs end with this process, however it ends: a killed run leaves no servers.
//!
//! Each program is one process, as its tests share servers: with a process per test each would start a ZooKeeper.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::output::Results;
use crate::steps::{command_line, seconds};
use crate::{interrupt, setup};

/// A command to run.
#[derive(Debug)]
pub(super) struct Job {
    name: String,
    command: Command,
    in_background: bool,
}

impl Job {
    pub(super) fn test(name: String, command: Command, in_background: bool) -> Self {
        Self { name, command, in_background }
    }

    /// A background command that is no test.
    pub(super) fn beside(command: Command) -> Self {
        Self { name: command_line(&command), command, in_background: true }
    }

    /// Includes ignored tests.
    pub(super) fn with_ignored(mut self) -> Self {
        self.command.arg("--include-ignored");
        self
    }

    /// Runs only tests with this in their names.
    pub(super) fn only(mut self, filter: &str) -> Self {
        self.command.arg(filter);
        self
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(super) fn in_front(mut self) -> Self {
        self.in_background = false;
        self
    }

    #[cfg(test)]
    pub(super) fn args(&self) -> impl Iterator<Item = &std::ffi::OsStr> {
        self.command.get_args()
    }

    /// Runs it in the foreground, and shows its output.
    fn run(mut self) -> JobReport {
        eprintln!("\n    {}", self.name);
        // Tests mostly wait.
        if std::env::var_os(THREADS).is_none() {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            self.command.env(THREADS, (2 * processors).to_string());
        }
        let report = JobReport::of(self.name, tied_to_us(self.command), |line| eprintln!("{line}"));
        eprintln!("    {}", seconds(report.took));
        report
    }
}

/// Runs all jobs, even when one has failed.
pub(super) fn run_in_lanes(jobs: Vec<Job>) -> Results {
    let (behind, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.in_background);
    let (report, reports) = channel();
    let (mut results, mut late) = (Results::default(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(move || run_behind(behind, &report));
        for job in waiting {
            if interrupt::check().is_ok() {
                job.run().add_to(&mut results);
                late.extend(reports.try_iter().inspect(JobReport::show));
            }
        }
        late.extend(reports.iter().inspect(JobReport::show));
    });
    // In the same order, whichever lane was faster.
    late.iter().for_each(|report| report.add_to(&mut results));
    results
}

/// Runs jobs one after the other at the lowest priority.
fn run_behind(jobs: Vec<Job>, reports: &Sender<JobReport>) {
    for job in jobs {
        if interrupt::check().is_ok() {
            let command = tied_to_us(at_lowest_priority(&job.command));
            // Fails when the receiver has given up.
            let _ = reports.send(JobReport::of(job.name, command, |_| {}));
        }
    }
}

/// The output and outcome of a job.
#[derive(Debug)]
struct JobReport {
    name: String,
    lines: Vec<String>,
    outcome: io::Result<ExitStatus>,
    took: Duration,
}

impl JobReport {
    /// Runs the command to its end.
    fn of(name: String, mut command: Command, show: impl Fn(&str) + Sync) -> Self {
        let started = Instant::now();
        let mut lines = Vec::new();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = command.spawn().and_then(|mut child| {
            let (line, printed) = channel();
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            thread::scope(|scope| {
                let other = line.clone();
                scope.spawn(move || relay(stdout, &line));
                scope.spawn(move || relay(stderr, &other));
                for line in printed {
                    show(&line);
                    lines.push(line);
                }
            });
            child.wait()
        });
        Self { name, lines, outcome, took: started.elapsed() }
    }

    /// Prints the output of a background job.
    fn show(&self) {
        eprintln!("\n    {}, in the background, {}", self.name, seconds(self.took));
        self.lines.iter().for_each(|line| eprintln!("{line}"));
    }

    fn add_to(&self, results: &mut Results) {
        if let Err(error) = &self.outcome {
            eprintln!("    cannot run {}: {error}", self.name);
        }
        let succeeded = self.outcome.as_ref().is_ok_and(ExitStatus::success);
        results.add(&self.name, &self.lines, succeeded);
    }
}

fn relay(from: Option<impl Read>, to: &Sender<String>) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        let text = String::from_utf8_lossy(&line);
        let _ = to.send(text.trim_end_matches(['\n', '\r']).to_owned());
        line.clear();
    }
}

fn at_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]);
    run_by(nice, command)
}

/// Has the kernel kill the command when this process ends, where `setpriv` is installed. The kernel does so when the *thread*
/// that started it ends, which must therefore wait for it. The test kit does the same for servers (`process.rs`), but would
/// make this program slow to build.
fn tied_to_us(command: Command) -> Command {
    // The standard library can set a parent-death signal only by unsafe code.
    let Some(setpriv) = setup::in_path("setpriv") else { return command };
    let mut tie = Command::new(setpriv);
    tie.args(["--pdeathsig", "KILL", "--"]);
    run_by(tie, &command)
}

/// Appends a command to the arguments of another one that runs it.
fn run_by(mut runner: Command, command: &Command) -> Command {
    runner.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => runner.env(name, value),
            None => runner.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        runner.current_dir(folder);
    }
    runner
}

const THREADS: &str = "RUST_TEST_THREADS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_reported_and_stops_no_other_job() {
        let job = |name: &str, program: &str| Job::test(name.into(), Command::new(program), false);
        let behind = |name: &str, program: &str| Job::test(name.into(), Command::new(program), true);
        let jobs = vec![
            job("one", "false"),
            behind("behind", "false"),
            job("two", "no-such-program-here"),
            job("three", "true"),
            Job::beside(Command::new("false")),
        ];
        let failure = run_in_lanes(jobs).judge().unwrap_err().to_string();
        assert_eq!(failure, "failed: one, two, behind, false");
        run_in_lanes(vec![job("three", "true"), behind("behind", "true")]).judge().unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_we_run_ends_with_us() {
        let mut us = Command::new(std::env::current_exe().unwrap());
        us.args(["--exact", "test::lanes::tests::runs_for_long", "--nocapture"]).env(RUNS_FOR_LONG, "1");
        let mut us = us.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(us.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("it runs") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it did not start");
        }
        us.kill().unwrap();
        us.wait().unwrap();
        // It ends when all writers have ended.
        let (ended, end) = channel();
        thread::spawn(move || ended.send(io::copy(&mut output, &mut io::sink()).is_ok()));
        assert!(end.recv_timeout(Duration::from_secs(5)).expect("it goes on"));
    }

    /// The far end of the test above.
    #[test]
    fn runs_for_long() {
        if std::env::var_os(RUNS_FOR_LONG).is_some() {
            let mut command = Command::new("sh");
            command.args(["-c", "echo; echo it runs; exec sleep 60"]);
            tied_to_us(at_lowest_priority(&command)).status().unwrap();
        }
    }

    const RUNS_FOR_LONG: &str = "XTASK_RUNS_FOR_LONG";

    #[test]
    fn the_background_has_the_lowest_priority() {
        let mut command = Command::new("sh");
        command.args(["-c", "nice; echo $WORD; pwd"]).env("WORD", "kept").current_dir("/");
        let output = at_lowest_priority(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "19\nkept\n/\n");
    }
}
