//! Many tasks at once, each with a lock of its own.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Locks};
use lock_testkit::{PATIENCE, by_tier, crowd, give_back, soon, take, until};
use tokio::time::timeout;

use crate::site::{SESSIONS, Site, connect};

/// For a crowd on a busy machine.
const LONG: Duration = Duration::from_secs(4 * PATIENCE.as_secs());
const HELD: &str = "SELECT count(*) FROM polylock.lock WHERE owner IS NOT NULL OR queued";

/// With the defaults, whose timeouts are far shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_grants_the_locks_of_a_crowd() {
    let (site, tasks) = (Site::private().await, by_tier(5_000, 5_000, 20_000));
    let locks = connect(&site.url()).await.unwrap();
    let (guards, error) = crowd(&locks, tasks).await;
    // On a busy host a few calls take too long.
    assert!(guards.len() * 100 >= tasks * 95, "{} of {tasks}: {error:?}", guards.len());
    assert!(site.number(SESSIONS).await <= 10, "twice the usual number");

    // They are held, and released as fast.
    assert!(guards.iter().all(|guard| guard.is_valid()));
    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(LONG, join_all(released)).await.expect("all of them end");
    for error in released.into_iter().filter_map(|released| released.unwrap().err()) {
        // On a busy host; the release goes on in the background.
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    until("all are released", async || site.number(HELD).await == 0).await;
}

/// However many wait for their turn. Half of them give up before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_noticed_by_a_crowd_of_which_hardly_anything_is_sent() {
    let site = Site::private().await;
    let locks = connect(&site.url()).await.unwrap();
    give_back(take(&locks, "first").await).await;
    site.server.stop();
    let acquired = (0..5000).map(|task| {
        let mutex = locks.mutex(format!("lock/{task}"));
        // Time: some give up before they had their turn.
        let patience = if task % 2 == 0 { LONG } else { Duration::from_secs(1) };
        tokio::spawn(
            async move { timeout(patience, mutex.acquire()).await.map(|acquired| acquired.map(drop)) },
        )
    });
    let acquired = timeout(LONG, join_all(acquired)).await.expect("all of them end");
    let ended: Vec<_> = acquired.into_iter().filter_map(|acquired| acquired.unwrap().ok()).collect();
    assert!(ended.len() >= 2500, "{}", ended.len());
    for ended in ended {
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    site.server.cont();
    soon(locks.backend().settle()).await;
    assert_eq!(site.number(HELD).await, 0);
    let names = site.number("SELECT count(*) FROM polylock.lock").await;
    assert!(names <= 10, "{names} names were asked for over 4 connections");
    give_back(take(&locks, "next").await).await;
}

/// What a night has time for.
mod deep {
    use super::*;

    const SIZE: &str = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
                        WHERE relnamespace = 'polylock'::regnamespace AND relkind = 'r'";
    const HOT: &str = "SELECT (100 * sum(n_tup_hot_upd) / sum(n_tup_upd))::bigint FROM pg_stat_user_tables
                       WHERE schemaname = 'polylock' AND relname IN ('lock', 'lease')";

    /// By twice as many tasks as there are locks, so that some wait.
    async fn pairs(locks: &Locks, count: usize) {
        let task = async |task: usize| {
            for _ in 0..count / 200 {
                give_back(take(locks, &format!("lock/{}", task % 100)).await).await;
            }
        };
        join_all((0..200).map(task)).await;
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
        let (after, hot) = (site.number(SIZE).await, site.number(HOT).await);
        let later = after + (after - before).max(0) * 100;
        println!("{before} bytes, then {after}; {hot} % of the updates are HOT; after ten million {later}");
        assert!(later < 10_000_000 && hot >= 99);
    }
}
