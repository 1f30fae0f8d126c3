//! A holder that computes when it was handed the lock.

use std::thread;
use std::time::Duration;

use lock_testkit::{RedisFive, come, give_back, take};
use tokio::runtime::Builder;

use crate::common::{PATIENT, backend, client, lined_up, run};

/// Time: longer than a master keeps a lock for a waiter that does not confirm.
const COMPUTES: Duration = Duration::from_millis(1_300);

/// Some do so in asynchronous code, and their lock must not end for that reason.
#[test]
fn a_holder_that_keeps_its_thread_busy_keeps_a_lock_that_was_handed_over() {
    let mut one_thread = Builder::new_current_thread();
    let [mut one_worker, mut two_workers] = [1, 2].map(|workers| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(workers);
        builder
    });
    for builder in [&mut one_thread, &mut one_worker, &mut two_workers] {
        builder.enable_all().build().unwrap().block_on(async {
            let five = RedisFive::start().await.unwrap();
            let options = format!("ttl=60s&longest_ttl=60s&{PATIENT}");
            let holder = client(&five, &options).await;
            let (backend, waiting) = backend(&format!("{}?{options}", five.url())).await;
            let guard = take(&holder, "a").await;
            let waiter = tokio::spawn(async move {
                let guard = take(&waiting, "a").await;
                // Time: as above.
                thread::sleep(COMPUTES);
                guard
            });
            lined_up(&five, "a", 1).await;
            give_back(guard).await;
            let guard = come(waiter).await;
            assert_eq!(backend.votes().handed_over, 1, "{}", backend.votes());
            let mut left = Vec::new();
            for master in five.servers() {
                left.push(run(master, "PTTL lock:a").await.int().unwrap());
            }
            // The others may have been asked to extend what the release had not reached yet.
            assert!(left.iter().filter(|left| **left > 40_000).count() >= 3, "so many ms are left: {left:?}");
            drop(guard);
        });
    }
}
