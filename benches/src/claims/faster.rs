//! Claim 1: Redis is faster.

use std::time::Duration;

use async_trait::async_trait;
use lock_testkit::{RedisServer, ZooKeeper};
use polylock::{Locks, OwnerId};
use tokio::time::timeout;

use super::throughput::{InTurn, Throughput};
use super::{About, Claim, Figures, Judgement, Measuring};
use crate::backends;
use crate::failure::{Failure, Outcome};
use crate::floor::BareRedis;
use crate::options::ScenarioName;
use crate::peers::Rslock;
use crate::results::{Figure, Mode, Picture, Verdict};
use crate::url;

/// The claim.
#[derive(Debug)]
pub(super) struct Faster;

#[async_trait(?Send)]
impl Claim for Faster {
    fn about(&self) -> About {
        About {
            id: 1,
            says: "Redis is faster.",
            how: "One client acquires and releases a free lock: the median of `uncontended`, where nothing waits for a disk; and \
                  the same with appendfsync no, everysec and always, and with ZooKeeper, one server and three, with and \
                  without forced sync (all on this machine: the network between servers costs nothing). Then many tasks of \
                  one process, each with a lock of its own, as fast as they can; `floor` is SET NX PX and a compare-and-delete \
                  on one multiplexed connection, without tokens.",
            rule: "Holds when Redis is at least 1.2 times as fast as one ZooKeeper server in every comparison that was \
                   measured: the median without waiting for a disk (no append-only file against no forced sync), the median \
                   with waiting for it (appendfsync always against forced sync; full runs only), and pairs per second at \
                   every number of tasks. Does not hold when it is so in none; otherwise it depends on durability and load.",
            needs: &[ScenarioName::Uncontended],
            in_quick: true,
        }
    }

    async fn measure(&self, run: &mut Measuring<'_>) {
        for backend in ["memory", "redis", "redlock", "zk"] {
            run.add_row("uncontended", backend, LATENCY);
        }
        if run.mode == Mode::Full {
            durable(run).await;
        }
        let (tasks, span): (&[u32], _) = match run.mode {
            Mode::Quick => (&[16, 256], Duration::from_millis(300)),
            Mode::Full => (&[1, 16, 256, 1024], Duration::from_millis(1500)),
        };
        for &tasks in tasks {
            for subject in [FLOOR, "redis", "rslock", "redlock", "zk"] {
                throughput(run, subject, tasks, span).await;
            }
        }
        run.draw(Picture::Bars {
            title: "Acquire + release of a free lock, median".into(),
            metric: LATENCY.into(),
        });
        for (title, metric) in [
            ("Pairs of acquire and release per second", PAIRS),
            ("Client CPU per pair", CLIENT_CPU),
            ("Server CPU per pair", SERVER_CPU),
        ] {
            run.draw(Picture::Curve { title: title.into(), metric: metric.into(), x: "tasks".into() });
        }
    }

    fn judge(&self, figures: &Figures) -> Outcome<Judgement> {
        let latencies =
            [("redis", "zk", "without waiting for a disk"), (ALWAYS, FORCED, "with waiting for it")];
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
        let faster = comparisons.iter().filter(|(times, _)| *times >= CLEARLY).count();
        let verdict = match faster {
            _ if comparisons.is_empty() => {
                return Err(Failure::new("Redis and ZooKeeper were not measured side by side"));
            }
            0 => Verdict::DoesNotHold,
            all if all == comparisons.len() => Verdict::Holds,
            _ => Verdict::DependsOn("durability and load".into()),
        };
        let texts: Vec<_> =
            comparisons.iter().map(|(times, what)| format!("{times:.1} times {what}")).collect();
        Ok(Judgement::new(verdict, format!("Redis is as fast as ZooKeeper {}", texts.join(", "))))
    }
}

/// One client of servers that do and do not wait for the disk.
async fn durable(run: &mut Measuring<'_>) {
    for policy in ["no", "everysec", "always"] {
        let subject = format!("redis appendfsync={policy}");
        let measuring = async {
            let options = RedisServer::builder().appendonly(true).config("appendfsync", policy);
            let server = options.start().await?;
            alone(&server.url(), &run.bench.lock("durable")).await
        };
        let measured = measuring.await;
        add_alone(run, &subject, measured);
    }
    for forced in [false, true] {
        let sync = if forced { "forced sync" } else { "no forced sync" };
        let lock = run.bench.lock("durable");
        let one = async {
            let server = ZooKeeper::builder().for_load(true).force_sync(forced).start().await?;
            alone(&server.url(), &lock).await
        };
        let measured = one.await;
        add_alone(run, &format!("zk one server, {sync}"), measured);
        let three = async {
            let ensemble = ZooKeeper::builder().for_load(true).force_sync(forced).start_ensemble(3).await?;
            alone(&ensemble.url(), &lock).await
        };
        let measured = three.await;
        add_alone(run, &format!("zk three servers, {sync}"), measured);
    }
}

