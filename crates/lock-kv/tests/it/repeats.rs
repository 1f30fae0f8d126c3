//! A store, or the client of one, that sends swaps twice: the answer is that the second one was refused, or what the value says.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, Locks, Released, Token};
use lock_kv::KvConfig;
use lock_testkit::fake::Faults;
use lock_testkit::simulation::in_virtual_time;
use lock_testkit::{queue_up, take, until};
use tokio::time::sleep;

use crate::simulation::table::{Client, Link, Table, Versions};

const SEEDS: Range<u64> = 0..20;

async fn client(table: &Arc<Table>, seed: u64, repeats: f64) -> Locks {
    let link = Link::new(seed);
    link.set(Faults { delay_ms: 0..=1, ..Faults::default() }, 0.0, Duration::ZERO);
    let locks = KvConfig::new().connect(Client::new(table, &link)).await.unwrap();
    link.repeat_swaps(repeats);
    locks
}

#[test]
fn what_was_done_is_answered_so() {
    SEEDS.for_each(|seed| {
        in_virtual_time(seed, async move {
            let table = Arc::new(Table::new(Versions::Numbers));
            let locks = client(&table, seed, 0.5).await;
            let guard = take(&locks, "a").await;
            guard.extend(Duration::from_secs(60)).await.unwrap();
            guard.raise_token(Token::new(guard.token().get() + 1_000_000_000)).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Released::Released);
            let written = table.written("a");
            // As few swaps as without repetitions: none is done again.
            assert_eq!(written, 4, "{written} values");
        });
    });
}

#[test]
fn a_lock_is_handed_over_within_the_process() {
    SEEDS.for_each(|seed| {
        in_virtual_time(seed, async move {
            let table = Arc::new(Table::new(Versions::Hashes));
            let locks = client(&table, seed, 0.5).await;
            // More than one after the other have without a request.
            let tasks = (0..100).map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move { take(&locks, "a").await.release().await.unwrap() })
            });
            for task in tasks.collect::<Vec<_>>() {
                assert_eq!(task.await.unwrap(), Released::Released);
            }
            assert_eq!(table.left("a"), 0);
        });
    });
}

#[test]
fn a_lock_is_broken_once() {
    SEEDS.for_each(|seed| {
        in_virtual_time(seed, async move {
            let table = Arc::new(Table::new(Versions::Numbers));
            let (one, other) = (client(&table, 100, 0.0).await, client(&table, 101, 0.0).await);
            let breaks = client(&table, seed, 0.5).await;
            let broken = take(&one, "a").await;
            let waiter = queue_up(&other, "a").await;
            assert!(breaks.break_lock("a").await.unwrap());
            let next = waiter.await.unwrap();
            assert_eq!(broken.release().await.unwrap(), Released::AlreadyLost);
            assert_eq!(next.release().await.unwrap(), Released::Released, "the next holder keeps it");
            assert!(!breaks.break_lock("a").await.unwrap());
        });
    });
}

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
