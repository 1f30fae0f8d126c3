//! Clients on several runtimes.

use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::yield_now;

use crate::site::{Site, take};

/// Its tasks have a connection, or are next in line for one, and go on only when it has computed.
#[test]
#[ignore = "full: a thread computes for some seconds"]
fn a_thread_that_computes_keeps_no_connection_from_renewals() {
    let connections = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, guard, _site) = connections.block_on(async {
        let site = Site::private().await;
        let locks = site.locks("&ttl=2s").await;
        let guard = take(&locks, "held").await;
        (locks, guard, site)
    });
    let clients = Builder::new_current_thread().enable_all().build().unwrap();
    clients.block_on(async {
        for number in 0..16 {
            let mutex = locks.mutex(format!("other {number}"));
            drop(tokio::spawn(async move { mutex.acquire().await }));
        }
        yield_now().await;
        thread::sleep(Duration::from_secs(5));
    });
    assert!(guard.is_valid());
    // Its tasks give back what they have.
    drop(clients);
    connections.block_on(guard.release()).unwrap();
}