fn add_alone(run: &mut Measuring<'_>, subject: &str, measured: Outcome<Throughput>) {
    match measured {
        Ok(measured) => run.add(Figure::new(subject, LATENCY, "us", measured.latency.quantile_us(0.5))),
        Err(failure) => run.leave_out(subject, failure),
    }
}

/// One client that acquires and releases a free lock.
async fn alone(url: &str, lock: &str) -> Outcome<Throughput> {
    let measuring = async {
        let locks = Locks::connect(url).await?;
        let measured = Throughput::measure(vec![InTurn::new(locks.mutex(lock))], ALONE, &[]).await?;
        locks.close().await?;
        Ok(measured)
    };
    timeout(PATIENCE, measuring)
        .await
        .unwrap_or_else(|_| Err(Failure::new(format!("stuck for {PATIENCE:?}"))))
}

/// Measures one subject with so many tasks.
async fn throughput(run: &mut Measuring<'_>, subject: &str, tasks: u32, span: Duration) {
    let backend = if matches!(subject, FLOOR | "rslock") { "redis" } else { subject };
    let (Some(target), Some(url)) = (run.target_of(backend), run.url(backend)) else { return };
    let lock = run.bench.lock(&format!("throughput-{}", subject.replace(' ', "-")));
    let names: Vec<String> = (0..tasks).map(|task| format!("{lock}-{task}")).collect();
    let servers = target.processes();
    let measuring = async {
        match subject {
            FLOOR => {
                let shared = backends::redis::connect(&url, url::first_host(&url)).await?;
                let mut floors = Vec::new();
                for name in &names {
                    floors.push(BareRedis::on(shared.clone(), name, OwnerId::random(), TTL).await?);
                }
                Throughput::measure(floors, span, &servers).await
            }
            "rslock" => {
                let urls = vec![url::without_options(&url).to_owned()];
                let locks = names.iter().map(|name| InTurn::new(Rslock::new(urls.clone(), name))).collect();
                Throughput::measure(locks, span, &servers).await
            }
            _ => {
                let locks = Locks::connect(&url).await?;
                let mutexes = names.iter().map(|name| InTurn::new(locks.mutex(name))).collect();
                let measured = Throughput::measure(mutexes, span, &servers).await?;
                locks.close().await?;
                Ok(measured)
            }
        }
    };
    let name = format!("{tasks} tasks of {subject}");
    let measured = match subject {
        "rslock" => run.part_of_a_peer(&name, PATIENCE, measuring).await,
        _ => run.part(&name, PATIENCE, measuring).await,
    };
    if let Some(measured) = measured {
        let figures = [
            (PAIRS, "1/s", Some(measured.pairs_per_s)),
            (CLIENT_CPU, "us", Some(measured.client_us)),
            (SERVER_CPU, "us", measured.server_us),
            ("pair_p50", "us", Some(measured.latency.quantile_us(0.5))),
            ("pair_p99", "us", Some(measured.latency.quantile_us(0.99))),
        ];
        for (metric, unit, value) in figures {
            if let Some(value) = value {
                run.add(Figure::new(subject, metric, unit, value).at(tasks));
            }
        }
    }
}

const FLOOR: &str = "redis floor";
const ALWAYS: &str = "redis appendfsync=always";
const FORCED: &str = "zk one server, forced sync";
const LATENCY: &str = "p50";
const PAIRS: &str = "pairs_per_s";
const CLIENT_CPU: &str = "client_cpu";
const SERVER_CPU: &str = "server_cpu";
/// How many times as fast is clearly faster.
const CLEARLY: f64 = 1.2;
const ALONE: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(redis: [f64; 2], zk: [f64; 2]) -> Outcome<Verdict> {
        let mut figures = Vec::new();
        for (subject, [p50, pairs]) in [("redis", redis), ("zk", zk)] {
            figures.push(Figure::new(subject, LATENCY, "us", p50));
            figures.push(Figure::new(subject, PAIRS, "1/s", pairs).at(256));
        }
        Faster.judge(&Figures::from(figures)).map(|judged| judged.verdict)
    }

    #[test]
    fn all_comparisons_decide_together() {
        let depends = Verdict::DependsOn("durability and load".into());
        assert_eq!(verdict([50.0, 70e3], [300.0, 15e3]).unwrap(), Verdict::Holds);
        assert_eq!(verdict([300.0, 10e3], [300.0, 15e3]).unwrap(), Verdict::DoesNotHold);
        assert_eq!(verdict([50.0, 10e3], [300.0, 15e3]).unwrap(), depends);
    }
}
