//! `cargo xtask compare`: one run, from the servers to the report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rand::Rng;

use super::options::Options;
use crate::data::exclusion::check_exclusion;
use crate::data::results::has_rivals;
use crate::data::{
    BackendName, BaselineResult, Meta, Mode, Outcome, Peer, Plan, Results, Row, ScenarioName, promises,
};
use crate::experiments::bench::{Bench, Measured};
use crate::experiments::claim;
use crate::experiments::claims::CLAIMS;
use crate::experiments::faults;
use crate::experiments::scenarios;
use crate::report;
use crate::report::browser;
use crate::report::console;
use crate::report::sheet::Look;
use crate::rig::backends;
use crate::rig::keep_awake::keep_awake;
use crate::rig::{Interrupt, Progress, Target, stuck};

/// Measures, prints and writes what the options ask for.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
pub(crate) async fn run(options: &Options) -> Outcome<ExitCode> {
    if let Some(file) = &options.from {
        return write_again(file, options).await;
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
    let baselines = baselines(options)?;
    let progress = Progress::new(expected_times(options, &bench.plan));
    stuck::save_below(&options.folder());

    // Starting servers cannot be cancelled: a signal takes effect once all of them run.
    progress.prepare("starting the servers");
    let mut targets = Vec::new();
    for (backend, started) in backends::start(&options.servers(), &bench.run).await {
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
    results.promises = promises::judge(&results, &bench.plan);
    add_claims_not_measured(&mut results);
    faults::sort(&mut results);
    if !baselines.is_empty() {
        results.baseline = Some(BaselineResult::of(&results, &baselines));
    }
    let failed = results.meta.interrupted.is_none() && !results.failures.is_empty();
    if failed || !results.rows.is_empty() || results.has_claims() || !results.faults.is_empty() {
        let look = Look::of_stdout();
        if options.verbose {
            println!("{}", console::targets(&results, look));
        }
        println!("{}", console::render(&results, look));
        write(&results, options).await?;
    } else if results.meta.interrupted.is_some() {
        return Ok(interrupted());
    }
    for failure in &results.failures {
        eprintln!("FAILED: {failure}");
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

/// Writes the results and the reports, and prints where they are.
async fn write(results: &Results, options: &Options) -> Outcome<()> {
    let folder = &options.folder();
    report::write_all(results, folder)?;
    let by_itself =
        results.meta.mode == Mode::Full && results.meta.interrupted.is_none() && options.from.is_none();
    let wanted = options.screenshots || by_itself && browser::is_there();
    if !wanted {
        return Ok(());
    }
    match browser::look_at(&folder.join("report.html"), folder).await {
        Ok(problems) => problems.iter().for_each(|problem| eprintln!("report.html: {problem}")),
        Err(failure) if options.screenshots => return Err(failure.during("screenshots")),
        Err(failure) => eprintln!("no screenshots: {failure}"),
    }
    Ok(())
}

/// The reports of an earlier run, without measuring.
async fn write_again(file: &Path, options: &Options) -> Outcome<ExitCode> {
    let mut results = Results::read(file)?;
    let baselines = baselines(options)?;
    if !baselines.is_empty() {
        let compared = BaselineResult::of(&results, &baselines);
        println!("{}", compared.summary());
        results.baseline = Some(compared);
    }
    write(&results, options).await?;
    Ok(ExitCode::SUCCESS)
}

/// The earlier runs to compare with. A file that cannot be read fails the run before it measures anything.
fn baselines(options: &Options) -> Outcome<Vec<(String, Results)>> {
    let read = |file: &PathBuf| Ok((file.display().to_string(), Results::read(file)?));
    options.baselines.iter().map(read).collect()
}

/// About how long each step takes, in their order.
fn expected_times(options: &Options, plan: &Plan) -> Vec<Duration> {
    let mut times = Vec::new();
    for backend in options.backends() {
        times.extend(
            fitting(options, backend).map(|scenario| scenarios::expected(scenario, plan) * options.repeat),
        );
    }
    let of_a_claim = if options.quick { QUICK_CLAIM } else { FULL_CLAIM };
    times.extend(options.claims().iter().map(|_| of_a_claim));
    if options.has_fault_table() {
        times.extend(options.fault_table().expected_times());
    }
    times
}

fn fitting(options: &Options, backend: BackendName) -> impl Iterator<Item = ScenarioName> {
    options.scenarios().into_iter().filter(move |scenario| scenarios::fits(*scenario, backend))
}

/// Every claim is in the results, in the order of the numbers.
fn add_claims_not_measured(results: &mut Results) {
    let why = match &results.meta.interrupted {
        Some(how_far) => format!("the run was interrupted {how_far}"),
        None => "not part of this run".to_owned(),
    };
    for one in CLAIMS {
        if results.claims.iter().all(|result| result.id != one.about().id) {
            results.claims.push(claim::not_measured(*one, why.clone()));
        }
    }
    results.claims.sort_by_key(|result| result.id);
}

fn interrupted() -> ExitCode {
    eprintln!("interrupted: everything is cleaned up, and there are no results");
    ExitCode::from(130)
}

/// Runs all scenarios on all backends, then the claims and the fault table. What fails is part of the results.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
async fn measure(
    options: &Options,
    bench: &Bench,
    targets: &[Target],
    progress: &Progress,
    results: &mut Results,
) {
    let settings = &mut results.meta.settings;
    settings.extend(scenarios::settings(&bench.plan, &options.scenarios()));
    settings.insert("servers".into(), servers(options));
    settings.insert("cores".into(), if options.awake { "kept awake" } else { "may halt" }.into());
    for target in targets {
        describe(target, &mut results.meta, options.verbose.then_some(progress)).await;
        for scenario in fitting(options, target.backend()) {
            let place = format!("{scenario} on {}", target.name());
            if scenario == ScenarioName::Degraded && target.is_foreign() {
                progress.print(&format!("{place}: left out, as it would stop a server given by --url"));
                progress.step();
                continue;
            }
            progress.begin(&place);
            let mut starts = Vec::new();
            for _ in 0..options.repeat {
                starts.push(results.rows.len());
                for why in step(scenario, bench, target, results).await {
                    results.fail(&place, why);
                }
            }
            results.join_repeats(&starts);
            let first = starts.first().copied().unwrap_or_default();
            if options.verbose {
                progress.print(&console::measured(results, first, Look::of_stdout()));
            }
            progress.step();
        }
    }
    for one in options.claims() {
        let about = one.about();
        progress.begin(&format!("claim {}: {}", about.id, about.says));
        let judged = claim::run(one, bench, results.meta.mode, targets, results).await;
        let part = format!("claim {}", about.id);
        for missing in &judged.missing {
            results.fail(&part, missing);
        }
        if let Some(broken) = &judged.broken_promise {
            results.fail(&part, format!("polylock breaks its promise: {broken}"));
        }
        results.claims.push(judged);
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
    }
}

/// Runs one scenario on one backend, and returns what went wrong.
async fn step(scenario: ScenarioName, bench: &Bench, target: &Target, results: &mut Results) -> Vec<String> {
    let measured = match scenarios::run(scenario, bench, target).await {
        Ok(measured) => measured,
        Err(failure) => return vec![failure.to_string()],
    };
    let mut complaints = Vec::new();
    for measured in measured {
        complaints.extend(add(scenario, measured, results).await);
    }
    complaints
}

/// Adds what was measured to the results, checks the history, and returns what went wrong.
async fn add(scenario: ScenarioName, measured: Measured, results: &mut Results) -> Vec<String> {
    let (backend, mut complaints) = (measured.backend, measured.complaints);
    measured.rows.into_iter().for_each(|row| results.push(row));
    for (name, value) in measured.notes {
        note(results, &format!("{scenario}.{name}"), ", ", &format!("{backend} {value}"));
    }
    let name = scenario.to_string();
    if !has_rivals(&name) {
        return complaints;
    }
    // A long history takes long to check: not on a thread of the runtime.
    let events = measured.events;
    let checked = match tokio::task::spawn_blocking(move || check_exclusion(events)).await {
        Ok(checked) => checked,
        Err(error) => return vec![format!("the history could not be checked: {error}")],
    };
    if matches!(scenario, ScenarioName::Contended | ScenarioName::Peers) {
        results.push(Row::new(&name, backend, "inversions", "", checked.inversions));
    }
    if scenario == ScenarioName::Migration {
        let errors = checked.token_errors as f64;
        results.push(Row::new(&name, backend, "token_errors", "", errors));
    }
    results.push(Row::overlaps(&name, backend, checked.overlaps));
    if Peer::named(backend).is_some() && checked.overlaps > 0 {
        // A finding about another library, not a failure of the run.
        let finding = format!("{backend}: {}", checked.complaints.join("\n"));
        note(results, &format!("{scenario}.broken"), "; ", &finding);
    } else {
        complaints.extend(checked.complaints);
    }
    complaints
}

/// Adds to a setting of the report.
fn note(results: &mut Results, name: &str, between: &str, text: &str) {
    let setting = results.meta.settings.entry(name.to_owned()).or_default();
    if !setting.is_empty() {
        setting.push_str(between);
    }
    setting.push_str(text);
}

fn servers(options: &Options) -> String {
    let zookeeper = if options.ensemble { "three ZooKeeper servers" } else { "one ZooKeeper server" };
    format!(
        "one Redis server, five of them for redlock, {zookeeper}, without fsync; one PostgreSQL server, with fsync; all on this \
         machine"
    )
}

/// About how long a claim takes, for the time left.
const QUICK_CLAIM: Duration = Duration::from_secs(6);
const FULL_CLAIM: Duration = Duration::from_secs(60);
