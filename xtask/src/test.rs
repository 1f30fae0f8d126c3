//! `cargo xtask test`: the tests, in tiers.
//!
//! | tier | runs | needs |
//! |---|---|---|
//! | first (default) | all tests that are not ignored, but for the harness | redis-server, ZooKeeper, PostgreSQL |
//! | `--full` | what must pass before a change lands: also `#[ignore = "full: ..."]`, and the harness | the lock clients of other languages, too |
//! | `--deep` | what runs at night: everything, also `#[ignore = "deep: ..."]`, then simulations with new seeds for some minutes, then `--servers` | the same |
//! | `--servers` | what depends on servers, on other releases of them | these servers |
//!
//! Plain `cargo test` runs the first tier, too. Tests of the tier `--deep` are in modules named `deep`, by which the others leave
//! them out. Tests that try at random try more in a higher tier: see `by_tier` of the test kit.

mod cpu;
mod lanes;
mod output;
mod programs;
mod stalls;

use std::ffi::OsString;
use std::time::Duration;

use self::lanes::{Job, run_in_lanes};
use self::output::Results;
use self::programs::{Program, Selection, Tier};
use self::stalls::Stalls;
use crate::failure::Failure;
use crate::servers::{SERVERS, Server};
use crate::steps::{Steps, seconds};
use crate::{interrupt, peers, setup};

const USAGE: &str = "\
Usage: cargo xtask test [--full] [NAME...]
       cargo xtask test --deep [--minutes N]
       cargo xtask test --servers [NAME,NAME...]

Without arguments: the first tier, some seven minutes in a new clone. With --full: as CI. With --deep: as at night, everything, and
new seeds for N minutes (10), and --servers. With --servers: what depends on servers on other releases, which it fetches; all, or
some of redis-6.2, redis-8.2, valkey-9.1, zk-3.5, zk-3.9.
NAME is a package (its first tier, more with --full), a test program, a module of one, or a part of the names of tests; what it
matches runs whatever its tier.";

/// How many of the slowest tests are shown.
const SLOWEST: usize = 10;

/// If more tests fail, none of them is flaky. Of six thousand, a slow hour of a shared machine fails some that wait for servers.
const MOST_FLAKY: usize = 12;

/// Far longer than a thread waits for its turn on a busy machine.
const LONG_STALL: Duration = Duration::from_millis(500);

/// The processor time that the first tier may take: twice what it takes on a quiet machine, as machines differ.
const BUDGET: Duration = Duration::from_secs(550);

/// The request of the command line.
#[derive(Debug, PartialEq)]
enum TestRequest {
    Tier { full: bool },
    Named { full: bool, names: Vec<String> },
    Deep { minutes: f64 },
    Servers { names: Vec<&'static str> },
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
            steps.run("set-up", setup::ensure)?;
            steps.run("peers", peers::ensure)?;
            setup::offer_optional()?;
            full(&mut steps)?;
        }
        TestRequest::Named { full, names } => {
            for name in names {
                named(&mut steps, &name, full)?;
            }
        }
        TestRequest::Deep { minutes } => deep(&mut steps, minutes)?,
        TestRequest::Servers { names } => {
            steps.run("set-up", setup::ensure)?;
            let programs = build(&mut steps, &Selection::of_servers())?;
            on_servers(&mut steps, &programs, &names)?;
        }
    }
    steps.summary();
    Ok(())
}

