//! `cargo xtask soak`: soaks one backend after the other, and prints the verdicts.

use std::process::ExitCode;

use rand::Rng;

use super::options::soak::SoakOptions;
use crate::data::{BackendName, Outcome, Site};
use crate::experiments::soak::{self, SoakVerdict, percent, seconds};
use crate::report::sheet::{Look, Sheet};
use crate::rig::Interrupt;
use crate::rig::backends::is_missing;

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
        let cannot_start = match backend {
            Site::Etcd => is_missing(BackendName::Etcd),
            Site::Mysql => is_missing(BackendName::Mysql),
            _ => false,
        };
        if cannot_start && !options.names(backend) {
            println!("{backend} is left out: it is not installed");
            continue;
        }
        eprintln!("{backend}, seed {seed}");
        match soak::run(options.soak(backend, seed), &mut interrupt).await {
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
        let faults: Vec<_> =
            verdict.faults.iter().map(|(fault, count)| format!("{count} {}", fault.soak_name())).collect();
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

fn table(seen: &[(Site, SoakVerdict)]) -> String {
    let mut table = Sheet::of([
        "backend",
        "grants",
        "faults",
        "overlaps",
        "inversions",
        "fenced commits",
        "stale",
        "longest wait",
        "longest gap",
        "after a fault",
        "at most",
        "cpu pressure",
        "where",
    ]);
    for (backend, verdict) in seen {
        table.row([
            backend.to_string(),
            verdict.grants.to_string(),
            verdict.faults.values().sum::<usize>().to_string(),
            verdict.overlaps.to_string(),
            verdict.inversions.to_string(),
            verdict.commits.to_string(),
            verdict.stale.to_string(),
            seconds(verdict.longest_wait_ns),
            seconds(verdict.longest_ns),
            seconds(verdict.longest.as_ref().map_or(0, |gap| gap.length_ns)),
            format!("{:.2} s", verdict.limit.as_secs_f64()),
            percent(verdict.pressure),
            verdict.longest.as_ref().map_or_else(String::new, |gap| gap.place()),
        ]);
    }
    table.text(Look::of_stdout())
}
