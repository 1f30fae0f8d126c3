//! Claim 1: Redis is faster.

use std::time::Duration;

use clap::ValueEnum;
use lock_testkit::{RedisServer, ZooKeeper};

use crate::experiments::parts::teams::{
    CLIENT_CPU, PAIRS, SERVER_CPU, alone_us, label, subject_name, subjects,
};
use crate::experiments::prelude::*;
use crate::experiments::scenarios::throughput::{self, loads, peers};

pub(crate) static THIS: Experiment = Experiment {
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
        pictures: || {
            vec![
                bars("Acquire + release of a free lock, median", LATENCY),
                bars("Pairs per second of 8 processes with 64 tasks each", PAIRS_OF_PROCESSES),
                curve("Pairs of acquire and release per second", PAIRS, "tasks"),
                curve("Client CPU per pair", CLIENT_CPU, "tasks"),
                curve("Server CPU per pair", SERVER_CPU, "tasks"),
            ]
        },
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
        add_durable(run).await;
    }
    for target in run.targets.iter().filter(|target| (throughput::THIS.fits)(target.backend())) {
        for &load in loads(&run.bench.plan, target.backend()) {
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
        // Most tasks of all run on Redis alone.
        let Ok(zk) = figures.at("zk", PAIRS, tasks) else { continue };
        comparisons
            .push((redis / zk, format!("with {tasks} at a time ({redis:.0} against {zk:.0} pairs/s)")));
    }
    let of = |backend| figures.get(backend, PAIRS_OF_PROCESSES);
    if let (Ok(redis), Ok(zk)) = (of("redis"), of("zk")) {
        comparisons.push((redis / zk, format!("with 8 processes ({redis:.0} against {zk:.0} pairs/s)")));
    }
    let parts = comparisons.into_iter();
    let parts = parts.map(|(times, what)| (times >= CLEARLY, format!("{times:.1} times as fast {what}")));
    let none = "Redis and ZooKeeper were not measured side by side";
    Judgement::of_parts(parts.collect(), "durability and load", "Redis against ZooKeeper", none)
}

/// Adds the time of one client of servers that do and do not wait for the disk.
async fn add_durable(run: &mut Measuring<'_>) {
    let lock = run.bench.lock("durable");
    for policy in ["no", "everysec", "always"] {
        let alone = async {
            let options = RedisServer::builder().appendonly(true).config("appendfsync", policy);
            let server = options.start().await?;
            alone_us(&server.url(), &lock, ALONE).await
        };
        add_alone(run, &format!("redis appendfsync={policy}"), alone).await;
    }
    for (sync, is_forced) in [("no forced sync", false), ("forced sync", true)] {
        let options = || ZooKeeper::builder().for_load(true).force_sync(is_forced);
        let one = async {
            let server = options().start().await?;
            alone_us(&server.url(), &lock, ALONE).await
        };
        add_alone(run, &format!("zk one server, {sync}"), one).await;
        let three = async {
            let ensemble = options().start_ensemble(3).await?;
            alone_us(&ensemble.url(), &lock, ALONE).await
        };
        add_alone(run, &format!("zk three servers, {sync}"), three).await;
    }
}

async fn add_alone(run: &mut Measuring<'_>, subject: &str, alone: impl Future<Output = Outcome<f64>>) {
    if let Some(us) = run.part(subject, PATIENCE, alone).await {
        run.add(Figure::new(subject, LATENCY, "us", us));
    }
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
const ALONE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn all_comparisons_decide_together() {
        let by = |redis: [f64; 3], zk: [f64; 3]| {
            let of = |(subject, [p50, pairs, pairs_of_8]): (&str, [f64; 3])| {
                [
                    Figure::new(subject, LATENCY, "us", p50),
                    Figure::new(subject, PAIRS, "1/s", pairs).at(256),
                    Figure::new(subject, PAIRS_OF_PROCESSES, "1/s", pairs_of_8),
                ]
            };
            judged(&THIS, [("redis", redis), ("zk", zk)].into_iter().flat_map(of)).0
        };
        let depends = Verdict::DependsOn("durability and load".into());
        assert_eq!(by([50.0, 70e3, 90e3], [300.0, 15e3, 15e3]), Verdict::Holds);
        assert_eq!(by([300.0, 10e3, 10e3], [300.0, 15e3, 15e3]), Verdict::DoesNotHold);
        assert_eq!(by([50.0, 10e3, 90e3], [300.0, 15e3, 15e3]), depends);
        assert_eq!(by([50.0, 70e3, 15e3], [300.0, 15e3, 15e3]), depends);
    }
}
