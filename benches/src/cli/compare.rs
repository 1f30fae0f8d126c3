//! `cargo xtask compare`: one run, from the servers to the report.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rand::Rng;

use super::options::Options;
use crate::data::{BackendName, ExperimentResult, Meta, Outcome, Plan, Results};
use crate::experiments::bench::Bench;
use crate::experiments::experiment::Experiment;
use crate::experiments::list::EXPERIMENTS;
use crate::experiments::{faults, runner, target};
use crate::report;
use crate::report::console;
use crate::report::sheet::Look;
use crate::rig::backends;
use crate::rig::keep_awake::keep_awake;
use crate::rig::{Interrupt, Progress, Target, Wanted, stuck};

/// Measures, prints and writes what the options ask for.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
pub(crate) async fn run(options: &Options) -> Outcome<ExitCode> {
    if let Some(file) = &options.from {
        return write_again(file, options);
    }
    let began = Instant::now();
    let mut interrupt = Interrupt::listen()?;
    let bench = Bench {
        run: format!("bench-{:012x}", rand::rng().random_range(0..1_u64 << 48)),
        plan: options.plan(),
        exclusion: !options.without_exclusion,
        broken: options.faults.broken,
    };
    let mut results = Results::new(Meta::of_this_run(options.mode()));
    results.meta.repeats = options.repeat;
    results.experiments = described().collect();
    let progress = Progress::new(expected_times(options, &bench.plan));
    stuck::log_below(&options.folder());

    // Starting servers cannot be cancelled: a signal takes effect once all of them run.
    progress.prepare("starting the servers");
    let (mut targets, mut wanted) = (Vec::new(), options.servers());
    wanted.retain(|&Wanted { backend, .. }| {
        let is_left_out = options.leaves_out(backend);
        if is_left_out {
            progress.print(&format!("{backend} is left out: its server is not installed"));
            results.meta.settings.insert(format!("missing.{backend}"), "its server is not installed".into());
            fitting(options, backend).for_each(|_| progress.step());
        }
        !is_left_out
    });
    for (backend, started) in backends::start(&wanted, &bench.run).await {
        match started {
            Ok(target) => targets.push(target),
            // Ctrl-C reaches the servers as well, and ends those that are starting.
            Err(_) if interrupt.was_received().await => return Ok(interrupted()),
            Err(failure) => {
                results.fail(&format!("the servers of {backend}"), failure);
                fitting(options, backend).for_each(|_| progress.step());
            }
        }
    }
    let awake = options.awake.then(keep_awake).transpose()?;
    let finished = tokio::select! {
        biased;
        () = interrupt.received() => false,
        () = measure(options, &bench, &targets, &progress, &mut results) => true,
    };
    // Ctrl-C reaches the workers as well: a scenario may fail before the signal is seen here.
    if !finished || !results.failures.is_empty() && interrupt.was_received().await {
        results.meta.interrupted = Some(progress.so_far());
    }
    for target in &targets {
        if let Err(failure) = target.clean(&bench.run).await {
            progress.print(&format!("{}: cannot clean up: {failure}", target.name()));
        }
    }
    drop((targets, awake, progress));

    results.meta.duration_s = began.elapsed().as_secs_f64();
    results.targets = target::judge(EXPERIMENTS, &results, &bench.plan);
    add_claims_not_measured(&mut results);
    faults::sort(&mut results);
    let failed = results.meta.interrupted.is_none() && !results.failures.is_empty();
    if failed || !results.rows.is_empty() || results.has_claims() || !results.faults.is_empty() {
        let look = Look::of_stdout();
        if options.verbose {
            println!("{}", console::targets(&results, look));
        }
        println!("{}", console::render(&results, look));
        report::write_all(&results, &options.folder())?;
    } else if results.meta.interrupted.is_some() {
        return Ok(interrupted());
    }
    for failure in &results.failures {
        eprintln!("FAILED: {failure}");
    }
    if results.failures.is_empty() {
        stuck::remove_logs();
    }
    Ok(match &results.meta.interrupted {
        Some(how_far) => {
            eprintln!("interrupted {how_far}: the report has what was measured until then");
            ExitCode::from(130)
        }
        None if results.failures.is_empty() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

/// What the experiments with rows are.
fn described() -> impl Iterator<Item = ExperimentResult> {
    EXPERIMENTS.iter().filter(|one| one.rows.is_some()).map(|one| one.described())
}

/// The reports of an earlier run, without measuring.
fn write_again(file: &Path, options: &Options) -> Outcome<ExitCode> {
    let mut results = Results::read(file)?;
    results.upgrade(described());
    report::write_all(&results, &options.folder())?;
    Ok(ExitCode::SUCCESS)
}

/// About how long each step takes, in their order.
fn expected_times(options: &Options, plan: &Plan) -> Vec<Duration> {
    let mut times = Vec::new();
    for backend in options.backends() {
        times.extend(fitting(options, backend).map(|experiment| (experiment.takes)(plan) * options.repeat));
    }
    let of_a_claim = if options.quick { QUICK_CLAIM } else { FULL_CLAIM };
    times.extend(options.claims().iter().map(|_| of_a_claim));
    if options.has_fault_table() {
        times.extend(options.fault_table().expected_times());
    }
    times
}

fn fitting(options: &Options, backend: BackendName) -> impl Iterator<Item = &'static Experiment> {
    options.experiments().into_iter().filter(move |experiment| (experiment.fits)(backend))
}

/// Every claim is in the results, in the order of the numbers.
fn add_claims_not_measured(results: &mut Results) {
    let why = match &results.meta.interrupted {
        Some(how_far) => format!("the run was interrupted {how_far}"),
        None => "not part of this run".to_owned(),
    };
    for claim in EXPERIMENTS.iter().filter_map(|experiment| experiment.claim) {
        if results.claims.iter().all(|result| result.id != claim.id) {
            results.claims.push(claim.not_measured(why.clone()));
        }
    }
    results.claims.sort_by_key(|result| result.id);
}

fn interrupted() -> ExitCode {
    eprintln!("interrupted: everything is cleaned up, and there are no results");
    ExitCode::from(130)
}

/// Runs all experiments on all backends, then the claims and the fault table. What fails is part of the results.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
async fn measure(
    options: &Options,
    bench: &Bench,
    targets: &[Target],
    progress: &Progress,
    results: &mut Results,
) {
    let settings = &mut results.meta.settings;
    settings.extend(options.experiments().iter().flat_map(|experiment| experiment.settings(&bench.plan)));
    settings.insert("servers".into(), servers(options));
    settings.insert("cores".into(), if options.awake { "kept awake" } else { "may halt" }.into());
    for target in targets {
        describe(target, &mut results.meta, options.verbose.then_some(progress)).await;
        for experiment in fitting(options, target.backend()) {
            let Some(rows) = experiment.rows else { continue };
            let place = format!("{} on {}", experiment.name, target.name());
            if experiment.stops_servers && target.is_foreign() {
                progress.print(&format!("{place}: left out, as it would stop a server given by --url"));
                progress.step();
                continue;
            }
            progress.begin(&place);
            let first = results.rows.len();
            for why in runner::add_rows(experiment, rows, bench, target, options.repeat, results).await {
                results.fail(&place, why);
            }
            if options.verbose {
                progress.print(&console::measured(results, first, Look::of_stdout()));
            }
            progress.step();
        }
    }
    for (experiment, claim) in options.claims() {
        progress.begin(&format!("claim {}: {}", claim.id, claim.says));
        let judged = runner::judge(experiment, bench, targets, results).await;
        let part = format!("claim {}", claim.id);
        if let Some(judged) = judged {
            for missing in &judged.missing {
                results.fail(&part, missing);
            }
            if let Some(broken) = &judged.broken_promise {
                results.fail(&part, format!("polylock breaks its promise: {broken}"));
            }
            results.claims.push(judged);
        }
        progress.step();
    }
    if options.has_fault_table() {
        faults::add_all(&options.fault_table(), progress, results).await;
        let failed: Vec<_> =
            results.faults.iter().filter(|fault| fault.verdict.is_failure()).cloned().collect();
        for fault in failed {
            results.fail(&format!("{} on {}", fault.fault, fault.backend), &fault.what);
        }
    }
}

/// Notes the versions of the servers, and prints what their doctor finds.
async fn describe(target: &Target, meta: &mut Meta, progress: Option<&Progress>) {
    let version = target.version().await;
    if let Some(progress) = progress {
        match target.doctor().await {
            Ok(report) => {
                for finding in report.findings {
                    progress.print(&format!("{}: {finding}", target.name()));
                }
            }
            Err(failure) => {
                progress.print(&failure.during(&format!("{}: doctor", target.name())).to_string());
            }
        }
    }
    match target.backend() {
        BackendName::Memory => {}
        BackendName::Redis | BackendName::Redlock => meta.redis = version,
        BackendName::Zk => meta.zookeeper = version,
        BackendName::Postgres => meta.postgres = version,
        other => drop(version.map(|version| meta.others.insert(other.to_string(), version))),
    }
}

fn servers(options: &Options) -> String {
    let zookeeper = if options.ensemble { "three ZooKeeper servers" } else { "one ZooKeeper server" };
    format!(
        "one Redis server, five of them for redlock, {zookeeper}, and one etcd server, without fsync; one PostgreSQL server, one \
         MariaDB server and a SQLite file, with fsync; for s3 moto, a server for tests that answers one request at a time; all on \
         this machine"
    )
}

/// About how long a claim takes, for the time left.
const QUICK_CLAIM: Duration = Duration::from_secs(6);
const FULL_CLAIM: Duration = Duration::from_secs(60);
