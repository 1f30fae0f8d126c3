//! An adapter that reads what became of a swap without an answer, as the one of etcd does.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Clock;
use lock_kv::KvConfig;
use lock_testkit::fake::Faults;
use lock_testkit::simulation::in_virtual_time;
use lock_testkit::{take, until};
use tokio::time::sleep;

use crate::simulation::table::{Client, Link, Table, Versions};

const SEEDS: Range<u64> = 0..20;

/// It is executed and not answered, and the next one finds the value that it has written.
#[test]
fn a_renewal_is_not_taken_for_the_one_before() {
    SEEDS.for_each(|seed| {
        in_virtual_time(seed, async move {
            let (table, link) = (Arc::new(Table::new(Versions::Numbers)), Link::new(seed));
            // Time: virtual.
            let config = || KvConfig::new().command_timeout(Duration::from_secs(1)).clock(Clock::tokio());
            let one = config().connect(Client::new(&table, &link)).await.unwrap();
            let other = config().connect(Client::new(&table, &Link::new(seed + 100))).await.unwrap();
            // Time: virtual.
            link.settle_swaps(Some(Duration::from_millis(250)));
            let guard = take(&one, "a").await;
            let written = table.written("a");
            let set = |faults, late| link.set(faults, 0.0, Duration::from_secs(late));
            set(Faults { lose_reply: 1.0, ..Faults::default() }, 0);
            until("a renewal is executed", async || table.written("a") > written).await;
            // From now on the other client has seen that the holder lives.
            assert_eq!(other.inspect("a").await.unwrap().holders.len(), 1);
            set(Faults { lose_request: 1.0, ..Faults::default() }, 1_000_000);
            // Time: virtual; the next renewal begins.
            sleep(Duration::from_millis(2_000 + 50 * seed)).await;
            // The request that is under way is sent again, and gets an answer.
            set(Faults::default(), 0);
            // Time: virtual; shorter than until the next renewal.
            sleep(Duration::from_millis(700)).await;
            set(Faults { reset_before: 1.0, ..Faults::default() }, 0);
            while other.mutex("a").try_acquire().await.unwrap().is_none() {
                // Time: virtual.
                sleep(Duration::from_millis(20)).await;
            }
            assert!(!guard.is_valid(), "seed {seed}: two have the lock");
        });
    });
}
