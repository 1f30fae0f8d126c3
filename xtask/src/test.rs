//! `cargo xtask test`: the tests, in tiers.
//!
//! | tier | runs | needs |
//! |---|---|---|
//! | first (default) | all tests without `#[ignore = "full: ..."]`, except for the harness | redis-server, ZooKeeper, PostgreSQL |
//! | `--full` | everything, as CI does | the lock clients of other languages, too |
//! | `--deep` | simulations with new seeds for some minutes | nothing |
//!
//! Slow tests and those that need other clients are marked by `#[ignore]`, so that plain `cargo test` runs the first tier,
//! too.

mod lanes;
mod output;
mod programs;

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use self::lanes::{AT_A_TIME, Job, run_in_lanes};
use self::output::Results;
use self::programs::{Program, Selection};
use crate::failure::Failure;
use crate::steps::{Steps, seconds};
use crate::{interrupt, peers, setup};

const USAGE: &str = "\
Usage: cargo xtask test [--full] [NAME...]
       cargo xtask test --deep [--minutes N]

Without arguments: the first tier, some ten minutes. With --full: all, as in CI. With --deep: new seeds for N minutes (10).
NAME is a package (its first tier, all with --full), a test program, or a part of the names of tests; what it matches runs
whatever its tier.";

/// How many of the slowest tests are shown.
const SLOWEST: usize = 10;

/// The request of the command line.
#[derive(Debug, PartialEq)]
enum TestRequest {
    Tier { full: bool },
    Named { full: bool, names: Vec<String> },
    Deep { minutes: f64 },
    Help,
}

/// Runs the tests that the arguments select.
pub(crate) fn run(args: &[OsString]) -> Result<(), Failure> {
    let request = TestRequest::read(args)?;
    let mut steps = Steps::start();
    match request {
        TestRequest::Help => {
            println!("{USAGE}");
            return Ok(());
        }
        TestRequest::Tier { full: false } => first(&mut steps)?,
        TestRequest::Tier { full: true } => {
            steps.run("set-up", setup::ensure_for_tests)?;
            steps.run("peers", peers::ensure)?;
            setup::offer_optional()?;
            full(&mut steps, Vec::new())?;
        }
        TestRequest::Named { full, names } => {
            for name in names {
                named(&mut steps, &name, full)?;
            }
        }
        TestRequest::Deep { minutes } => deep(&mut steps, minutes)?,
    }
    steps.summary();
    Ok(())
}

impl TestRequest {
    fn read(args: &[OsString]) -> Result<Self, Failure> {
        let (mut full, mut deep, mut minutes, mut names) = (false, false, None, Vec::new());
        let usage = |what: String| Failure::usage(format!("{what}\n\n{USAGE}"));
        let mut args = args.iter().map(|arg| arg.to_string_lossy());
        while let Some(arg) = args.next() {
            match &*arg {
                "--help" | "-h" => return Ok(Self::Help),
                "--full" => full = true,
                "--deep" => deep = true,
                "--minutes" => {
                    let number =
                        args.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0.0);
                    minutes = Some(number.ok_or_else(|| usage("--minutes needs a number".into()))?);
                }
                flag if flag.starts_with('-') => return Err(usage(format!("unknown flag `{flag}`"))),
                name => names.push(name.to_owned()),
            }
        }
        match (deep, full, names.is_empty()) {
            (true, false, true) => Ok(Self::Deep { minutes: minutes.unwrap_or(10.0) }),
            (true, ..) => Err(usage("--deep can be combined with --minutes only".into())),
            (false, ..) if minutes.is_some() => Err(usage("--minutes requires --deep".into())),
            (false, full, true) => Ok(Self::Tier { full }),
            (false, full, false) => Ok(Self::Named { full, names }),
        }
    }
}

/// Runs the first tier. Without the harness, which takes as long to build as everything else.
fn first(steps: &mut Steps) -> Result<(), Failure> {
    steps.run("set-up", setup::ensure_for_tests)?;
    let selection = Selection::all().without("lock-bench");
    let programs = build(steps, &selection)?;
    steps.leave_out("the harness (benches/), which `cargo xtask test --full` tests".into());
    execute(steps, &programs, Vec::new(), |program| program.job())?;
    steps.command("examples in the docs", selection.docs())
}

