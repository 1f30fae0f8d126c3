//! Claim 13: a database is too slow for locks. And how large the tables become.

use std::time::Duration;

use lock_testkit::{RedisServer, ZooKeeper};

use crate::experiments::parts::teams::{PAIRS, alone_us, pairs_per_s};
use crate::experiments::prelude::*;
use crate::rig::backends::postgres;

pub(crate) static THIS: Experiment = Experiment {
    name: "database",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 13,
        says: "A database is too slow for locks.",
        how: "One client acquires and releases a free lock, and 256 tasks of one process do so with a lock each, as fast as \
              they can: on PostgreSQL where a grant waits for the disk (sync=on) and where it does not (sync=off), on Redis \
              and on one ZooKeeper server; in full runs also on Redis with appendfsync=always and on ZooKeeper with \
              forced sync. Beside it the size of the tables of the locks after many pairs on 100 names.",
        rule: "PostgreSQL is too slow in a comparison where it is slower than both Redis and ZooKeeper, by a factor of 1.2 \
               or more. Compared are the median and the pairs per second without waiting for a disk (sync=off), and in full \
               runs with waiting for it (sync=on). Holds when it is too slow in all comparisons, does not hold when it is so \
               in none; otherwise it depends on durability and load.",
        pictures: || {
            vec![
                bars("Acquire + release of a free lock, median", LATENCY),
                bars("Pairs of acquire and release per second of 256 tasks", PAIRS),
                curve("Tables and indexes after pairs on 100 names", TABLES, "pairs"),
            ]
        },
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    if run.target_of("postgres").is_none() {
        return;
    }
    let lock = run.bench.lock("database");
    let span = run.mode.pick(Duration::from_millis(400), Duration::from_secs(2));
    for subject in [ASYNCHRONOUS, DURABLE, "redis", "zk"] {
        if let Some(url) = run.url(subject) {
            add_speed(run, subject, speed(&url, &lock, span)).await;
        }
    }
    if run.mode == Mode::Full {
        // Servers that wait for their disks, as PostgreSQL does.
        let redis = async {
            let options = RedisServer::builder().appendonly(true).config("appendfsync", "always");
            let server = options.start().await?;
            speed(&server.url(), &lock, span).await
        };
        add_speed(run, ALWAYS, redis).await;
        let zk = async {
            let server = ZooKeeper::builder().for_load(true).force_sync(true).start().await?;
            speed(&server.url(), &lock, span).await
        };
        add_speed(run, FORCED, zk).await;
    }
    measure_tables(run).await;
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut parts = Vec::new();
    for (ours, others, what) in COMPARISONS {
        for (metric, unit, how) in [(LATENCY, "us", "alone"), (PAIRS, "pairs/s", "with 256 tasks")] {
            let of = |subject| figures.get(subject, metric);
            // The durable servers run in full runs only.
            if let (Ok(ours), Ok(redis), Ok(zk)) = (of(ours), of(others[0]), of(others[1])) {
                let slower = if metric == LATENCY { ours / redis.max(zk) } else { redis.min(zk) / ours };
                let figures = format!("{ours:.0} against {redis:.0} and {zk:.0} {unit}");
                parts.push((slower >= CLEARLY, format!("{slower:.2} times that {what}, {how} ({figures})")));
            }
        }
    }
    let because = "the time of PostgreSQL against the slower of Redis and ZooKeeper";
    let none = "PostgreSQL, Redis and ZooKeeper were not measured side by side";
    Judgement::of_parts(parts, "durability and load", because, none)
}

/// The time of one client, and the pairs per second of many tasks.
async fn speed(url: &str, lock: &str, span: Duration) -> Outcome<[f64; 2]> {
    Ok([alone_us(url, lock, span).await?, pairs_per_s(url, lock, TASKS, span).await?])
}

async fn add_speed(run: &mut Measuring<'_>, subject: &str, speed: impl Future<Output = Outcome<[f64; 2]>>) {
    if let Some([alone, pairs]) = run.part(subject, PATIENCE, speed).await {
        run.add(Figure::new(subject, LATENCY, "us", alone));
        run.add(Figure::new(subject, PAIRS, "1/s", pairs));
    }
}

/// Many pairs on a few names, in a schema of their own.
async fn measure_tables(run: &mut Measuring<'_>) {
    let (slices, span) = run.mode.pick((2, Duration::from_millis(700)), (4, Duration::from_secs(3)));
    let Some(url) = run.url("postgres sync=off schema=polylock_bench_tables") else { return };
    let lock = run.bench.lock("tables");
    let measuring = async {
        let (mut pairs, mut sizes) = (0.0, Vec::new());
        for _ in 0..slices {
            pairs += pairs_per_s(&url, &lock, NAMES, span).await? * span.as_secs_f64();
            sizes.push((pairs, postgres::size_of_tables(&url).await?));
        }
        postgres::drop_schema(&url).await?;
        Ok(sizes)
    };
    for (pairs, bytes) in run.part("the size of the tables", PATIENCE, measuring).await.into_iter().flatten()
    {
        run.add(Figure::new("postgres", TABLES, "B", bytes as f64).at(pairs as u32));
    }
}

const ASYNCHRONOUS: &str = "postgres sync=off";
const DURABLE: &str = "postgres sync=on";
const ALWAYS: &str = "redis appendfsync=always";
const FORCED: &str = "zk one server, forced sync";
const COMPARISONS: [(&str, [&str; 2], &str); 2] = [
    (ASYNCHRONOUS, ["redis", "zk"], "without waiting for a disk"),
    (DURABLE, [ALWAYS, FORCED], "with waiting for it"),
];
const LATENCY: &str = "p50";
const TABLES: &str = "table_size";
const TASKS: u32 = 256;
const NAMES: u32 = 100;
/// How many times as slow is clearly slower.
const CLEARLY: f64 = 1.2;
const PATIENCE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn a_database_is_compared_with_the_slower_of_the_others() {
        let by = |all: &[(&str, f64, f64)]| {
            let of = |&(subject, alone, pairs): &(&str, f64, f64)| {
                [Figure::new(subject, LATENCY, "us", alone), Figure::new(subject, PAIRS, "1/s", pairs)]
            };
            judged(&THIS, all.iter().flat_map(of)).0
        };
        let depends = Verdict::DependsOn("durability and load".into());
        let (redis, zk) = (("redis", 100.0, 40_000.0), ("zk", 400.0, 10_000.0));
        assert_eq!(by(&[(ASYNCHRONOUS, 300.0, 9_000.0), redis, zk]), Verdict::DoesNotHold);
        assert_eq!(by(&[(ASYNCHRONOUS, 500.0, 8_000.0), redis, zk]), Verdict::Holds);
        assert_eq!(by(&[(ASYNCHRONOUS, 300.0, 5_000.0), redis, zk]), depends);
        let fast = [(ASYNCHRONOUS, 300.0, 9_000.0), redis, zk];
        let durable = [(DURABLE, 9_000.0, 10.0), (ALWAYS, 500.0, 5_000.0), (FORCED, 500.0, 5_000.0)];
        assert_eq!(by(&[fast, durable].concat()), depends);
        assert_eq!(by(&[(ASYNCHRONOUS, 1.0, 1.0), redis]), Verdict::NotJudged);
    }
}
