//! The soak: processes use locks while they and the servers are killed, frozen and cut off.

mod cpu_pressure;
mod fault_injector;
mod grant_watch;
mod injected;
mod verdict;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use lock_testkit::history::{History, Recorder};
use lock_testkit::now_ns;
use tokio::time::Instant;

use self::cpu_pressure::CpuPressure;
use self::fault_injector::{FaultInjector, INJECTOR};
use self::grant_watch::histories;
use self::verdict::judge;
pub(crate) use self::verdict::{SoakVerdict, percent, seconds};
use crate::data::{Defect, Failure, Fault, Outcome, Site};
use crate::rig::{FaultServers, Interrupt};

#[derive(Debug)]
pub(crate) struct Soak {
    pub(crate) backend: Site,
    /// How long faults are injected.
    pub(crate) span: Duration,
    pub(crate) faults: Vec<Fault>,
    /// Chooses the faults and what the processes do.
    pub(crate) seed: u64,
    /// The folder for the histories, which is emptied.
    pub(crate) folder: PathBuf,
    pub(crate) broken: Option<Defect>,
}

pub(crate) async fn run(soak: Soak, interrupt: &mut Interrupt) -> Outcome<(SoakVerdict, bool)> {
    let Soak { backend, span, faults, seed, folder, broken } = soak;
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let servers = FaultServers::start_for_soak(backend).await?;
    let mut injector = FaultInjector::with_workers(&servers, backend, faults, seed, &folder, broken).await?;
    let pressure = CpuPressure::watch();
    let (began_ns, end) = (now_ns(), Instant::now() + span);
    let ended = tokio::select! {
        biased;
        () = interrupt.received() => None,
        ended = injector.run(end) => Some(ended),
    };
    let end_ns = now_ns();
    // Ctrl-C reaches the servers as well: a failure after it is its consequence.
    let interrupted = ended.is_none() || matches!(ended, Some(Err(_))) && interrupt.was_received().await;
    let mut complaints = Vec::new();
    if !interrupted {
        complaints.extend(ended.and_then(Result::err).map(|failure| failure.to_string()));
        tokio::select! {
            () = interrupt.received() => {}
            stuck = injector.end_workers() => complaints.extend(stuck),
        }
        match servers.journal().await {
            Ok(commits) => {
                let journal = Recorder::create(folder.join("journal.jsonl"), INJECTOR)?;
                commits.iter().for_each(|commit| journal.write(commit));
            }
            Err(failure) => complaints.push(failure.during("reading the journal").to_string()),
        }
    }
    let faults = std::mem::take(&mut injector.faults);
    drop(injector);
    let lease = servers.lease();
    drop(servers);

    fs::write(folder.join("faults.json"), serde_json::to_vec_pretty(&faults)?)?;
    let history = History::load(histories(&folder)?)?;
    // A long history takes long to check: not on a thread of the runtime.
    let judging =
        tokio::task::spawn_blocking(move || judge(&history, &faults, lease, (began_ns, end_ns), &pressure));
    let mut verdict = judging.await.map_err(|error| Failure::from(error).during("checking the history"))?;
    verdict.violations.append(&mut complaints);
    fs::write(folder.join("report.txt"), &verdict.report)?;
    eprintln!("    histories: {}", folder.display());
    Ok((verdict, interrupted))
}
