//! The fault table: each fault on each backend, what happened, and whether it is what `docs/SAFETY.md` promises.

pub(crate) mod crew;
mod docs;
mod evidence;
pub(crate) mod injector;
mod judge;
pub(crate) mod live_history;
mod record;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::history::History;
use rand::Rng;

pub(crate) use self::docs::update as update_docs;
pub(crate) use self::injector::cut_off_replica;
use self::record::FaultRecord;
use self::trial::Trials;
use crate::data::fault::Cell;
use crate::data::{BackendName, Defect, Fault, FaultResult, Outcome, Results};
use crate::rig::{Progress, stuck};

#[derive(Debug)]
pub(crate) struct FaultTable {
    pub(crate) backends: Vec<BackendName>,
    pub(crate) faults: Vec<Fault>,
    /// Chooses the moments of the faults and their servers.
    pub(crate) seed: Option<u64>,
    /// A deliberate defect of the lock or the store.
    pub(crate) broken: Option<Defect>,
    /// The folder of the results, for the histories.
    pub(crate) folder: PathBuf,
}

impl FaultTable {
    /// About how long each of the faults takes on each backend.
    pub(crate) fn expected_times(&self) -> Vec<Duration> {
        let backends = self.backends.len();
        vec![A_FAULT / backends.max(1) as u32; backends * self.faults.len()]
    }
}

/// Runs the faults, on all backends at once, and adds what happened to the results.
pub(crate) async fn add_all(table: &FaultTable, progress: &Progress, results: &mut Results) {
    // Below 2^32, so that a person can type it after `--seed`.
    let seed = table.seed.unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    results.meta.settings.insert("faults.seed".into(), seed.to_string());
    // Each is added at once: what an interrupt leaves is in the results.
    let done = Mutex::new(&mut results.faults);
    let add = |result| {
        done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        progress.step();
    };
    join_all(table.backends.iter().map(|&backend| one_backend(table, backend, seed, &add, progress))).await;
}

/// A fault to run outside the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    backend: BackendName,
    fault: Fault,
    broken: Option<Defect>,
}

impl Trial {
    pub(crate) const fn of(backend: BackendName, fault: Fault) -> Self {
        Self { backend, fault, broken: None }
    }

    /// With this defect, unless it has one already.
    pub(crate) fn or_broken_by(self, defect: Defect) -> Self {
        Self { broken: self.broken.or(Some(defect)), ..self }
    }

    /// With a deliberate defect of the lock or the store.
    pub(crate) fn broken_by(self, defect: Defect) -> Self {
        Self { broken: Some(defect), ..self }
    }
}

#[derive(Debug)]
pub(crate) struct Happened {
    pub(crate) result: FaultResult,
    pub(crate) history: History,
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

pub(crate) fn judge_again(record: &Path) -> Outcome<FaultResult> {
    judge::judge(&FaultRecord::read(record)?, &record.display().to_string())
}

/// Runs the faults on one backend, one after the other. One that fails costs its own cell alone.
async fn one_backend(
    table: &FaultTable,
    backend: BackendName,
    seed: u64,
    add: &(impl Fn(FaultResult) + Sync),
    progress: &Progress,
) {
    let mut trials = Trials::new(backend, seed, table.broken);
    for &fault in &table.faults {
        add(match fault.on(backend) {
            Cell::NoMeaning(why) => judge::no_meaning(fault, backend, why),
            Cell::Expected(_) => {
                let name = fault.name_on(backend);
                progress.begin(&name);
                let judged = stuck::within(STUCK, trials.run(fault)).await.and_then(|record| {
                    let file = format!("faults/{fault}-{backend}.jsonl");
                    record.write(&table.folder.join(&file))?;
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
        let fault = Fault::of_table().position(|fault| fault.title() == result.fault);
        let backends = BackendName::IN_TABLE;
        (fault, backends.iter().position(|backend| result.backend == backend.as_str()))
    });
}

/// Longer than any fault takes.
const STUCK: Duration = Duration::from_secs(90);

/// About how long a fault takes on a backend, for the time left.
const A_FAULT: Duration = Duration::from_secs(10);