/// Runs all tests and examples, and `beside` them these commands at a lower priority.
pub(crate) fn full(steps: &mut Steps, beside: Vec<Command>) -> Result<(), Failure> {
    let selection = Selection::all();
    let programs = build(steps, &selection)?;
    execute(steps, &programs, beside, |program| program.job().with_ignored())?;
    steps.command("examples in the docs", selection.docs())
}

/// Runs the tests that match this name.
fn named(steps: &mut Steps, name: &str, full: bool) -> Result<(), Failure> {
    let selection = Selection::of(name)?;
    steps.run("set-up", setup::ensure_for_tests)?;
    let programs = build(steps, &selection)?;
    if programs.iter().any(Program::needs_peers) {
        steps.run("peers", peers::ensure)?;
    }
    let filter = selection.filter().map(str::to_owned);
    let results = execute(steps, &programs, Vec::new(), |program| match &filter {
        Some(filter) => program.job().with_ignored().only(filter),
        None if full || !selection.is_package() => program.job().with_ignored(),
        None => program.job(),
    })?;
    if results.ran == 0 {
        return Err(Failure::new(format!("no package, test program or test matches `{name}`")));
    }
    Ok(())
}

/// Runs the simulations with new seeds; they share the time.
fn deep(steps: &mut Steps, minutes: f64) -> Result<(), Failure> {
    let programs = build(steps, &Selection::simulations())?;
    let rounds = programs.len().div_ceil(AT_A_TIME).max(1);
    let each = Duration::from_secs_f64(minutes * 60.0) / u32::try_from(rounds).unwrap_or(u32::MAX);
    eprintln!("    {} for each of {} programs", seconds(each), programs.len());
    execute(steps, &programs, Vec::new(), |program| {
        program
            .job()
            .with_ignored()
            .only(MANY_SEEDS)
            .env(SEED_SECONDS, &each.as_secs().max(1).to_string())
            .in_front()
    })?;
    Ok(())
}

/// How long simulations run new seeds: see `Seeds` of the test kit.
const SEED_SECONDS: &str = "SEED_SECONDS";
/// The test of each simulation that does so.
const MANY_SEEDS: &str = "none_of_many_seeds_breaks_a_promise";

fn build(steps: &mut Steps, selection: &Selection) -> Result<Vec<Program>, Failure> {
    let mut programs = Vec::new();
    steps.run("build of the tests", || selection.build().map(|built| programs = built))?;
    Ok(programs)
}

fn execute(
    steps: &mut Steps,
    programs: &[Program],
    beside: Vec<Command>,
    job: impl Fn(&Program) -> Job,
) -> Result<Results, Failure> {
    let jobs = programs.iter().map(job).chain(beside.into_iter().map(Job::beside)).collect();
    let mut results = Results::default();
    let outcome = steps.run("tests", || {
        results = run_in_lanes(jobs);
        interrupt::check()?;
        results.show(SLOWEST);
        results.judge()
    });
    for (reason, tests) in &results.left_out {
        steps.leave_out(format!("{tests} tests: {reason}"));
    }
    outcome.map(|()| results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<TestRequest, String> {
        let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        TestRequest::read(&args).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_command_line_names_a_tier_or_tests() {
        assert_eq!(read(""), Ok(TestRequest::Tier { full: false }));
        assert_eq!(read("--full"), Ok(TestRequest::Tier { full: true }));
        assert_eq!(
            read("lock_core"),
            Ok(TestRequest::Named { full: false, names: vec!["lock_core".into()] })
        );
        assert_eq!(read("--deep --minutes 2.5"), Ok(TestRequest::Deep { minutes: 2.5 }));
        for wrong in ["--deep --full", "--minutes 3", "--deep --minutes x", "--deep a", "--fast"] {
            assert!(read(wrong).unwrap_err().contains("Usage:"), "{wrong}");
        }
    }
}
