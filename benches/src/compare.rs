//! `cargo xtask compare`: one run, from the servers to the report.

use std::process::ExitCode;
use std::time::Instant;

use rand::Rng;

use crate::backends::{self, Target};
use crate::claims;
use crate::exclusion::check_exclusion;
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::keep_awake::keep_awake;
use crate::options::{BackendName, Options, ScenarioName};
use crate::peers::Peer;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::promises;
use crate::report;
use crate::results::{Meta, Mode, Results, Row};
use crate::scenarios::{self, Bench, Measured};
use crate::table::{self, Look};

/// Measures, prints and writes what the options ask for.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
pub(crate) async fn run(options: &Options) -> Outcome<ExitCode> {
    let began = Instant::now();
    let mut interrupt = Interrupt::listen()?;
    let mode = if options.quick { Mode::Quick } else { Mode::Full };
    let bench = Bench {
        run: format!("bench-{:012x}", rand::rng().random_range(0..1_u64 << 48)),
        plan: Plan::of(options),
        exclusion: !options.without_exclusion,
    };
    let mut results = Results::new(Meta::of_this_run(mode));
    let steps = options.backends().into_iter().flat_map(|backend| {
        options.scenarios().into_iter().filter(move |scenario| scenarios::fits(*scenario, backend))
    });
    let progress = Progress::new(steps.count() + options.claims().len());

    // Starting servers cannot be cancelled: a signal takes effect once all of them run.
    progress.begin("starting the servers");
    let targets = match backends::start(options, &bench.run).await {
        Ok(targets) => targets,
        // Ctrl-C reaches the servers as well, and ends those that are starting.
        Err(_) if interrupt.was_received().await => return Ok(interrupted()),
        Err(failure) => return Err(failure),
    };
    let awake = options.awake.then(keep_awake).transpose()?;
    let measured = tokio::select! {
        biased;
        () = interrupt.received() => None,
        complaints = measure(options, &bench, &targets, &progress, &mut results) => Some(complaints),
    };
    for target in &targets {
        if let Err(failure) = target.clean(&bench.run).await {
            progress.print(&format!("{}: cannot clean up: {failure}", target.name()));
        }
    }
    drop((targets, awake, progress));
    let Some(complaints) = measured else { return Ok(interrupted()) };
    if !complaints.is_empty() && interrupt.was_received().await {
        return Ok(interrupted());
    }

    results.meta.duration_s = began.elapsed().as_secs_f64();
    results.promises = promises::judge(&results, &bench.plan);
    if !results.rows.is_empty() || !results.claims.is_empty() {
        println!("{}", table::render(&results, Look::of_stdout()));
        let folder = options.folder();
        let paths = [results.write(&folder)?, report::write(&results, &folder)?];
        println!("{}", paths.map(|path| path.display().to_string()).join("\n"));
    }
    for complaint in &complaints {
        eprintln!("FAILED: {complaint}");
    }
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn interrupted() -> ExitCode {
    eprintln!("interrupted: everything is cleaned up, and there are no results");
    ExitCode::from(130)
}

/// Runs all scenarios on all backends, and returns what went wrong.
#[expect(clippy::future_not_send, reason = "the main thread runs it")]
async fn measure(
    options: &Options,
    bench: &Bench,
    targets: &[Target],
    progress: &Progress,
    results: &mut Results,
) -> Vec<String> {
    let scenarios = options.scenarios();
    let settings = &mut results.meta.settings;
    settings.extend(bench.settings(&scenarios));
    settings.insert("servers".into(), servers(options));
    settings.insert("cores".into(), if options.awake { "kept awake" } else { "may halt" }.into());
    let mut complaints = Vec::new();
    for target in targets {
        describe(target, &mut results.meta, progress).await;
        for &scenario in scenarios.iter().filter(|scenario| scenarios::fits(**scenario, target.backend())) {
            let place = format!("{scenario} on {}", target.name());
            if scenario == ScenarioName::Degraded && target.is_foreign() {
                progress.print(&format!("{place}: left out, as it would stop a server given by --url"));
                progress.step();
                continue;
            }
            progress.begin(&place);
            let found = step(scenario, bench, target, results).await;
            complaints.extend(found.into_iter().map(|complaint| format!("{place}: {complaint}")));
            progress.step();
        }
    }
    for claim in options.claims() {
        let about = claim.about();
        progress.begin(&format!("claim {}: {}", about.id, about.says));
        let judged = claims::run(claim, bench, results.meta.mode, targets, results).await;
        let missing = judged.missing.iter().map(|missing| format!("claim {}: {missing}", about.id));
        complaints.extend(missing);
        if !judged.is_as_promised {
            complaints.push(format!("claim {}: polylock breaks its promise: {}", about.id, judged.because));
        }
        results.claims.push(judged);
        progress.step();
    }
    complaints
}

/// Notes the versions of the servers, and prints what their doctor finds.
async fn describe(target: &Target, meta: &mut Meta, progress: &Progress) {
    let version = target.version().await;
    match target.doctor().await {
        Ok(report) => {
            for finding in report.findings {
                progress.print(&format!("{}: {finding}", target.name()));
            }
        }
        Err(failure) => progress.print(&failure.during(&format!("{}: doctor", target.name())).to_string()),
    }
    match target.backend() {
        BackendName::Memory => {}
        BackendName::Redis | BackendName::Redlock => meta.redis = version,
        BackendName::Zk => meta.zookeeper = version,
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
        let text = results.meta.settings.entry(format!("{scenario}.{name}")).or_default();
        let comma = if text.is_empty() { "" } else { ", " };
        text.push_str(&format!("{comma}{backend} {value}"));
    }
    // A long history takes long to check: not on a thread of the runtime.
    let events = measured.events;
    let checked = match tokio::task::spawn_blocking(move || check_exclusion(events)).await {
        Ok(checked) => checked,
        Err(error) => return vec![format!("the history could not be checked: {error}")],
    };
    if matches!(scenario, ScenarioName::Contended | ScenarioName::Peers) {
        results.push(Row::new(scenario.as_str(), backend, "inversions", "", checked.inversions));
    }
    results.push(Row::overlaps(scenario.as_str(), backend, checked.overlaps));
    if Peer::named(backend).is_some() && checked.overlaps > 0 {
        // A finding about another library, not a failure of the run.
        let text = results.meta.settings.entry(format!("{scenario}.broken")).or_default();
        let comma = if text.is_empty() { "" } else { "; " };
        text.push_str(&format!("{comma}{backend}: {}", checked.complaints.join("\n")));
    } else {
        complaints.extend(checked.complaints);
    }
    complaints
}

fn servers(options: &Options) -> String {
    let zookeeper = if options.ensemble { "three ZooKeeper servers" } else { "one ZooKeeper server" };
    format!("one Redis server, five of them for redlock, {zookeeper}, all on this machine, without fsync")
}
