//! The soak: processes use locks while they and the servers are killed, frozen and cut off.

mod cpu_pressure;
mod dice;
mod verdict;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use lock_testkit::now_ns;
use tokio::time::{Instant, sleep, sleep_until};

use self::cpu_pressure::CpuPressure;
use self::dice::Dice;
use self::verdict::{SLACK, judge};
pub(crate) use self::verdict::{SoakVerdict, percent, seconds};
use crate::data::{Defect, Effect, Failure, Fault, Hits, Outcome, Site};
use crate::experiments::faults::crew::Crew;
use crate::experiments::faults::injector::{Hit, Injector, Lasts};
use crate::experiments::faults::live_history::LiveHistory;
use crate::rig::{ClientProgram, ClientsTask, FaultServers, Interrupt, Job, Task};

#[derive(Debug)]
pub(crate) struct Soak {
    pub(crate) site: Site,
    /// How long faults are injected.
    pub(crate) span: Duration,
    pub(crate) faults: Vec<Fault>,
    /// Chooses the faults and what the processes do.
    pub(crate) seed: u64,
    /// The folder for the history, which is emptied.
    pub(crate) folder: PathBuf,
    pub(crate) broken: Option<Defect>,
}

pub(crate) async fn run(soak: Soak, interrupt: &mut Interrupt) -> Outcome<(SoakVerdict, bool)> {
    let folder = &soak.folder;
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let servers = FaultServers::start_for_soak(soak.site).await?;
    let mut injector = injector(&soak, &servers).await?;
    let pressure = CpuPressure::watch();
    let (began_ns, end) = (now_ns(), Instant::now() + soak.span);
    let ended = tokio::select! {
        biased;
        () = interrupt.received() => None,
        ended = inject_until(end, &soak, &servers, &mut injector) => Some(ended),
    };
    let end_ns = now_ns();
    // Ctrl-C reaches the servers as well: a failure after it is its consequence.
    let interrupted = ended.is_none() || matches!(ended, Some(Err(_))) && interrupt.was_received().await;
    let mut complaints = std::mem::take(&mut injector.complaints);
    if interrupted {
        injector.crew.kill_all().await;
    } else {
        complaints.extend(ended.and_then(Result::err).map(|failure| failure.to_string()));
        tokio::select! {
            () = interrupt.received() => {}
            stuck = injector.crew.end(servers.lease() + END) => complaints.extend(stuck),
        }
        match servers.journal().await {
            Ok(commits) => commits.into_iter().for_each(|commit| injector.crew.history().add(commit)),
            Err(failure) => complaints.push(failure.during("reading the journal").to_string()),
        }
    }
    let history = injector.crew.history().take()?;
    let faults = std::mem::take(&mut injector.injected);
    drop(injector);
    let limit = servers.longest_gap() + SLACK;
    drop(servers);

    fs::write(folder.join("faults.json"), serde_json::to_vec_pretty(&faults)?)?;
    // A long history takes long to check: not on a thread of the runtime.
    let judging =
        tokio::task::spawn_blocking(move || judge(&history, &faults, limit, (began_ns, end_ns), &pressure));
    let mut verdict = judging.await.map_err(|error| Failure::from(error).during("checking the history"))?;
    verdict.violations.append(&mut complaints);
    fs::write(folder.join("report.txt"), &verdict.report)?;
    eprintln!("    history: {}", folder.display());
    Ok((verdict, interrupted))
}

/// Starts workers that use locks of all kinds.
async fn injector<'a>(soak: &'a Soak, servers: &'a FaultServers) -> Outcome<Injector<'a>> {
    let mut started = 0;
    let mut next = move |forks| {
        let child = if forks { Some(next_of(&mut started)) } else { None };
        job(soak, servers, next_of(&mut started), child)
    };
    let jobs = (0..WORKERS).map(|_| next(false)).collect();
    Ok(Injector {
        crew: Crew::start(jobs, LiveHistory::on_disk(&soak.folder)?).await?,
        site: Some((soak.site, servers)),
        lease: servers.lease(),
        lock: String::new(),
        replacement: Some(Box::new(next)),
        recovery: recovery(servers),
        printed_since_ns: Some(now_ns()),
        injected: Vec::new(),
        complaints: Vec::new(),
    })
}

fn next_of(started: &mut u32) -> u32 {
    *started += 1;
    *started
}

fn job(soak: &Soak, servers: &FaultServers, process: u32, child: Option<u32>) -> Job {
    let lease = match soak.broken {
        Some(Defect::NeverReleases) => servers.lease() + LEFT,
        _ => servers.lease(),
    };
    let program = ClientProgram::Random { seed: soak.seed, faults: soak.faults.clone(), child };
    let task = ClientsTask { program, lease: servers.lease(), broken: soak.broken };
    Job::new(&servers.url(lease), "soak", process, Task::Clients(task))
}

/// Injects one fault after the other until `end`, the last one early enough for recovery.
async fn inject_until(
    end: Instant,
    soak: &Soak,
    servers: &FaultServers,
    injector: &mut Injector<'_>,
) -> Outcome<()> {
    let mut dice = Dice::new(soak.seed, soak.faults.clone());
    sleep(CALM).await;
    while let Some(hit) = dice.hit(servers, WORKERS).await
        && Instant::now() + takes(&hit, servers) <= end
    {
        let evidence = injector.inject(&hit).await?;
        // Clients may have their connections to other servers.
        let may_hit_nobody = hit.fault.row().effect == Effect::Reset && !hit.servers.is_empty();
        if evidence.is_none() && !may_hit_nobody {
            injector.complaints.push(format!("the {} had no effect: {evidence}", hit.fault.soak_name()));
        }
        sleep(recovery(servers)).await;
        granted_again(end, injector).await;
    }
    sleep_until(end).await;
    Ok(())
}

/// How long a fault takes, with the recovery from it.
fn takes(hit: &Hit, servers: &FaultServers) -> Duration {
    let in_turn = hit.fault.row().hits == Hits::EachInTurn;
    let turns = if in_turn { servers.len().max(1) as u32 } else { 1 };
    let span = if let Lasts::For(span) = hit.lasts { span } else { Duration::ZERO };
    (span + recovery(servers)) * turns
}

/// The time after a fault in which all locks must be granted again, and a margin.
fn recovery(servers: &FaultServers) -> Duration {
    servers.longest_gap() + SLACK + MARGIN
}

/// Waits until every lock was granted after the last fault, at most until the end of the soak. Otherwise the next fault would
/// hide the length of an outage.
async fn granted_again(end: Instant, injector: &Injector<'_>) {
    let over_ns = injector.injected.iter().map(|fault| fault.until_ns).max().unwrap_or(0);
    while Instant::now() < end {
        let waiting = injector.crew.history().waiting_since(over_ns);
        if waiting.is_empty() {
            break;
        }
        let since_ns = now_ns() - injector.printed_since_ns.unwrap_or_default();
        eprintln!("    {}: not granted yet: {}", seconds(since_ns), waiting.join(", "));
        sleep(LOOK).await;
    }
}

const WORKERS: usize = 12;
const CALM: Duration = Duration::from_secs(1);
/// So that an outage beyond the limit is measured in full.
const MARGIN: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(1);
/// How much longer than a lease the workers may take to end.
const END: Duration = Duration::from_secs(30);
/// How much longer the lock of `NeverReleases` lives.
const LEFT: Duration = Duration::from_secs(60);
