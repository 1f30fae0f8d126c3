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

mod lanes;
mod programs;
mod results;
mod stalls;

use std::ffi::OsString;
use std::time::Duration;

use self::lanes::{Job, MOST_AT_A_TIME, run_in_lanes};
use self::programs::{INTEROP, Program, Tier, build, select, select_first};
use self::results::Results;
use crate::command::{Result, cargo, seconds};
use crate::steps::Steps;
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

/// Unit tests and all programs. Examples are checked by the lints, and two programs run them.
const ALL: &str = "--workspace --lib --bins --tests";
/// The programs that depend on servers: see [`Program::jobs_of_servers`].
const OF_SERVERS: &str = "--workspace --test redis --test redlock --test zk --test conformance";
const DOCS: &str = "test --workspace --all-features --doc";

/// If more tests fail, none of them is flaky. Of six thousand, a slow hour of a shared machine fails some that wait for servers.
const MOST_FLAKY: usize = 12;

/// Far longer than a thread waits for its turn on a busy machine.
const LONG_STALL: Duration = Duration::from_millis(500);

/// How long simulations run new seeds: see `Seeds` of the test kit.
const SEED_SECONDS: &str = "SEED_SECONDS";
/// The test of each simulation that does so.
const NO_SEED: &str = "simulation::no_seed_breaks_a_promise";

/// Runs the tests that the arguments select.
pub(crate) fn run(args: &[OsString]) -> Result {
    let usage = |what: &str| Err(format!("{what}\n\n{USAGE}"));
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(|word| &**word).collect();
    let mut steps = Steps::start();
    match &words[..] {
        ["--help" | "-h", ..] => {
            println!("{USAGE}");
            return Ok(());
        }
        [] => first(&mut steps)?,
        ["--full"] => {
            steps.run("set-up", setup::ensure)?;
            steps.run("peers", peers::ensure)?;
            setup::offer_optional()?;
            full(&mut steps)?;
        }
        ["--deep"] => deep(&mut steps, 10.0)?,
        ["--deep", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) if minutes > 0.0 => deep(&mut steps, minutes)?,
            _ => return usage("--minutes needs a number"),
        },
        ["--servers", names @ ..] => {
            let (all, names) = (peers::servers(), names.join(","));
            let names = if names.is_empty() { all.clone() } else { names.split(',').collect() };
            if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
                return usage(&format!("no server is called `{unknown}`"));
            }
            steps.run("set-up", setup::ensure)?;
            let programs = steps.run("build of the tests", || build(OF_SERVERS))?;
            on_servers(&mut steps, &programs, &names)?;
        }
        words => {
            let (full, names): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| **word == "--full");
            if names.iter().any(|name| name.starts_with('-')) {
                return usage("unknown flags, or ones that do not go together");
            }
            names.iter().try_for_each(|name| named(&mut steps, name, !full.is_empty()))?;
        }
    }
    steps.summary();
    Ok(())
}

/// Runs the first tier. Without the harness, which takes as long to build as everything else.
fn first(steps: &mut Steps) -> Result {
    steps.run("set-up", setup::ensure)?;
    setup::offer_optional_of_first_tier()?;
    let programs = steps.run("build of the tests", || build(&select_first()?))?;
    let more = "the harness (benches/) and clients of other languages, for `cargo xtask test --full`";
    steps.note("left out", more.into());
    execute(steps, &programs, Tier::First, |program| program.jobs(Tier::First))?;
    steps.command("examples in the docs", cargo(DOCS))
}

/// Runs the tests that must pass before a change lands, and the examples.
pub(crate) fn full(steps: &mut Steps) -> Result {
    let programs = steps.run("build of the tests", || build(ALL))?;
    execute(steps, &programs, Tier::Full, |program| program.jobs(Tier::Full))?;
    steps.command("examples in the docs", cargo(DOCS))
}

/// Runs the tests that match this name.
fn named(steps: &mut Steps, name: &str, full: bool) -> Result {
    let (args, filter) = select(name)?;
    steps.run("set-up", setup::ensure)?;
    setup::offer_optional()?;
    let programs = steps.run("build of the tests", || build(&args))?;
    if programs.iter().any(|program| program.name == INTEROP) {
        steps.run("peers", peers::ensure)?;
    }
    let results = execute(steps, &programs, Tier::Full, |program| {
        vec![match &filter {
            Some(filter) => program.job(Tier::First, &["--include-ignored", filter]),
            None if args.starts_with("--package") && !full => program.job(Tier::First, &[]),
            None => program.job(Tier::Full, &[]),
        }]
    })?;
    if results.ran == 0 {
        return Err(format!("no package, test program or test matches `{name}`"));
    }
    Ok(())
}

