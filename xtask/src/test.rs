//! `cargo xtask test`: every test there is.
//!
//! Cargo runs test programs one after another, and most of them wait: for sessions to end, leases to expire, servers to
//! start. Here they run in two lanes. In the first, one after another, those that talk to real servers; in the
//! second, at the lowest priority, those that only compute, and what the caller has to build by then. That takes the
//! processors when nobody else wants them, and no test that measures time notices it.
//!
//! The test programs end with us, however we end: otherwise a run that was killed would leave one behind, with its servers.
//!
//! A program stays one process: its tests share its servers, and a runner that gives every test a process of its own
//! would start a ZooKeeper for each.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::steps::{Steps, cargo, command_line, seconds, workspace};
use crate::{interrupt, peers, setup};

/// Set-up, and all tests and examples; with arguments what `cargo test` makes of them.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    let mut steps = Steps::start();
    steps.run("set-up", setup::ensure)?;
    steps.run("peers", peers::ensure)?;
    if args.is_empty() {
        all(&mut steps, Vec::new())?;
    } else {
        let mut tests = cargo(["test", "--workspace", "--all-features"]);
        tests.args(args);
        steps.command("tests", tests)?;
    }
    steps.summary();
    Ok(())
}

/// All tests and examples, and `beside` them these commands, at the lowest priority.
pub(crate) fn all(steps: &mut Steps, beside: Vec<Command>) -> Result<(), Failure> {
    let mut programs = Vec::new();
    steps.run("build of the tests", || build().map(|built| programs = built))?;
    steps.run("tests", || run_in_lanes(&programs, beside))?;
    steps.command("examples in the docs", cargo(["test", "--workspace", "--all-features", "--doc"]))
}

/// Tests that do nothing but compute, in virtual time if in any.
const COMPUTING: &[&str] = &[
    "crates/lock-redis/tests/simulation.rs",
    "crates/lock-redlock/tests/models.rs",
    "crates/lock-redlock/tests/simulation.rs",
    "crates/lock-redlock/tests/virtual_time.rs",
    "crates/lock-zk/tests/model.rs",
    "crates/lock-zk/tests/simulation.rs",
];

/// Others that print figures, or what happened, also when all is well.
const TELLING: &[&str] =
    &["crates/lock-redlock/tests/contention.rs", "crates/lock-redlock/tests/failover.rs"];

/// A program that cargo made of tests.
#[derive(Debug, PartialEq)]
struct Program {
    executable: PathBuf,
    /// The folder of its package, in which cargo runs it.
    package: PathBuf,
    source: PathBuf,
}

