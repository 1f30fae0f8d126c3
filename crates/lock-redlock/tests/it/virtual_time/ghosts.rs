//! Ghosts: entries of the wait queue without an acquisition, whose process still listens.
//!
//! A master that hung lines up a waiter long after it gave up. When it is handed the lock, its process returns it at once.

use lock_testkit::{acquiring, come, give_back, take};
use tokio::time::{Instant, sleep};

use super::fleet::Fleet;
use super::{LINE, MILLI, SECOND, away};

const GHOSTS: usize = 40;

#[tokio::test(start_paused = true)]
async fn what_is_handed_over_to_waiters_that_have_left_costs_nothing() {
    let fleet = Fleet::new(5).await;
    fleet.set_all(&away(1));
    let (holder, client) = (fleet.connect(20 * SECOND).await, fleet.connect(20 * SECOND).await);
    let guard = take(&holder, "a").await;
    // The queue entries on each master of acquisitions that have given up.
    let mut ghosts = Vec::new();
    for _ in 0..GHOSTS {
        let waiter = acquiring(client.mutex("a"));
        sleep(20 * MILLI).await;
        let first = |master| fleet.command(master, &format!("ZRANGE {LINE} 0 0")).array().unwrap()[0].clone();
        ghosts.push([0, 1, 2, 3, 4].map(first));
        waiter.abort();
        sleep(20 * MILLI).await;
    }
    give_back(guard).await;
    for round in 0..12 {
        let guard = take(&holder, "a").await;
        let mutex = client.mutex("a");
        let waiter = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
        sleep(20 * MILLI).await;
        for (since, ghost) in ghosts.iter().enumerate() {
            for (master, entry) in fleet.masters.iter().zip(ghost) {
                drop(master.command(&["ZADD", LINE, &since.to_string(), entry.text().unwrap()]));
            }
        }
        let released = Instant::now();
        give_back(guard).await;
        let (guard, came) = come(waiter).await;
        // A ghost that does not return the lock keeps it for a second.
        let took = came.saturating_duration_since(released);
        assert!(took < 900 * MILLI, "round {round}: {took:?}");
        give_back(guard).await;
        (0..5).for_each(|master| drop(fleet.command(master, &format!("DEL {LINE}"))));
    }
}