/// Runs everything, and then the simulations with new seeds; they share the time. Then what depends on servers on others.
fn deep(steps: &mut Steps, minutes: f64) -> Result {
    steps.run("set-up", setup::ensure)?;
    steps.run("peers", peers::ensure)?;
    setup::offer_optional()?;
    let programs = steps.run("build of the tests", || build(&format!("{ALL} --profile deep")))?;
    execute(steps, &programs, Tier::Deep, |program| program.jobs(Tier::Deep))?;
    let simulations: Vec<_> =
        programs.iter().filter(|program| program.computing.contains(&"simulation")).cloned().collect();
    // Two at a time, as they only compute.
    let rounds = simulations.len().div_ceil(2).max(1);
    let each = Duration::from_secs_f64(minutes * 60.0 / rounds as f64);
    eprintln!("    {} for each of {} programs", seconds(each), simulations.len());
    execute(steps, &simulations, Tier::Deep, |program| {
        let mut job = program.job(Tier::Deep, &[NO_SEED]);
        job.command.env(SEED_SECONDS, each.as_secs().max(1).to_string());
        vec![job]
    })?;
    on_servers(steps, &programs, &peers::servers())
}

/// Runs what depends on servers on each of these. One that cannot be fetched is left out, and one that fails stops no other.
fn on_servers(steps: &mut Steps, programs: &[Program], names: &[&str]) -> Result {
    let mut failed = Vec::new();
    for name in names {
        eprintln!("\n==> {name}");
        let server = peers::fetch_server(name);
        interrupt::check()?;
        match server {
            Ok(server) => {
                let programs: Vec<_> = programs.iter().map(|program| program.on(&server)).collect();
                let ended = execute(steps, &programs, Tier::Full, |program| program.jobs_of_servers(name));
                interrupt::check()?;
                failed.extend(ended.err().map(|why| format!("{name}: {why}")));
            }
            Err(why) => {
                steps.note("left out", format!("{name}: {}", why.lines().next().unwrap_or_default()));
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn execute(
    steps: &mut Steps,
    programs: &[Program],
    tier: Tier,
    jobs: impl Fn(&Program) -> Vec<Job>,
) -> Result<Results> {
    stalls::watch();
    let (mut results, mut is_flaky) = (Results::default(), false);
    let outcome = steps.run("tests", || {
        results = run_in_lanes(programs.iter().flat_map(jobs).collect(), MOST_AT_A_TIME);
        interrupt::check()?;
        results.show();
        let verdict = results.judge();
        is_flaky = verdict.is_err() && pass_alone(&results.failed, programs, tier);
        if is_flaky { Ok(()) } else { verdict }
    });
    for (program, test) in results.failed.iter().filter(|_| is_flaky) {
        let stood_still = match stalls::longest() {
            stall if stall < LONG_STALL => String::new(),
            stall => format!("; the machine stood still for {}", seconds(stall)),
        };
        steps.note("flaky", format!("{program}: {test} failed beside others and passed alone{stood_still}"));
    }
    for (reason, tests) in &results.left_out {
        steps.note("left out", format!("{tests} tests: {reason}"));
    }
    outcome.map(|()| results)
}

/// Runs tests that failed once more, one at a time with nothing beside them, if there are few: all of them pass?
///
/// Beside a hundred processes a deadline is missed now and then, on a machine that is shared. Such a test is reported as flaky.
fn pass_alone(failed: &[(String, String)], programs: &[Program], tier: Tier) -> bool {
    if failed.len() > MOST_FLAKY || failed.iter().any(|(_, test)| test.is_empty()) {
        return false;
    }
    let job = |(name, test): &(String, String)| {
        let program = programs.iter().find(|program| program.name == *name)?;
        Some(program.job(tier, &["--exact", test]))
    };
    let again = run_in_lanes(failed.iter().filter_map(job).collect(), 1);
    again.judge().is_ok() && again.ran == failed.len()
}