/// Builds all tests, and the examples, as `cargo test` does.
fn build() -> Result<Vec<Program>, Failure> {
    let mut command = cargo(["test", "--workspace", "--all-features", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let line = command_line(&command);
    eprintln!("    {line}");
    let output = command.output().map_err(|error| Failure::new(format!("cannot run `{line}`: {error}")))?;
    interrupt::check()?;
    if !output.status.success() {
        return Err(Failure::new(format!("`{line}` ended with {}; its own output is above", output.status)));
    }
    let mut programs: Vec<_> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::of_message).collect();
    // Cargo tells of them as they are built, in another order each time.
    programs.sort_by(|one, other| one.source.cmp(&other.source));
    let is_there = |source: &&&str| programs.iter().any(|program| program.source.ends_with(source));
    // Otherwise a test that was renamed would be slow, or its figures missing, and nobody would know why.
    match COMPUTING.iter().chain(TELLING).find(|source| !is_there(source)) {
        Some(absent) => {
            Err(Failure::new(format!("`{line}` built no {absent}, which xtask/src/test.rs names")))
        }
        None => Ok(programs),
    }
}

impl Program {
    /// The program that cargo tells of in this line of JSON, if it does.
    fn of_message(message: &str) -> Option<Self> {
        let (_, profile) = message.split_once(r#""profile":{"#)?;
        let is_test = profile.split('}').next()?.contains(r#""test":true"#);
        let text = |name: &str| {
            let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
            rest.split_once('"').map(|(text, _)| PathBuf::from(text))
        };
        let executable = text("executable").filter(|_| is_test)?;
        Some(Self {
            executable,
            package: text("manifest_path")?.parent()?.to_owned(),
            source: text("src_path")?,
        })
    }

    fn name(&self) -> String {
        let root = workspace().canonicalize().unwrap_or_default();
        self.source.strip_prefix(root).unwrap_or(&self.source).display().to_string()
    }

    fn computes(&self) -> bool {
        COMPUTING.iter().any(|source| self.source.ends_with(source))
    }

    /// Whether what its tests print is worth reading when they pass, which the test harness keeps to itself.
    fn tells(&self) -> bool {
        self.computes() || TELLING.iter().any(|source| self.source.ends_with(source))
    }

    /// To be run as cargo would.
    fn job(&self) -> Job {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        if self.tells() {
            command.arg("--show-output");
        }
        Job { name: self.name(), command }
    }
}

/// Runs all programs, also when one has failed: what the others say is worth knowing.
fn run_in_lanes(programs: &[Program], beside: Vec<Command>) -> Result<(), Failure> {
    let (computing, waiting): (Vec<_>, Vec<_>) = programs.iter().partition(|program| program.computes());
    let beside = beside.into_iter().map(|command| Job { name: command_line(&command), command });
    let behind: Vec<_> = computing.into_iter().map(Program::job).chain(beside).collect();
    let (report, reports) = channel();
    let (mut failed, mut failed_behind) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(move || run_behind(behind, &report));
        for program in waiting {
            if interrupt::check().is_ok() {
                failed.extend(program.job().run());
                failed_behind.extend(reports.try_iter().filter_map(Report::tell));
            }
        }
        failed_behind.extend(reports.iter().filter_map(Report::tell));
    });
    interrupt::check()?;
    // Named in the same order whichever lane was the faster.
    failed.append(&mut failed_behind);
    if failed.is_empty() { Ok(()) } else { Err(Failure::new(format!("failed: {}", failed.join(", ")))) }
}

/// Runs one after the other at the lowest priority.
fn run_behind(jobs: Vec<Job>, reports: &Sender<Report>) {
    for job in jobs {
        if interrupt::check().is_ok() {
            let started = Instant::now();
            let outcome = tied_to_us(at_lowest_priority(&job.command)).stdin(Stdio::null()).output();
            // Nobody who gave up waits for the report.
            let _ = reports.send(Report { name: job.name, outcome, took: started.elapsed() });
        }
    }
}

fn at_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]);
    run_by(nice, command)
}

/// Has the kernel kill what the command runs as soon as we are gone, where that can be had. It does so when the *thread*
/// that started it ends, which therefore has to wait for it.
fn tied_to_us(command: Command) -> Command {
    // The standard library sets a parent-death signal only through unsafe code.
    let Some(setpriv) = setup::in_path("setpriv") else { return command };
    let mut tie = Command::new(setpriv);
    tie.args(["--pdeathsig", "KILL", "--"]);
    run_by(tie, &command)
}

/// The command, started by another one that takes it as its last arguments.
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

/// One thing to run, which can fail.
#[derive(Debug)]
struct Job {
    name: String,
    command: Command,
}

impl Job {
    /// Runs it in the foreground, and gives its name if it fails.
    fn run(mut self) -> Option<String> {
        eprintln!("\n    {}", self.name);
        // Its tests wait more than they work.
        if std::env::var_os(THREADS).is_none() {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            self.command.env(THREADS, (2 * processors).to_string());
        }
        match tied_to_us(self.command).status() {
            Ok(status) if status.success() => None,
            Ok(_) => Some(self.name),
            Err(error) => {
                eprintln!("    cannot be run: {error}");
                Some(self.name)
            }
        }
    }
}

