//! Claim 1: Redis is faster.

use clap::ValueEnum;

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::durable::add_durable;
use super::parts::teams::{CLIENT_CPU, PAIRS, SERVER_CPU, label, subject_name, subjects};
use super::throughput::{self, loads, peers};
use crate::data::{BackendName, Failure, Figure, Figures, Load, Mode, Outcome, Verdict};
use crate::rig::Subject;

pub(super) static THIS: Experiment = Experiment {
    name: "faster",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 1,
        says: "Redis is faster.",
        how: "One client acquires and releases a free lock: the median of `uncontended`, where nothing waits for a disk; and \
              the same with appendfsync no, everysec and always, and with ZooKeeper, one server and three, with and \
              without forced sync (all on this machine: the network between servers costs nothing). Then `throughput`: \
              many tasks of one process, and of eight, each with a lock of its own, as fast as they can, in turn with the \
              bare commands (`floor`), those of a lock with fencing tokens (`minting floor`) and other libraries.",
        rule: "Holds when Redis is at least 1.2 times as fast as one ZooKeeper server in every comparison that was \
               measured: the median without waiting for a disk (no append-only file against no forced sync), the median \
               with waiting for it (appendfsync always against forced sync; full runs only), and pairs per second at \
               every number of tasks, in one process and in eight. Does not hold when it is so in none; otherwise it depends on durability and load.",
        needs: &["uncontended", "throughput"],
        in_quick: true,
        pictures: &[
            Draw::Bars("Acquire + release of a free lock, median", LATENCY),
            Draw::Bars("Pairs per second of 8 processes with 64 tasks each", PAIRS_OF_PROCESSES),
            Draw::Curve("Pairs of acquire and release per second", PAIRS, "tasks"),
            Draw::Curve("Client CPU per pair", CLIENT_CPU, "tasks"),
            Draw::Curve("Server CPU per pair", SERVER_CPU, "tasks"),
        ],
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    for backend in BackendName::value_variants() {
        run.add_row("uncontended", backend.as_str(), LATENCY);
    }
    if run.mode == Mode::Full {
        add_durable(run, LATENCY).await;
    }
    for target in run.targets.iter().filter(|target| (throughput::THIS.fits)(target.backend())) {
        for &load in loads(&run.bench.plan) {
            add_throughput(run, target.backend(), load);
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let latencies = [("redis", "zk", "without waiting for a disk"), (ALWAYS, FORCED, "with waiting for it")];
    let mut comparisons = Vec::new();
    for (redis, zk, what) in latencies {
        // The durable servers run in full runs only.
        if let (Ok(redis), Ok(zk)) = (figures.get(redis, LATENCY), figures.get(zk, LATENCY)) {
            comparisons.push((zk / redis, format!("{what} ({redis:.0} against {zk:.0} us)")));
        }
    }
    for (tasks, redis) in figures.curve("redis", PAIRS) {
        let zk = figures.at("zk", PAIRS, tasks)?;
        comparisons
            .push((redis / zk, format!("with {tasks} at a time ({redis:.0} against {zk:.0} pairs/s)")));
    }
    let of = |backend| figures.get(backend, PAIRS_OF_PROCESSES);
    if let (Ok(redis), Ok(zk)) = (of("redis"), of("zk")) {
        comparisons.push((redis / zk, format!("with 8 processes ({redis:.0} against {zk:.0} pairs/s)")));
    }
    let faster = comparisons.iter().filter(|(times, _)| *times >= CLEARLY).count();
    let verdict = Verdict::of(faster, comparisons.len(), "durability and load")
        .ok_or_else(|| Failure::new("Redis and ZooKeeper were not measured side by side"))?;
    let texts: Vec<_> =
        comparisons.iter().map(|(times, what)| format!("{times:.1} times as fast {what}")).collect();
    Ok(Judgement::new(verdict, format!("Redis against ZooKeeper: {}", texts.join(", "))))
}

/// Adds what `throughput` measured of all subjects of a backend at this load. Ours must be there.
fn add_throughput(run: &mut Measuring<'_>, backend: BackendName, load: Load) {
    for subject in subjects(backend, peers(&run.bench.plan)) {
        let label = label(subject, backend, load);
        for metric in [PAIRS, CLIENT_CPU, SERVER_CPU, "p50", "p99"] {
            let Some(row) = run.row(throughput::THIS.name, &label, metric) else {
                if subject == Subject::Ours && metric == PAIRS {
                    run.leave_out(&label, "`throughput` did not measure it");
                }
                continue;
            };
            let metric = match metric {
                "p50" | "p99" => format!("pair_{metric}"),
                other => other.to_owned(),
            };
            let figure =
                |metric: &str| Figure::new(&subject_name(subject, backend), metric, &row.unit, row.value);
            run.add(match load.processes {
                1 => figure(&metric).at(load.tasks),
                // No point of a curve over the tasks of one process.
                processes => figure(&format!("{metric}_of_{processes}_processes")),
            });
        }
    }
}

const ALWAYS: &str = "redis appendfsync=always";
const FORCED: &str = "zk one server, forced sync";
const LATENCY: &str = "p50";
/// Of 8 processes, see `add_throughput`.
const PAIRS_OF_PROCESSES: &str = "pairs_per_s_of_8_processes";
/// How many times as fast is clearly faster.
const CLEARLY: f64 = 1.2;

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(redis: [f64; 3], zk: [f64; 3]) -> Outcome<Verdict> {
        let mut figures = Vec::new();
        for (subject, [p50, pairs, pairs_of_8]) in [("redis", redis), ("zk", zk)] {
            figures.push(Figure::new(subject, LATENCY, "us", p50));
            figures.push(Figure::new(subject, PAIRS, "1/s", pairs).at(256));
            figures.push(Figure::new(subject, PAIRS_OF_PROCESSES, "1/s", pairs_of_8));
        }
        judge(&Figures::from(figures)).map(|judged| judged.verdict)
    }

    #[test]
    fn all_comparisons_decide_together() {
        let depends = Verdict::DependsOn("durability and load".into());
        assert_eq!(verdict([50.0, 70e3, 90e3], [300.0, 15e3, 15e3]).unwrap(), Verdict::Holds);
        assert_eq!(verdict([300.0, 10e3, 10e3], [300.0, 15e3, 15e3]).unwrap(), Verdict::DoesNotHold);
        assert_eq!(verdict([50.0, 10e3, 90e3], [300.0, 15e3, 15e3]).unwrap(), depends);
        assert_eq!(verdict([50.0, 70e3, 15e3], [300.0, 15e3, 15e3]).unwrap(), depends);
    }
}
