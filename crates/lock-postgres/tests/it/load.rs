//! Many locks, and many tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::Locks;
use tokio::time::sleep;

use crate::site::{Site, take};

const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'polylock%'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_several_clients_exclude_each_other() {
    let site = Site::open().await;
    let (inside, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = site.locks("").await;
        for _ in 0..5 {
            let (locks, inside, done) = (locks.clone(), Arc::clone(&inside), Arc::clone(&done));
            tasks.push(tokio::spawn(async move {
                let mut last = None;
                for _ in 0..10 {
                    let guard = take(&locks, "orders").await;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                    assert!(last < Some(guard.token()), "tokens grow");
                    last = Some(guard.token());
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 200);
}

/// Measured at night.
mod deep {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "deep: it holds 10 000 locks for a while"]
    async fn ten_thousand_held_locks_need_five_connections() {
        let site = Site::open().await;
        let locks = site.locks("&ttl=30s").await;
        let mut guards = Vec::new();
        for first in (0..10_000).step_by(50) {
            let locks = &locks;
            guards.extend(
                join_all((first..first + 50).map(async |n| take(locks, &format!("lock/{n}")).await)).await,
            );
        }
        let began = cpu();
        sleep(Duration::from_secs(35)).await;
        let share = (cpu() - began).as_secs_f64() / 35.0;
        assert!(guards.iter().all(|guard| guard.is_valid()), "a lock was lost");
        assert!(site.number(CONNECTIONS).await <= 5);
        eprintln!("10 000 held locks: the client needs {:.1} % of a core", share * 100.0);
        join_all(guards.into_iter().map(|guard| guard.release()))
            .await
            .into_iter()
            .for_each(|released| assert!(released.is_ok()));
    }

    /// What a hundred thousand pairs leave in the tables, and so what ten million do.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "deep: 100 000 pairs"]
    async fn tables_stay_small() {
        let site = Site::private().await;
        let locks = site.locks("&sync=off&local_handovers=0").await;
        pairs(&locks, 20_000).await;
        let before = site.number(SIZE).await;
        pairs(&locks, 100_000).await;
        let after = site.number(SIZE).await;
        let hot = site.number(HOT).await;
        let later = after + (after - before).max(0) * 100;
        eprintln!(
            "{before} bytes, after 100 000 pairs {after}; {hot} % of the updates are HOT; after ten million {later}"
        );
        assert!(later < 10_000_000 && hot >= 99);
    }

    const SIZE: &str = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
                        WHERE relnamespace = 'polylock'::regnamespace AND relkind = 'r'";
    const HOT: &str = "SELECT (100 * sum(n_tup_hot_upd) / sum(n_tup_upd))::bigint FROM pg_stat_user_tables
                       WHERE schemaname = 'polylock' AND relname IN ('lock', 'lease')";

    /// By twice as many tasks as there are locks, so that some wait.
    async fn pairs(locks: &Locks, count: usize) {
        let task = async |task: usize| {
            for _ in 0..count / 200 {
                take(locks, &format!("lock/{}", task % 100)).await.release().await.unwrap();
            }
        };
        join_all((0..200).map(task)).await;
    }

    /// The time that this process has computed.
    fn cpu() -> Duration {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("the tests run on Linux");
        let words: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = words[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }
}