impl TestRequest {
    fn read(args: &[OsString]) -> Result<Self, Failure> {
        let (mut full, mut deep, mut servers, mut minutes, mut names) =
            (false, false, false, None, Vec::new());
        let usage = |what: String| Failure::usage(format!("{what}\n\n{USAGE}"));
        let mut args = args.iter().map(|arg| arg.to_string_lossy());
        while let Some(arg) = args.next() {
            match &*arg {
                "--help" | "-h" => return Ok(Self::Help),
                "--full" => full = true,
                "--deep" => deep = true,
                "--servers" => servers = true,
                "--minutes" => {
                    let number =
                        args.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0.0);
                    minutes = Some(number.ok_or_else(|| usage("--minutes needs a number".into()))?);
                }
                flag if flag.starts_with('-') => return Err(usage(format!("unknown flag `{flag}`"))),
                name => names.push(name.to_owned()),
            }
        }
        if servers {
            return match &names[..] {
                _ if deep || full || minutes.is_some() => Err(usage("--servers stands alone".into())),
                [] => Ok(Self::Servers { names: all_servers() }),
                [names] => named_servers(names).map(|names| Self::Servers { names }).map_err(usage),
                _ => Err(usage("--servers takes names between commas".into())),
            };
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
    steps.run("set-up", setup::ensure)?;
    let programs = build(steps, &Selection::first())?;
    steps.leave_out(
        "the harness (benches/) and clients of other languages, for `cargo xtask test --full`".into(),
    );
    let results = execute(steps, &programs, Tier::First, |program| program.jobs(Tier::First))?;
    steps.run("budget", || within_budget(results.cpu()))?;
    steps.command("examples in the docs", Selection::docs(Some("lock-bench")))
}

/// Runs the tests that must pass before a change lands, and the examples.
pub(crate) fn full(steps: &mut Steps) -> Result<(), Failure> {
    let programs = build(steps, &Selection::all())?;
    execute(steps, &programs, Tier::Full, |program| program.jobs(Tier::Full))?;
    steps.command("examples in the docs", Selection::docs(None))
}

/// Fails when the first tier takes more processor time than it may, so that it stays quick.
fn within_budget(cpu: Duration) -> Result<(), Failure> {
    eprintln!("    {} of CPU, of {}", seconds(cpu), seconds(BUDGET));
    if cpu <= BUDGET {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the first tier took {} of CPU, and may take {}: make a test above cheaper, move it to the full tier \
         (`#[ignore = \"full: why\"]`), or raise BUDGET in xtask/src/test.rs",
        seconds(cpu),
        seconds(BUDGET)
    )))
}

/// Runs the tests that match this name.
fn named(steps: &mut Steps, name: &str, full: bool) -> Result<(), Failure> {
    let selection = Selection::of(name)?;
    steps.run("set-up", setup::ensure)?;
    let programs = build(steps, &selection)?;
    if programs.iter().any(Program::needs_peers) {
        steps.run("peers", peers::ensure)?;
    }
    let filter = selection.filter().map(str::to_owned);
    let results = execute(steps, &programs, Tier::Full, |program| {
        vec![match &filter {
            Some(filter) => program.job(Tier::First).with_ignored().only(filter),
            None if selection.is_package() && !full => program.job(Tier::First),
            None => program.job(Tier::Full),
        }]
    })?;
    if results.ran == 0 {
        return Err(Failure::new(format!("no package, test program or test matches `{name}`")));
    }
    Ok(())
}

/// Runs everything, and then the simulations with new seeds; they share the time. Then what depends on servers on others.
fn deep(steps: &mut Steps, minutes: f64) -> Result<(), Failure> {
    steps.run("set-up", setup::ensure)?;
    steps.run("peers", peers::ensure)?;
    setup::offer_optional()?;
    let programs = build(steps, &Selection::all().optimized())?;
    execute(steps, &programs, Tier::Deep, |program| program.jobs(Tier::Deep))?;
    let simulations: Vec<_> = programs.iter().filter(|program| program.simulates()).cloned().collect();
    let rounds = simulations.len().div_ceil(Tier::Deep.at_a_time()).max(1);
    let each = Duration::from_secs_f64(minutes * 60.0) / u32::try_from(rounds).unwrap_or(u32::MAX);
    eprintln!("    {} for each of {} programs", seconds(each), simulations.len());
    execute(steps, &simulations, Tier::Deep, |program| {
        let job = program.job(Tier::Deep).only(NO_SEED);
        vec![job.env(SEED_SECONDS, &each.as_secs().max(1).to_string())]
    })?;
    on_servers(steps, &programs, &all_servers())
}

/// Runs what depends on servers on each of these. One that cannot be fetched is left out, and one that fails stops no other.
fn on_servers(steps: &mut Steps, programs: &[Program], names: &[&str]) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for server in SERVERS.iter().filter(|server| names.contains(&server.name())) {
        let (variable, value) = match server.fetch() {
            Ok(found) => found,
            Err(failure) => {
                interrupt::check()?;
                let why = failure.to_string();
                steps.leave_out(format!("{}: {}", server.name(), why.lines().next().unwrap_or_default()));
                continue;
            }
        };
        eprintln!("\n==> {}", server.name());
        let programs: Vec<_> = programs.iter().map(|program| program.on(variable, &value)).collect();
        let ended = execute(steps, &programs, Tier::Full, |program| program.jobs_of_servers(server.store));
        interrupt::check()?;
        failed.extend(ended.err().map(|failure| format!("{}: {failure}", server.name())));
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::new(failed.join("; "))) }
}

