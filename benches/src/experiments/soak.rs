//! `cargo xtask soak`: processes use locks while they and the servers are killed, frozen and cut off.

mod cpu_pressure;
mod fault;
mod fault_injector;
mod grant_watch;
mod verdict;

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use lock_testkit::history::History;
use lock_testkit::now_ns;
use rand::Rng;
use tokio::time::Instant;

use self::cpu_pressure::CpuPressure;
use self::fault_injector::FaultInjector;
use self::grant_watch::histories;
use self::verdict::{SoakVerdict, judge, percent, seconds};
use crate::cli::options::soak::{SoakBackend, SoakOptions};
use crate::data::failure::{Failure, Outcome};
use crate::report::table::{Look, empty};
use crate::rig::fault_servers::FaultServers;
use crate::rig::interrupt::Interrupt;

/// Soaks the backends that the options ask for, and prints the verdicts.
pub(crate) async fn run(options: &SoakOptions) -> Outcome<ExitCode> {
    let mut interrupt = Interrupt::listen()?;
    // Short enough to type.
    let seed = options.seed.unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("memory is left out: its locks are local to one process");
    let (mut seen, mut interrupted) = (Vec::new(), false);
    for backend in options.backends() {
        if interrupted {
            break;
        }
        eprintln!("{backend}, seed {seed}");
        match one(backend, options, seed, &mut interrupt).await {
            Ok((verdict, ended_early)) => {
                seen.push((backend, verdict));
                interrupted = ended_early;
            }
            // Ctrl-C reaches the servers as well, and ends those that are starting.
            Err(_) if interrupt.was_received().await => interrupted = true,
            Err(failure) => return Err(failure.during(&backend.to_string())),
        }
    }
    println!("{}", table(&seen));
    for (backend, verdict) in &seen {
        let faults: Vec<_> = verdict.faults.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        println!("{backend}: {}", if faults.is_empty() { "no fault".into() } else { faults.join(", ") });
        println!("    again: cargo xtask soak {} --seed {seed}", options.repeated(*backend));
    }
    let mut failed = false;
    for (backend, verdict) in &seen {
        for violation in &verdict.violations {
            eprintln!("FAILED: {backend}: {violation}");
            failed = true;
        }
    }
    Ok(match (failed, interrupted) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(130),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Soaks one backend. Returns the verdict, and whether the soak was interrupted.
async fn one(
    backend: SoakBackend,
    options: &SoakOptions,
    seed: u64,
    interrupt: &mut Interrupt,
) -> Outcome<(SoakVerdict, bool)> {
    let folder = options.folder().join(format!("{backend}-{seed}"));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let servers = FaultServers::start_with_secrets(backend).await?;
    let faults = options.faults(backend);
    let mut injector =
        FaultInjector::with_workers(&servers, backend, faults, seed, &folder, options.broken).await?;
    let pressure = CpuPressure::watch();
    let (began_ns, end) = (now_ns(), Instant::now() + options.minutes);
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

/// The table of all verdicts.
fn table(seen: &[(SoakBackend, SoakVerdict)]) -> String {
    let mut table = empty(Look::of_stdout());
    table.set_header([
        "backend",
        "grants",
        "faults",
        "overlaps",
        "inversions",
        "longest wait",
        "longest gap",
        "after a fault",
        "at most",
        "cpu pressure",
        "where",
    ]);
    for (backend, verdict) in seen {
        let mut place = String::new();
        if let Some(gap) = &verdict.longest {
            let _ = write!(place, "{}", gap.place());
        }
        table.add_row([
            backend.to_string(),
            verdict.grants.to_string(),
            verdict.faults.values().sum::<usize>().to_string(),
            verdict.overlaps.to_string(),
            verdict.inversions.to_string(),
            seconds(verdict.longest_wait_ns),
            seconds(verdict.longest_ns),
            seconds(verdict.longest.as_ref().map_or(0, |gap| gap.length_ns)),
            format!("{:.2} s", verdict.limit.as_secs_f64()),
            percent(verdict.pressure),
            place,
        ]);
    }
    table.to_string()
}
