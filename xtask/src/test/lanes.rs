//! Runs test programs in lanes.
//!
//! Cargo runs test programs one after another, and most of them wait: for sessions, leases and servers. Here some of the
//! programs with real servers run at a time, each with more tests at a time than there are processors. Another lane, at a
//! lower priority, has the programs that only compute: they do not disturb tests that measure time. A
//! lane without jobs of its own takes from that one.
//!
//! The test programs end with this process, however it ends: a killed run leaves no servers.
//!
//! Each program is one process, as its tests share servers: with a process per test each would start a ZooKeeper.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use super::cpu;
use super::output::Results;
use crate::steps::seconds;
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

    /// Includes ignored tests.
    pub(super) fn with_ignored(mut self) -> Self {
        self.command.arg("--include-ignored");
        self
    }

    /// Runs only the test of this name.
    pub(super) fn exactly(self, name: &str) -> Self {
        let mut job = self.only(name);
        job.command.arg("--exact");
        job
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

    #[cfg(test)]
    pub(super) fn args(&self) -> impl Iterator<Item = &std::ffi::OsStr> {
        self.command.get_args()
    }

    /// Runs it to its end.
    fn run(mut self, show: impl Fn(&str) + Sync) -> JobReport {
        if std::env::var_os(THREADS).is_none() {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            self.command.env(THREADS, (2 * processors).to_string());
        }
        let command = if self.in_background { at_lower_priority(&self.command) } else { self.command };
        JobReport::of(self.name, self.in_background, tied_to_us(command), show)
    }
}

type Queue = Mutex<IntoIter<(usize, Job)>>;

/// Runs all jobs, even when one has failed: so many foreground jobs at a time.
pub(super) fn run_in_lanes(jobs: Vec<Job>, at_a_time: usize) -> Results {
    let streams = jobs.len() == 1;
    let (behind, front): (Vec<_>, Vec<_>) =
        jobs.into_iter().enumerate().partition(|(_, job)| job.in_background);
    let (front, behind) = (Mutex::new(front.into_iter()), Mutex::new(behind.into_iter()));
    let (report, received) = channel();
    let mut reports = Vec::new();
    thread::scope(|scope| {
        let lanes = std::iter::repeat_n(vec![&front, &behind], at_a_time).chain([vec![&behind]]);
        for queues in lanes {
            let report = report.clone();
            scope.spawn(move || run_lane(&queues, streams, &report));
        }
        drop(report);
        for (number, report) in &received {
            report.show(streams);
            reports.push((number, report));
        }
    });
    // In the same order, whichever lane was faster.
    reports.sort_by_key(|(number, _)| *number);
    let mut results = Results::default();
    reports.iter().for_each(|(_, report)| report.add_to(&mut results));
    results
}

/// Runs the jobs of these queues, one after the other.
fn run_lane(queues: &[&Queue], streams: bool, reports: &Sender<(usize, JobReport)>) {
    let next = |queue: &&Queue| queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    while let Some((number, job)) = queues.iter().find_map(next).filter(|_| interrupt::check().is_ok()) {
        let show = |line: &str| {
            if streams {
                eprintln!("{line}");
            }
        };
        // Fails when the receiver has given up.
        let _ = reports.send((number, job.run(show)));
    }
}

/// The output and outcome of a job.
#[derive(Debug)]
struct JobReport {
    name: String,
    in_background: bool,
    lines: Vec<String>,
    outcome: io::Result<ExitStatus>,
    took: Duration,
    /// The processor time; `None` where the system does not tell.
    cpu: Option<Duration>,
}

impl JobReport {
    /// Runs the command to its end.
    fn of(name: String, in_background: bool, mut command: Command, show: impl Fn(&str) + Sync) -> Self {
        let started = Instant::now();
        let mut lines = Vec::new();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut cpu = None;
        let outcome = command.spawn().and_then(|mut child| {
            let (line, printed) = channel();
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let (pid, (open, closes)) = (child.id(), channel());
            thread::scope(|scope| {
                let meter = scope.spawn(move || cpu::of_tree(pid, &closes));
                let other = line.clone();
                scope.spawn(move || relay(stdout, &line));
                scope.spawn(move || relay(stderr, &other));
                for line in printed {
                    show(&line);
                    lines.push(line);
                }
                drop(open);
                cpu = meter.join().ok().flatten();
            });
            child.wait()
        });
        Self { name, in_background, lines, outcome, took: started.elapsed(), cpu }
    }

    /// Prints the output, unless it was printed already.
    fn show(&self, was_printed: bool) {
        let lane = if self.in_background { ", in the background" } else { "" };
        let cpu = self.cpu.map_or_else(String::new, |cpu| format!(", {} of CPU", seconds(cpu)));
        eprintln!("\n    {}{lane}, {}{cpu}", self.name, seconds(self.took));
        if !was_printed {
            self.lines.iter().for_each(|line| eprintln!("{line}"));
        }
    }

    fn add_to(&self, results: &mut Results) {
        if let Err(error) = &self.outcome {
            eprintln!("    cannot run {}: {error}", self.name);
        }
        let succeeded = self.outcome.as_ref().is_ok_and(ExitStatus::success);
        results.add(&self.name, &self.lines, succeeded);
        results.add_cpu(&self.name, self.cpu);
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

fn at_lower_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", &LOWER.to_string()]);
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

/// Low enough to give way, and high enough to make progress on a busy machine: 19 would not.
const LOWER: i32 = 5;
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
        ];
        let failure = run_in_lanes(jobs, 3).judge().unwrap_err().to_string();
        assert_eq!(failure, "failed: one, behind, two");
        run_in_lanes(vec![job("three", "true"), behind("behind", "true")], 3).judge().unwrap();
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
            tied_to_us(at_lower_priority(&command)).status().unwrap();
        }
    }

    const RUNS_FOR_LONG: &str = "XTASK_RUNS_FOR_LONG";

    #[test]
    fn the_background_has_a_lower_priority() {
        let mut command = Command::new("sh");
        command.args(["-c", "nice; echo $WORD; pwd"]).env("WORD", "kept").current_dir("/");
        let output = at_lower_priority(&command).output().unwrap();
        let ours = Command::new("nice").output().unwrap();
        let ours: i32 = String::from_utf8_lossy(&ours.stdout).trim().parse().unwrap();
        // The lowest that there is.
        let lower = (LOWER + ours).min(19);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{lower}\nkept\n/\n"));
    }
}
