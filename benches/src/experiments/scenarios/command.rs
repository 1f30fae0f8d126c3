//! `command`: what `polylock run` adds to the command that it runs, and how large it is.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;
use tokio::time::timeout;

use crate::data::median::median;
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "command",
    about: "`polylock run NAME -- true` against `true` alone, from start to end",
    has_rivals: false,
    fits: |backend| backend == BackendName::Redis,
    settings,
    metrics: &[
        metric("p50", "ms", "p50").floor("true", FLOOR),
        metric("p99", "ms", "p99").floor("true", FLOOR),
        metric("added", "ms", "added to the command").targets(&[at_most(
            REDIS,
            25.0,
            "`polylock run` against the command alone",
        )
        .value()]),
        metric("binary", "MB", "binary").targets(&[at_most(REDIS, 15.0, "the command `polylock`").value()]),
    ],
    takes: |plan| Duration::from_millis(40) * commands(plan),
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    format!(
        "command: polylock run --url URL NAME -- true, from its start to its end
         floor: true, started by the same call, in turn
         commands: {} of each
         added: the median of the differences between a run and the floor right after it
         binary: as `cargo build --release --package lock-cli` makes it, without symbols",
        commands(plan)
    )
}

fn commands(plan: &Plan) -> u32 {
    plan.by_mode(20, 200)
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let polylock = polylock()?;
    let lock = bench.lock("command");
    let run = ["run", "--url", target.url(), &lock, "--", "true"];
    let mut rows = take_turns((&polylock, &run), (Path::new("true"), &[]), commands(&bench.plan)).await?;
    // A debug build is no measure.
    if !cfg!(debug_assertions) {
        let megabytes = std::fs::metadata(&polylock)?.len() as f64 / 1e6;
        rows.push(Row::of("binary", megabytes));
    }
    Ok(vec![Measured::of(target.name(), rows)])
}

/// The command, which is built beside this program.
fn polylock() -> Outcome<PathBuf> {
    let file = std::env::current_exe()?.with_file_name("polylock");
    if file.is_file() {
        return Ok(file);
    }
    Err(Failure::new(format!(
        "{} does not exist: `cargo xtask compare` builds it, and so does `cargo build{} --package lock-cli`",
        file.display(),
        if cfg!(debug_assertions) { "" } else { " --release" }
    )))
}

type Program<'a> = (&'a Path, &'a [&'a str]);

async fn take_turns(program: Program<'_>, floor: Program<'_>, times: u32) -> Outcome<Vec<Row>> {
    let (mut ran, mut bare, mut added) = (Latency::new(), Latency::new(), Vec::new());
    // The first turn reads the programs from the disk.
    for turn in 0..=times {
        let (ours, theirs) = (spent(program).await?, spent(floor).await?);
        if turn > 0 {
            ran.record(ours);
            bare.record(theirs);
            added.push((ours as f64 - theirs as f64) / 1e6);
        }
    }
    let row =
        |metric, part| Row::of(metric, ran.quantile_us(part) / 1e3).with_floor(bare.quantile_us(part) / 1e3);
    Ok(vec![row("p50", 0.5), row("p99", 0.99), Row::of("added", median(added))])
}

/// How long the program ran, in nanoseconds. It is killed when this is dropped.
async fn spent((program, args): Program<'_>) -> Outcome<u64> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let began = Instant::now();
    let mut child = command.spawn()?;
    let ended = timeout(PATIENCE, child.wait()).await;
    let ns = u64::try_from(began.elapsed().as_nanos())?;
    let name = program.display();
    match ended {
        Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(ns),
        Ok(status) => {
            let output = child.wait_with_output().await?;
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::new(format!("{name} ended with {}: {said}", status?)))
        }
        Err(_) => Err(Failure::new(format!("{name} is stuck: still running after {PATIENCE:?}"))),
    }
}

const FLOOR: &str = "command without a lock";
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Program<'static> {
        (Path::new("true"), &[])
    }

    #[tokio::test]
    async fn the_difference_is_what_the_program_adds() {
        let sleep: Program<'_> = (Path::new("sleep"), &["0.05"]);
        let rows = take_turns(sleep, nothing(), 3).await.unwrap();
        let row = |metric: &str| rows.iter().find(|row| row.metric == metric).unwrap();
        assert!(row("p50").value >= 50.0 && row("p50").floor.unwrap() < row("p50").value, "{rows:?}");
        let added = row("added").value;
        assert!(added > 0.0 && added <= row("p99").value, "{rows:?}");
    }

    #[tokio::test]
    async fn a_program_that_fails_is_no_measurement() {
        let failed: Program<'_> = (Path::new("sh"), &["-c", "echo no server >&2; exit 7"]);
        let failure = take_turns(failed, nothing(), 1).await.err().unwrap().to_string();
        assert_eq!(failure, "sh ended with exit status: 7: no server");
    }
}
