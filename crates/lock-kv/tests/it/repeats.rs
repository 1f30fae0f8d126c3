//! A store, or the client of one, that sends every other swap twice: the answer is that the second one was refused.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Locks, Released, Token};
use lock_kv::KvConfig;
use lock_testkit::fake::Faults;
use lock_testkit::simulation::in_virtual_time;
use lock_testkit::{queue_up, take};

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
