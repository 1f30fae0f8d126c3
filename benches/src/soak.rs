//! `cargo xtask soak`: processes use locks while they and the servers are killed, frozen and cut off.

mod operator;
mod pressure;
mod stage;
mod verdict;
mod watch;
pub(crate) mod worker;

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use lock_testkit::history::History;
use lock_testkit::now_ns;
use rand::Rng;
use tokio::time::Instant;

use self::operator::Operator;
use self::pressure::Pressure;
use self::stage::Stage;
use self::verdict::{Verdict, judge, percent, seconds};
use self::watch::histories;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::options::{SoakBackend, SoakOptions};
use crate::run::target_folder;
use crate::table::{Look, empty};

/// Runs what the options say.
pub(crate) fn main(options: &SoakOptions) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(soak(options));
            // Tasks of connections may still be there; nobody waits for them.
            runtime.shutdown_timeout(Duration::from_secs(1));
            ended
        }
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("soak: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(options: &SoakOptions) -> Outcome<u8> {
    let mut interrupt = Interrupt::listen()?;
    // Short enough to be typed.
    let seed = options.seed.unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    println!("memory is left out: its locks are those of one process");
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
            // Ctrl-C reaches the servers as well: those that were starting ended of it.
            Err(_) if interrupt.has_come().await => interrupted = true,
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
        (true, _) => 1,
        (false, true) => 130,
        (false, false) => 0,
    })
}

/// One backend, and whether it was interrupted.
async fn one(
    backend: SoakBackend,
    options: &SoakOptions,
    seed: u64,
    interrupt: &mut Interrupt,
) -> Outcome<(Verdict, bool)> {
    let folder =
        options.out.clone().unwrap_or_else(|| target_folder("soak")).join(format!("{backend}-{seed}"));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let stage = Stage::start(backend).await?;
    let faults = options.faults(backend);
    let mut operator = Operator::with_crew(&stage, faults, seed, &folder, options.broken).await?;
    let pressure = Pressure::watch();
    let (began_ns, end) = (now_ns(), Instant::now() + options.minutes);
    let ended = tokio::select! {
        biased;
        () = interrupt.came() => None,
        ended = operator.disturb(end) => Some(ended),
    };
    let end_ns = now_ns();
    // What fails after Ctrl-C has failed by it: the servers were told as well.
    let interrupted = ended.is_none() || matches!(ended, Some(Err(_))) && interrupt.has_come().await;
    let mut complaints = Vec::new();
    if !interrupted {
        complaints.extend(ended.and_then(Result::err).map(|failure| failure.to_string()));
        tokio::select! {
            () = interrupt.came() => {}
            stuck = operator.dismiss() => complaints.extend(stuck),
        }
    }
    let faults = std::mem::take(&mut operator.faults);
    drop(operator);
    let lease = stage.lease();
    drop(stage);

    fs::write(folder.join("faults.json"), serde_json::to_vec_pretty(&faults)?)?;
    let history = History::load(histories(&folder)?)?;
    // Sorting and sweeping a long history is work for a processor, not for the runtime.
    let judging =
        tokio::task::spawn_blocking(move || judge(&history, &faults, lease, (began_ns, end_ns), &pressure));
    let mut verdict = judging.await.map_err(|error| Failure::from(error).during("judging the history"))?;
    verdict.violations.append(&mut complaints);
    fs::write(folder.join("report.txt"), &verdict.report)?;
    eprintln!("    histories: {}", folder.display());
    Ok((verdict, interrupted))
}

/// What was seen of all backends.
fn table(seen: &[(SoakBackend, Verdict)]) -> String {
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

/// How much longer than a lease a lock may be free after a fault.
const SLACK: Duration = Duration::from_secs(2);
