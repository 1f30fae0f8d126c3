//! The fault table: each fault on each backend, what happened, and whether it is what `docs/SAFETY.md` promises.

mod crew;
mod docs;
mod effect;
mod expectation;
mod inject;
mod judge;
mod record;
mod store;
mod table;
mod trial;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use futures_util::future::join_all;
use lock_testkit::history::History;
use rand::Rng;

use self::expectation::Cell;
pub(crate) use self::inject::cut_off_replica;
use self::record::FaultRecord;
use self::trial::Trials;
pub(crate) use crate::cli::options::faults::{FaultDefect, FaultName};
use crate::cli::options::{BackendName, Options};
use crate::data::failure::Outcome;
use crate::data::results::{FaultResult, FaultVerdict, Meta, Mode, Results};
use crate::report;
use crate::report::table::Look;
use crate::rig::interrupt::Interrupt;
use crate::rig::progress::Progress;
use crate::rig::stuck;

/// Runs the faults that the options ask for, prints the table and writes it.
pub(crate) async fn run(options: &Options) -> Outcome<ExitCode> {
    let began = Instant::now();
    let mut interrupt = Interrupt::listen()?;
    let mut results = Results::new(Meta::of_this_run(if options.quick { Mode::Quick } else { Mode::Full }));
    let folder = options.folder();
    stuck::save_below(&folder);
    let progress = Progress::new(expected_times(options));
    let interrupted = tokio::select! {
        biased;
        () = interrupt.received() => true,
        () = add_all(options, &progress, &mut results) => false,
    };
    drop(progress);
    sort(&mut results);
    results.meta.duration_s = began.elapsed().as_secs_f64();
    println!("{}", table::render(&results.faults, Look::of_stdout()));
    let paths = [
        results.write(&folder)?,
        report::write(&results, &folder)?,
        report::write_markdown(&results, &folder)?,
    ];
    println!("{}", paths.map(|path| path.display().to_string()).join("\n"));
    let code = complain(&results.faults);
    if interrupted {
        eprintln!("interrupted: the other faults were not run");
        return Ok(ExitCode::from(130));
    }
    if options.faults.update_docs {
        docs::update(&results.faults)?;
    }
    Ok(code)
}

/// Runs the faults that the options ask for, on all backends at once, and adds what happened to the results.
pub(crate) async fn add_all(options: &Options, progress: &Progress, results: &mut Results) {
    // Below 2^32, so that a person can type it after `--seed`.
    let seed = options.faults.seed.unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    results.meta.settings.insert("faults.seed".into(), seed.to_string());
    let (backends, faults) = (options.backends(), options.faults.faults(options.quick));
    // Each is added at once: what an interrupt leaves is in the results.
    let done = Mutex::new(&mut results.faults);
    let add = |result| {
        done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        progress.step();
    };
    join_all(backends.iter().map(|&backend| one_backend(options, backend, &faults, seed, &add, progress)))
        .await;
}

/// About how long each of these faults takes.
pub(crate) fn expected_times(options: &Options) -> Vec<Duration> {
    let (backends, faults) = (options.backends().len(), options.faults.faults(options.quick).len());
    vec![A_FAULT / backends.max(1) as u32; backends * faults]
}

/// A fault to run outside the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    backend: BackendName,
    fault: FaultName,
    broken: Option<FaultDefect>,
}

impl Trial {
    /// A fault on a backend.
    pub(crate) const fn of(backend: BackendName, fault: FaultName) -> Self {
        Self { backend, fault, broken: None }
    }

    /// With this defect, unless it has one already.
    pub(crate) fn or_broken_by(self, defect: FaultDefect) -> Self {
        Self { broken: self.broken.or(Some(defect)), ..self }
    }

    /// With a deliberate defect of the lock or the store.
    pub(crate) fn broken_by(self, defect: FaultDefect) -> Self {
        Self { broken: Some(defect), ..self }
    }
}

/// What happened in a trial.
#[derive(Debug)]
pub(crate) struct Happened {
    pub(crate) result: FaultResult,
    pub(crate) history: History,
    /// When the fault began.
    pub(crate) from_ns: u64,
    pub(crate) end_ns: u64,
}

/// Runs a trial, on servers of its own.
pub(crate) async fn happen(trial: Trial) -> Outcome<Happened> {
    let seed = rand::rng().random_range(0..1 << 32);
    let record = Trials::new(trial.backend, seed, trial.broken).run(trial.fault).await?;
    let result = judge::judge(&record, "")?;
    let (from_ns, end_ns) = (record.head.from_ns, record.head.end_ns);
    Ok(Happened { result, history: record.history, from_ns, end_ns })
}

/// Judges the history of a fault again.
pub(crate) fn replay(options: &Options) -> Outcome<ExitCode> {
    let path = options.faults.replay.as_deref().unwrap_or_else(|| Path::new(""));
    let record = FaultRecord::read(path)?;
    let results = [judge::judge(&record, &path.display().to_string())?];
    println!("{}", table::render(&results, Look::of_stdout()));
    Ok(complain(&results))
}

/// Runs the faults on one backend, one after the other. One that fails costs its own cell alone.
async fn one_backend(
    options: &Options,
    backend: BackendName,
    faults: &[FaultName],
    seed: u64,
    add: &(impl Fn(FaultResult) + Sync),
    progress: &Progress,
) {
    let mut trials = Trials::new(backend, seed, options.faults.broken);
    for &fault in faults {
        add(match expectation::of(fault, backend) {
            Cell::NoMeaning(why) => judge::no_meaning(fault, backend, why),
            Cell::Expected(_) => {
                progress.begin(&format!("{fault} on {backend}"));
                let ran = stuck::within(&format!("{fault} on {backend}"), STUCK, trials.run(fault)).await;
                let judged = ran.and_then(|record| {
                    let file = format!("faults/{fault}-{backend}.jsonl");
                    record.write(&options.folder().join(&file))?;
                    judge::judge(&record, &file)
                });
                judged.unwrap_or_else(|failure| judge::not_run(fault, backend, &failure))
            }
        });
    }
}

/// Puts the faults into the order of the table, and each in that of the backends.
pub(crate) fn sort(results: &mut Results) {
    results.faults.sort_by_key(|result| {
        let fault = FaultName::value_variants().iter().position(|fault| fault.title() == result.fault);
        let backends = BackendName::value_variants();
        (fault, backends.iter().position(|backend| result.backend == backend.as_str()))
    });
}

/// Prints what differs or could not be run.
fn complain(results: &[FaultResult]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for result in results.iter().filter(|result| result.verdict.is_failure()) {
        let verb = if result.verdict == FaultVerdict::Differs { "DIFFERS" } else { "FAILED" };
        eprintln!("{verb}: {} on {}: {}", result.fault, result.subject(), result.what);
        code = ExitCode::FAILURE;
    }
    code
}

/// Longer than any fault takes.
const STUCK: Duration = Duration::from_secs(90);

/// About how long a fault takes on a backend, for the time left.
const A_FAULT: Duration = Duration::from_secs(10);
