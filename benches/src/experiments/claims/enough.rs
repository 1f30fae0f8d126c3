//! Claim 15: one needs ZooKeeper, etcd or Redis for a lock.

use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "enough",
    figures: Some(|run| Box::pin(async move { figures(run) })),
    claim: Some(Claim {
        id: 15,
        says: "One needs ZooKeeper, etcd or Redis for a lock.",
        how: "The figures of `uncontended` and `contended` of all stores that were measured: the median of acquire and release \
              of a free lock, the median of a hand-off between processes, and the overlaps of both. PostgreSQL, MySQL and SQLite \
              wait for their disks meanwhile, ZooKeeper, etcd and Redis do not. S3 is a server for tests here (moto, one request at \
              a time), which no processes contend on: its figure says nothing of Amazon's.",
        rule: "A store of data that one has anyway (PostgreSQL, MySQL, SQLite, a bucket) is enough for a lock when it excludes, a pair \
               takes at most 20 ms, and a hand-off, where it was measured, at most 50 ms. Holds when none of them is enough, does \
               not hold when all are; otherwise it depends on the store.",
        needs: &["uncontended", "contended"],
        pictures: || {
            vec![
                bars("Acquire + release of a free lock, median", PAIR),
                bars("Hand-off between processes, median", HAND_OFF),
            ]
        },
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

fn figures(run: &mut Measuring<'_>) {
    for store in SERVICES.into_iter().chain(STORES) {
        run.add_row("uncontended", store, PAIR);
        if store != BUCKET {
            run.add_row("contended", store, HAND_OFF);
        }
        let overlaps = ["uncontended", "contended"].into_iter().filter_map(|of| run.row(of, store, OVERLAPS));
        if let Some(overlaps) = overlaps.map(|row| row.value).reduce(|one, other| one + other) {
            run.add(Figure::new(store, OVERLAPS, "", overlaps));
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut parts = Vec::new();
    for store in STORES {
        let Ok(pair) = figures.get(store, PAIR) else { continue };
        let hand_off = figures.get(store, HAND_OFF).ok();
        let excludes = figures.get(store, OVERLAPS).is_ok_and(|overlaps| overlaps < 0.5);
        let enough = excludes && pair <= MOST_PAIR && hand_off.is_none_or(|took| took <= MOST_HAND_OFF);
        let hand_off = hand_off.map_or_else(|| "-".to_owned(), |took| format!("{:.1}", took / 1e3));
        parts.push((!enough, format!("{store} {:.1} and {hand_off} ms", pair / 1e3)));
    }
    Judgement::of_parts(parts, "the store", "a pair and a hand-off take", "no store of data was measured")
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let overlaps = |store: &&str| figures.get(store, OVERLAPS).is_ok_and(|overlaps| overlaps > 0.5);
    let broken = SERVICES.into_iter().chain(STORES).find(overlaps)?;
    Some(format!("two clients had a lock on {broken} at once"))
}

/// What is run for locks.
const SERVICES: [&str; 4] = ["redis", "redlock", "zk", "etcd"];
/// What is run for data.
const STORES: [&str; 4] = ["postgres", "mysql", "sqlite", BUCKET];
const BUCKET: &str = "s3";
const PAIR: &str = "p50";
const HAND_OFF: &str = "handoff_p50";
const OVERLAPS: &str = "overlaps";
/// In microseconds: less than what is worth a lock between processes takes.
const MOST_PAIR: f64 = 20_000.0;
const MOST_HAND_OFF: f64 = 50_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn a_store_is_enough_that_excludes_in_time() {
        let by = |stores: &[(&str, f64, Option<f64>, f64)]| {
            let of = |&(store, pair, hand_off, overlaps): &(&str, f64, Option<f64>, f64)| {
                let hand_off = hand_off.map(|took| Figure::new(store, HAND_OFF, "us", took));
                let all = [Figure::new(store, PAIR, "us", pair), Figure::new(store, OVERLAPS, "", overlaps)];
                all.into_iter().chain(hand_off)
            };
            judged(&THIS, stores.iter().flat_map(of))
        };
        let (fast, slow) = (("postgres", 900.0, Some(2e3), 0.0), ("mysql", 30e3, Some(2e3), 0.0));
        assert_eq!(by(&[fast, ("s3", 15e3, None, 0.0)]), (Verdict::DoesNotHold, true));
        assert_eq!(by(&[slow]), (Verdict::Holds, true));
        assert_eq!(by(&[fast, slow]), (Verdict::DependsOn("the store".into()), true));
        assert_eq!(by(&[("sqlite", 1.0, Some(60e3), 0.0)]), (Verdict::Holds, true));
        assert_eq!(by(&[("sqlite", 1.0, Some(1.0), 1.0)]), (Verdict::Holds, false));
    }
}