/// What a job in the background came to.
#[derive(Debug)]
struct Report {
    name: String,
    outcome: io::Result<Output>,
    took: Duration,
}

impl Report {
    /// Prints what the job printed, and gives its name if it failed.
    fn tell(self) -> Option<String> {
        eprintln!("\n    {}, in the background, {}", self.name, seconds(self.took));
        match self.outcome {
            Ok(output) => {
                eprint!(
                    "{}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                );
                (!output.status.success()).then_some(self.name)
            }
            Err(error) => {
                eprintln!("    cannot be run: {error}");
                Some(self.name)
            }
        }
    }
}

const THREADS: &str = "RUST_TEST_THREADS";

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///p/crates/lock-zk#0.1.0","manifest_path":"/p/crates/lock-zk/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"model","src_path":"/p/crates/lock-zk/tests/model.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":["tls"],"filenames":["/t/model-1"],"executable":"/t/model-1","fresh":true}"#;

    #[test]
    fn a_test_program_is_told_from_what_else_cargo_makes() {
        let program = Program::of_message(MESSAGE).unwrap();
        assert_eq!(program.executable, PathBuf::from("/t/model-1"));
        assert_eq!(program.package, PathBuf::from("/p/crates/lock-zk"));
        assert!(program.computes());
        let library = MESSAGE.replace(r#""executable":"/t/model-1""#, r#""executable":null"#);
        assert_eq!(Program::of_message(&library), None);
        // Only its own profile says that a program is of tests; an example may have some.
        let example = MESSAGE
            .replace(r#""overflow_checks":true,"test":true"#, r#""overflow_checks":true,"test":false"#);
        assert_eq!(Program::of_message(&example), None);
        assert_eq!(Program::of_message("running 3 tests"), None);
    }

    #[test]
    fn what_programs_tell_is_shown_in_both_lanes() {
        let args = |source: &str| {
            let program = Program {
                executable: "true".into(),
                package: ".".into(),
                source: format!("/p/{source}").into(),
            };
            let in_front = program.job().command;
            let behind = at_lowest_priority(&in_front);
            let last = |command: &Command| command.get_args().last().map(|arg| arg == "--show-output");
            (last(&in_front), last(&behind))
        };
        for source in COMPUTING.iter().chain(TELLING) {
            assert_eq!(args(source), (Some(true), Some(true)), "{source}");
        }
        assert_eq!(args("crates/lock-redlock/tests/masters.rs"), (None, Some(false)));
    }

    #[test]
    fn every_failure_is_told_and_stops_nobody() {
        let ran = |program: &str, executable: &str| Program {
            executable: executable.into(),
            package: ".".into(),
            source: program.into(),
        };
        let programs = [ran("one", "false"), ran("two", "no-such-program-here"), ran("three", "true")];
        let computing = ran(COMPUTING[0], "false");
        let failure = run_in_lanes(&programs, vec![Command::new("false")]).unwrap_err().to_string();
        assert_eq!(failure, "failed: one, two, false");
        let failure = run_in_lanes(&[computing], Vec::new()).unwrap_err().to_string();
        assert_eq!(failure, format!("failed: {}", COMPUTING[0]));
        run_in_lanes(&[ran("three", "true")], vec![Command::new("true")]).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_we_run_ends_with_us() {
        use std::io::{BufRead, BufReader};

        let mut us = Command::new(std::env::current_exe().unwrap());
        us.args(["--exact", "test::tests::runs_for_long", "--nocapture"]).env(RUNS_FOR_LONG, "1");
        let mut us = us.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(us.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("it runs") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it did not start");
        }
        us.kill().unwrap();
        us.wait().unwrap();
        // Whatever writes to it must be gone before it ends.
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
    fn the_background_yields_to_everybody() {
        let mut command = Command::new("sh");
        command.args(["-c", "nice; echo $WORD; pwd"]).env("WORD", "kept").current_dir("/");
        let output = at_lowest_priority(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "19\nkept\n/\n");
    }
}
