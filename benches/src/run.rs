//! One run, from the servers to the report.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rand::Rng;

use crate::awake::keep_awake;
use crate::backends::{self, Target};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::judge::judge;
use crate::options::{BackendName, Options, ScenarioName};
use crate::progress::Progress;
use crate::promises;
use crate::report;
use crate::results::{Meta, Mode, Results, Row};
use crate::scenarios::{self, Bench, Measured, Plan};
use crate::table::{self, Look};

/// Runs what the options say.
pub(crate) fn main(options: &Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(compare(options));
            // Tasks of connections may still be there; nobody waits for them.
            runtime.shutdown_timeout(Duration::from_secs(1));
            ended
        }
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::Failed) => ExitCode::FAILURE,
        Ok(Ended::Interrupted) => {
            eprintln!("interrupted: nothing is left behind, and there are no results");
            ExitCode::from(130)
        }
        Err(failure) => {
            eprintln!("compare: {failure}");
            ExitCode::FAILURE
        }
    }
}

enum Ended {
    Well,
    Failed,
    Interrupted,
}

async fn compare(options: &Options) -> Outcome<Ended> {
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
    let progress = Progress::new(steps.count());

    // A server that is being started cannot be left: a signal is obeyed when all of them are there.
    progress.begin("starting the servers");
    let targets = match backends::start(options, &bench.run).await {
        Ok(targets) => targets,
        // Ctrl-C reaches the servers as well: those that were starting ended of it.
        Err(_) if interrupt.has_come().await => return Ok(Ended::Interrupted),
        Err(failure) => return Err(failure),
    };
    let awake = options.awake.then(keep_awake).transpose()?;
    let measured = tokio::select! {
        biased;
        () = interrupt.came() => None,
        complaints = measure(options, &bench, &targets, &progress, &mut results) => Some(complaints),
    };
    for target in &targets {
        if let Err(failure) = target.clean(&bench.run).await {
            progress.tell(&format!("{}: could not clean up: {failure}", target.name()));
        }
    }
    drop((targets, awake, progress));
    let Some(complaints) = measured else { return Ok(Ended::Interrupted) };
    if !complaints.is_empty() && interrupt.has_come().await {
        return Ok(Ended::Interrupted);
    }

    results.meta.duration_s = began.elapsed().as_secs_f64();
    results.promises = promises::judge(&results, &bench.plan);
    if !results.rows.is_empty() {
        println!("{}", table::render(&results, Look::of_stdout()));
        let folder = folder(options);
        let paths = [results.write(&folder)?, report::write(&results, &folder)?];
        println!("{}", paths.map(|path| path.display().to_string()).join("\n"));
    }
    for complaint in &complaints {
        eprintln!("FAILED: {complaint}");
    }
    Ok(if complaints.is_empty() { Ended::Well } else { Ended::Failed })
}

/// Runs all scenarios on all backends, and gives what went wrong.
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
    settings.insert("cores".into(), if options.awake { "kept awake" } else { "as they are" }.into());
    let mut complaints = Vec::new();
    for target in targets {
        look_at(target, &mut results.meta, progress).await;
        for &scenario in scenarios.iter().filter(|scenario| scenarios::fits(**scenario, target.backend())) {
            let place = format!("{scenario} on {}", target.name());
            if scenario == ScenarioName::Degraded && target.is_foreign() {
                progress
                    .tell(&format!("{place}: left out, as servers that are not ours are not to be stopped"));
                progress.step();
                continue;
            }
            progress.begin(&place);
            let found = step(scenario, bench, target, results).await;
            complaints.extend(found.into_iter().map(|complaint| format!("{place}: {complaint}")));
            progress.step();
        }
    }
    complaints
}

/// What there is to know about the servers before they are measured.
async fn look_at(target: &Target, meta: &mut Meta, progress: &Progress) {
    let version = target.version().await;
    match target.doctor().await {
        Ok(report) => {
            for finding in report.findings {
                progress.tell(&format!("{}: {finding}", target.name()));
            }
        }
        Err(failure) => progress.tell(&failure.during(&format!("{}: doctor", target.name())).to_string()),
    }
    match target.backend() {
        BackendName::Memory => {}
        BackendName::Redis | BackendName::Redlock => meta.redis = version,
        BackendName::Zk => meta.zookeeper = version,
    }
}

/// Runs one scenario on one backend, and gives what went wrong.
async fn step(scenario: ScenarioName, bench: &Bench, target: &Target, results: &mut Results) -> Vec<String> {
    let measured = match scenarios::run(scenario, bench, target).await {
        Ok(measured) => measured,
        Err(failure) => return vec![failure.to_string()],
    };
    let mut complaints = Vec::new();
    for measured in measured {
        complaints.extend(write_down(scenario, measured, results).await);
    }
    complaints
}

/// Puts what was measured into the results, judges the history, and gives what went wrong.
async fn write_down(scenario: ScenarioName, measured: Measured, results: &mut Results) -> Vec<String> {
    let (backend, mut complaints) = (measured.backend, measured.complaints);
    measured.rows.into_iter().for_each(|row| results.push(row));
    for (name, value) in measured.notes {
        let text = results.meta.settings.entry(format!("{scenario}.{name}")).or_default();
        let comma = if text.is_empty() { "" } else { ", " };
        text.push_str(&format!("{comma}{backend} {value}"));
    }
    // Sorting and sweeping a long history is work for a processor, not for the runtime.
    let events = measured.events;
    let judgement = match tokio::task::spawn_blocking(move || judge(events)).await {
        Ok(judgement) => judgement,
        Err(error) => return vec![format!("the history could not be judged: {error}")],
    };
    results.push(Row::overlaps(scenario.as_str(), backend, judgement.overlaps));
    complaints.extend(judgement.complaints);
    complaints
}

fn servers(options: &Options) -> String {
    let zookeeper = if options.ensemble { "three ZooKeeper servers" } else { "one ZooKeeper server" };
    format!(
        "one Redis server, five of them for redlock, {zookeeper}, all on this machine and without waiting for the disk"
    )
}

fn folder(options: &Options) -> PathBuf {
    options.out.clone().unwrap_or_else(|| target_folder("compare"))
}

/// Under the root of the workspace when cargo has started us, else under the current folder.
pub(crate) fn target_folder(name: &str) -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = package.and_then(|package| package.parent().map(PathBuf::from)).unwrap_or_default();
    root.join("target").join(name)
}
