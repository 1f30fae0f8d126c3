//! Claim 13: a database is too slow for locks. And how large the tables become.

use std::time::Duration;

use lock_testkit::{RedisServer, ZooKeeper};

use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment};
use super::parts::teams::{PAIRS, alone_us, pairs_per_s};
use crate::data::{Failure, Figure, Figures, Mode, Outcome, Verdict};
use crate::rig::backends::postgres;

pub(super) static THIS: Experiment = Experiment {
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
        pictures: &[
            Draw::Bars("Acquire + release of a free lock, median", LATENCY),
            Draw::Bars("Pairs of acquire and release per second of 256 tasks", PAIRS),
            Draw::Curve("Tables and indexes after pairs on 100 names", TABLES, "pairs"),
        ],
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    if run.target_of("postgres").is_none() {
        return;
    }
    for subject in [ASYNCHRONOUS, DURABLE, "redis", "zk"] {
        if let Some(url) = run.url(subject) {
            measure_speed(run, subject, &url).await;
        }
    }
    if run.mode == Mode::Full {
        measure_durable(run).await;
    }
    measure_tables(run).await;
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut comparisons = Vec::new();
    for (ours, others, what) in COMPARISONS {
        for (metric, unit, how) in [(LATENCY, "us", "alone"), (PAIRS, "pairs/s", "with 256 tasks")] {
            let of = |subject| figures.get(subject, metric);
            // The durable servers run in full runs only.
            let (Ok(ours), Ok(redis), Ok(zk)) = (of(ours), of(others[0]), of(others[1])) else {
                continue;
            };
            let slower = match metric {
                LATENCY => ours / redis.max(zk),
                _ => redis.min(zk) / ours,
            };
            let text = format!("{what}, {how} ({ours:.0} against {redis:.0} and {zk:.0} {unit})");
            comparisons.push((slower, text));
        }
    }
    let slow = comparisons.iter().filter(|(slower, _)| *slower >= CLEARLY).count();
    let verdict = Verdict::of(slow, comparisons.len(), "durability and load")
        .ok_or_else(|| Failure::new("PostgreSQL, Redis and ZooKeeper were not measured side by side"))?;
    let texts: Vec<_> =
        comparisons.iter().map(|(slower, what)| format!("{slower:.2} times that {what}")).collect();
    let because =
        format!("the time of PostgreSQL against the slower of Redis and ZooKeeper is {}", texts.join(", "));
    Ok(Judgement::new(verdict, because))
}

/// One client, and many tasks.
async fn measure_speed(run: &mut Measuring<'_>, subject: &str, url: &str) {
    let span = match run.mode {
        Mode::Quick => Duration::from_millis(400),
        Mode::Full => Duration::from_secs(3),
    };
    let lock = run.bench.lock("database");
    let measuring = async {
        let alone = alone_us(url, &lock, span).await?;
        Ok((alone, pairs_per_s(url, &lock, TASKS, span).await?))
    };
    if let Some((alone, pairs)) = run.part(subject, PATIENCE, measuring).await {
        run.add(Figure::new(subject, LATENCY, "us", alone));
        run.add(Figure::new(subject, PAIRS, "1/s", pairs));
    }
}

/// Servers that wait for their disks, as PostgreSQL does.
async fn measure_durable(run: &mut Measuring<'_>) {
    let redis = RedisServer::builder().appendonly(true).config("appendfsync", "always").start().await;
    match redis {
        Ok(server) => measure_speed(run, ALWAYS, &server.url()).await,
        Err(error) => run.leave_out(ALWAYS, error),
    }
    match ZooKeeper::builder().for_load(true).force_sync(true).start().await {
        Ok(server) => measure_speed(run, FORCED, &server.url()).await,
        Err(error) => run.leave_out(FORCED, error),
    }
}

/// Many pairs on a few names, in a schema of their own.
async fn measure_tables(run: &mut Measuring<'_>) {
    let (slices, span) = match run.mode {
        Mode::Quick => (2, Duration::from_millis(700)),
        Mode::Full => (4, Duration::from_secs(10)),
    };
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

    fn verdict(of: impl Fn(&str) -> Option<[f64; 2]>) -> Outcome<Verdict> {
        let mut figures = Vec::new();
        for subject in [ASYNCHRONOUS, "redis", "zk", DURABLE, ALWAYS, FORCED] {
            if let Some([alone, pairs]) = of(subject) {
                figures.push(Figure::new(subject, LATENCY, "us", alone));
                figures.push(Figure::new(subject, PAIRS, "1/s", pairs));
            }
        }
        judge(&Figures::from(figures)).map(|judged| judged.verdict)
    }

    #[test]
    fn a_database_is_compared_with_the_slower_of_the_others() {
        let depends = Verdict::DependsOn("durability and load".into());
        let is_durable = |subject: &str| [DURABLE, ALWAYS, FORCED].contains(&subject);
        let with = |postgres: [f64; 2]| {
            verdict(move |subject| match subject {
                _ if is_durable(subject) => None,
                ASYNCHRONOUS => Some(postgres),
                "redis" => Some([100.0, 40_000.0]),
                _ => Some([400.0, 10_000.0]),
            })
            .unwrap()
        };
        assert_eq!(with([300.0, 9_000.0]), Verdict::DoesNotHold);
        assert_eq!(with([500.0, 8_000.0]), Verdict::Holds);
        assert_eq!(with([300.0, 5_000.0]), depends);
        let durable = verdict(|subject| match subject {
            DURABLE => Some([9_000.0, 10.0]),
            _ => Some([500.0, 5_000.0]),
        });
        assert_eq!(durable.unwrap(), depends);
        assert!(verdict(|subject| (subject != "zk" && !is_durable(subject)).then_some([1.0; 2])).is_err());
    }
}