fn all_servers() -> Vec<&'static str> {
    SERVERS.iter().map(Server::name).collect()
}

/// Reads names between commas.
fn named_servers(names: &str) -> Result<Vec<&'static str>, String> {
    let known = all_servers();
    let find = |name: &str| known.iter().copied().find(|known| *known == name);
    names.split(',').map(|name| find(name).ok_or_else(|| format!("no server is called `{name}`"))).collect()
}

/// How long simulations run new seeds: see `Seeds` of the test kit.
const SEED_SECONDS: &str = "SEED_SECONDS";
/// The test of each simulation that does so.
const NO_SEED: &str = "simulation::no_seed_breaks_a_promise";

fn build(steps: &mut Steps, selection: &Selection) -> Result<Vec<Program>, Failure> {
    let mut programs = Vec::new();
    steps.run("build of the tests", || selection.build().map(|built| programs = built))?;
    Ok(programs)
}

fn execute(
    steps: &mut Steps,
    programs: &[Program],
    tier: Tier,
    jobs: impl Fn(&Program) -> Vec<Job>,
) -> Result<Results, Failure> {
    let jobs = programs.iter().flat_map(jobs).collect();
    let mut results = Results::default();
    let mut flaky = Vec::new();
    let stalls = Stalls::watch();
    let outcome = steps.run("tests", || {
        results = run_in_lanes(jobs, lanes(tier));
        interrupt::check()?;
        results.show(SLOWEST);
        let verdict = results.judge();
        if verdict.is_err() && pass_alone(&results.failed_tests(), programs, tier) {
            flaky = results.failed_tests();
            return Ok(());
        }
        verdict
    });
    for (program, test) in flaky {
        let stood_still = match stalls.longest() {
            stall if stall < LONG_STALL => String::new(),
            stall => format!("; the machine stood still for {}", seconds(stall)),
        };
        steps.note("flaky", format!("{program}: {test} failed beside others and passed alone{stood_still}"));
    }
    for (reason, tests) in &results.left_out {
        steps.leave_out(format!("{tests} tests: {reason}"));
    }
    outcome.map(|()| results)
}

/// Runs tests that failed once more, one at a time with nothing beside them, if there are few: all of them pass?
///
/// Beside a hundred processes a deadline is missed now and then, on a machine that is shared. Such a test is reported as flaky.
fn pass_alone(failed: &[(&str, &str)], programs: &[Program], tier: Tier) -> bool {
    if failed.is_empty() || failed.len() > MOST_FLAKY {
        return false;
    }
    let job = |(name, test): &(&str, &str)| {
        // What computes is run in parts, see `Program::jobs`.
        let name = name.split(" (").next()?;
        let program = programs.iter().find(|program| program.name() == name)?;
        Some(program.job(tier).exactly(test))
    };
    let Some(jobs) = failed.iter().map(job).collect() else { return false };
    let again = run_in_lanes(jobs, 1);
    again.judge().is_ok() && again.ran == failed.len()
}

/// How many foreground programs run at a time: half as many on a machine that is busy with other work, where tests that wait
/// for each other would wait too long.
fn lanes(tier: Tier) -> usize {
    match cpu::others_are_busy() {
        true => tier.at_a_time() / 2,
        false => tier.at_a_time(),
    }
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
        let servers = |line| match read(line) {
            Ok(TestRequest::Servers { names }) => names,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(servers("--servers"), all_servers());
        assert_eq!(servers("--servers zk-3.5,redis-8.2"), ["zk-3.5", "redis-8.2"]);
        for wrong in
            ["--servers --full", "--servers redis-1.0", "--servers zk-3.5 zk-3.9", "--deep --servers"]
        {
            assert!(read(wrong).unwrap_err().contains("Usage:"), "{wrong}");
        }
        for wrong in ["--deep --full", "--minutes 3", "--deep --minutes x", "--deep a", "--fast"] {
            assert!(read(wrong).unwrap_err().contains("Usage:"), "{wrong}");
        }
    }
}
