//! Crowds and crashes, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{Clock, GuardState, Locks};
use lock_kv::{KvConfig, Registers};
use lock_testkit::fake::Faults;
use lock_testkit::simulation::in_virtual_time;
use lock_testkit::until;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::simulation::table::{Client, Link, Table, Versions};

const TTL: Duration = Duration::from_secs(10);
/// Readers whose renewals together take less than a store can do that needs a tenth of a second for each.
const MANY: u64 = 20;
/// As many waiters as have room in a record.
const CROWD: u64 = 128;

async fn client(table: &Arc<Table>, clock: &Clock, seed: u64) -> (Locks, Arc<Link>) {
    let link = Link::new(seed);
    link.set(Faults { delay_ms: 0..=1, ..Faults::default() }, 0.0, Duration::ZERO);
    let config = KvConfig::new().ttl(TTL).clock(clock.clone());
    (config.connect(Client::new(table, &link)).await.unwrap(), link)
}

/// A client of a store on a slow disk, or in another region.
async fn far_client(table: &Arc<Table>, clock: &Clock, seed: u64) -> Locks {
    let link = Link::new(seed);
    link.set(Faults { delay_ms: 40..=50, ..Faults::default() }, 0.0, Duration::ZERO);
    let config = KvConfig::new().ttl(TTL).clock(clock.clone());
    // Time: reads are not what it is about.
    config.connect(Client::new(table, &link).with_poll(Duration::from_millis(100))).await.unwrap()
}

/// They only say that they live, and it has to be renewed.
#[test]
fn a_crowd_that_waits_takes_no_lock_from_its_holder() {
    in_virtual_time(5, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let holder = far_client(&table, &clock, 100).await;
        let guard = holder.mutex("crowd").acquire().await.unwrap();
        let mut tasks = Vec::new();
        for seed in 0..CROWD / 2 {
            let locks = far_client(&table, &clock, seed).await;
            tasks.push(tokio::spawn(async move { locks.mutex("crowd").acquire().await.map(drop) }));
        }
        until("all wait", async || table.left("crowd") == 1 + CROWD as usize / 2).await;
        let written = table.written("crowd");
        sleep(TTL * 10).await;
        assert!(guard.is_valid(), "{:?}", guard.state());
        println!("{} values in ten ttl", table.written("crowd") - written);
        assert_eq!(table.left("crowd"), 1 + CROWD as usize / 2, "all wait still");
        tasks.iter().for_each(|task| task.abort());
    });
}

/// Their renewals are due at the same time, and each ends when its own swap does.
#[test]
fn a_lock_that_cannot_be_renewed_takes_no_other_one_with_it() {
    in_virtual_time(7, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        // Time: it is no longer than a request may take.
        let config = KvConfig::new().ttl(Duration::from_secs(5)).clock(clock);
        let locks = config.connect(Client::new(&table, &Link::new(1))).await.unwrap();
        let (lost, kept) = (locks.mutex("contended").acquire().await, locks.mutex("other").acquire().await);
        let (lost, kept) = (lost.unwrap(), kept.unwrap());
        table.contend("contended");
        let was_suspect = async {
            while lost.state() == GuardState::Valid {
                // Time: far shorter than what is left then.
                sleep(Duration::from_millis(20)).await;
            }
            lost.state() == GuardState::Suspect
        };
        assert!(was_suspect.await);
        sleep(TTL * 5).await;
        assert!(!lost.is_valid() && kept.is_valid(), "{:?} {:?}", lost.state(), kept.state());
        kept.release().await.unwrap();
    });
}

/// Others say that they live, and hand it over, before each of its swaps.
#[test]
fn a_lock_whose_queue_cannot_be_entered_is_busy_and_its_store_is_not_silent() {
    in_virtual_time(8, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let (holder, _) = client(&table, &clock, 1).await;
        let guard = holder.mutex("a").acquire().await.unwrap();
        table.contend("a");
        let (locks, _) = client(&table, &clock, 2).await;
        for patience in [TTL / 50, TTL / 5] {
            let began = Instant::now();
            let acquired = locks.mutex("a").try_acquire_for(patience).await;
            assert!(acquired.is_ok_and(|acquired| acquired.is_none()), "it is held");
            assert!(began.elapsed() >= patience);
        }
        assert!(guard.is_valid());
    });
}

#[test]
fn many_that_share_a_lock_keep_it() {
    in_virtual_time(6, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let mut guards = Vec::new();
        for seed in 0..MANY {
            let lock = far_client(&table, &clock, seed).await.rw("crowd");
            guards.push(lock.read().await.unwrap());
        }
        sleep(TTL * 10).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {MANY}");
    });
}

#[test]
#[ignore = "full: two hundred clients"]
fn two_hundred_clients_get_a_lock_one_after_the_other() {
    in_virtual_time(1, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let (holder, _) = client(&table, &clock, 100).await;
        let first = holder.mutex("crowd").acquire().await.unwrap();
        let mut tasks = Vec::new();
        for seed in 0..200 {
            let (locks, _) = client(&table, &clock, seed).await;
            let table = Arc::clone(&table);
            tasks.push(tokio::spawn(async move {
                let guard = locks.mutex("crowd").acquire().await.unwrap();
                // The holder and those that have room; the others poll.
                assert!(table.left("crowd") <= 1 + CROWD as usize);
                guard.release().await.unwrap();
            }));
        }
        // All of them wait by then.
        sleep(TTL / 10).await;
        let (queued, began) = (table.written("crowd"), Instant::now());
        first.release().await.unwrap();
        for task in tasks {
            timeout(TTL * 60, task).await.expect("everybody gets it").unwrap();
        }
        assert_eq!(table.left("crowd"), 0);
        // Those that wait write when they come, and now and then that they live.
        let (written, took) = (table.written("crowd"), began.elapsed());
        println!("{queued} values until all waited, {} for 200 holders, in {took:?}", written - queued);
        assert!(written - queued < 4_000, "{written} values were written for 200 holders");
    });
}

/// Those that join the queue give way to those that confirm a grant, and join all the same. With delays that vary: where all are the same, a
/// lock that nobody holds for a moment may go round between a few.
#[test]
fn everybody_has_a_lock_that_changes_hands_all_the_time() {
    const CLIENTS: usize = 24;
    const GRANTS: usize = 20;
    for delay_ms in [3..=6, 20..=25] {
        in_virtual_time(12, async {
            let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
            let grants: Arc<Vec<_>> = Arc::new((0..CLIENTS).map(|_| AtomicUsize::new(0)).collect());
            let mut tasks = Vec::new();
            for at in 0..CLIENTS {
                let link = Link::new(at as u64);
                let faults = Faults { delay_ms: delay_ms.clone(), ..Faults::default() };
                link.set(faults, 0.0, Duration::ZERO);
                let config = KvConfig::new().ttl(TTL).clock(clock.clone());
                let locks = config.connect(Client::new(&table, &link).notifying(true)).await.unwrap();
                let grants = Arc::clone(&grants);
                tasks.push(tokio::spawn(async move {
                    let granted =
                        || grants.iter().map(|grants| grants.load(Ordering::Relaxed)).sum::<usize>();
                    while granted() < GRANTS * CLIENTS {
                        let guard = locks.mutex("crowd").acquire().await.unwrap();
                        grants[at].fetch_add(1, Ordering::Relaxed);
                        guard.release().await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            println!("{grants:?}");
            assert!(grants.iter().all(|grants| grants.load(Ordering::Relaxed) > GRANTS / 2), "{grants:?}");
        });
    }
}

#[test]
fn a_crashed_holders_lock_is_free_a_ttl_after_somebody_waits() {
    in_virtual_time(2, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Hashes)), Clock::tokio());
        let (crashed, link) = client(&table, &clock, 1).await;
        let guard = crashed.mutex("a").acquire().await.unwrap();
        // Nothing of it arrives any more.
        link.set(Faults { refuse: 1.0, ..Faults::default() }, 0.0, Duration::ZERO);
        sleep(TTL * 10).await;
        assert!(!guard.is_valid());
        let (locks, _) = client(&table, &clock, 2).await;
        let began = Instant::now();
        let next = locks.mutex("a").acquire().await.unwrap();
        assert!(began.elapsed() >= TTL, "nobody had seen that it does not change");
        assert!(began.elapsed() < TTL + Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    });
}

/// Each that is granted the lock after its death keeps it for a grace period.
#[test]
fn a_host_that_dies_with_many_waiters_holds_the_lock_up_once() {
    in_virtual_time(10, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let connect = async |seed| {
            let link = Link::new(seed);
            link.set(Faults { delay_ms: 0..=1, ..Faults::default() }, 0.0, Duration::ZERO);
            // Time: shorter than so many waiters live after they have said so.
            let config = KvConfig::new().ttl(Duration::from_secs(2)).clock(clock.clone());
            (config.connect(Client::new(&table, &link)).await.unwrap(), link)
        };
        let (holder, link) = connect(100).await;
        let (guard, mut dying) = (holder.mutex("a").acquire().await.unwrap(), vec![link]);
        let mut tasks = Vec::new();
        for seed in 0..24 {
            let (locks, link) = connect(seed).await;
            tasks.push(tokio::spawn(async move { locks.mutex("a").acquire().await }));
            until("it waits", async || table.left("a") == 2 + seed as usize).await;
            if seed < 20 {
                dying.push(link);
            }
        }
        // All of them have said more than once that they live.
        sleep(TTL * 2).await;
        assert!(guard.is_valid());
        for link in dying {
            link.set(Faults { refuse: 1.0, ..Faults::default() }, 0.0, Duration::ZERO);
        }
        let died = Instant::now();
        let alive = tasks.split_off(20);
        let (first, ..) = futures_util::future::select_all(alive).await;
        let took = died.elapsed();
        println!("granted after {took:?}");
        // Time: two leases and two seconds, as is promised of a crash.
        assert!(took < Duration::from_secs(6), "{took:?}");
        first.unwrap().unwrap().release().await.unwrap();
        tasks.iter().for_each(|task| task.abort());
    });
}

#[test]
fn waiters_that_have_gone_leave_their_room_to_others() {
    in_virtual_time(4, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let (holder, _) = client(&table, &clock, 1).await;
        let guard = holder.mutex("a").acquire().await.unwrap();
        let (locks, link) = client(&table, &clock, 2).await;
        drop(tokio::spawn(async move { locks.mutex("a").acquire().await.map(drop) }));
        until("it waits", async || table.left("a") == 2).await;
        link.set(Faults { refuse: 1.0, ..Faults::default() }, 0.0, Duration::ZERO);
        // As many of it as have room.
        let other = Client::new(&table, &Link::new(3));
        let found = other.read("lock/a").await.unwrap().unwrap();
        let mut record: Value = serde_json::from_slice(&found.value).unwrap();
        let waiter = record["queue"][0].clone();
        record["queue"] = (0..CROWD)
            .map(|number| {
                let owner = format!("{number:03}{}", &waiter["owner"].as_str().unwrap()[3..]);
                let mut waiter = waiter.clone();
                waiter["owner"] = owner.into();
                waiter
            })
            .collect();
        let record = serde_json::to_vec(&record).unwrap();
        other.swap("lock/a", Some(&found.version), &record).await.unwrap().unwrap();
        let (locks, _) = client(&table, &clock, 4).await;
        let waiting = tokio::spawn(async move { locks.mutex("a").acquire().await.unwrap().release().await });
        until("it waits alone", async || table.left("a") == 2).await;
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn a_notified_waiter_has_the_lock_before_it_looks() {
    in_virtual_time(8, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let connect = async |seed| {
            let link = Link::new(seed);
            link.set(Faults { delay_ms: 1..=1, ..Faults::default() }, 0.0, Duration::ZERO);
            let config = KvConfig::new().ttl(TTL).clock(clock.clone());
            config.connect(Client::new(&table, &link).notifying(true)).await.unwrap()
        };
        let (one, two) = (connect(1).await, connect(2).await);
        let guard = one.mutex("a").acquire().await.unwrap();
        let waiting = two.mutex("a");
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        until("it waits", async || table.left("a") == 2).await;
        let (began, reads) = (Instant::now(), table.reads());
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert_eq!(table.reads(), reads, "the notice carries the record");
        // Time: it looks after more than a second.
        assert!(began.elapsed() < Duration::from_millis(20), "{:?}", began.elapsed());
        assert!(next.is_valid());
        until("the notice is removed", async || table.notices() == 0).await;
        next.release().await.unwrap();
    });
}

/// It is there for good, as if nobody had removed it.
#[test]
fn a_waiter_whose_notice_is_old_does_not_ask_all_the_time() {
    in_virtual_time(9, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let (holder, _) = client(&table, &clock, 1).await;
        let guard = holder.mutex("a").acquire().await.unwrap();
        let link = Link::new(2);
        let config = KvConfig::new().ttl(TTL).clock(clock);
        let locks = config.connect(Client::new(&table, &link).notifying(true)).await.unwrap();
        let waiting = tokio::spawn(async move { locks.mutex("a").acquire().await });
        until("it waits", async || table.left("a") == 2).await;
        // Longer than a grant lasts until it is confirmed.
        sleep(TTL).await;
        table.tell_the_first("a");
        let reads = table.reads();
        sleep(TTL).await;
        let reads = table.reads() - reads;
        println!("{reads} reads in a ttl");
        assert!(reads < 2_000, "{reads} reads");
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// Its clock tells when the entry was written, and that is believed if it is not yet to come.
#[test]
fn a_crashed_holders_lock_is_free_at_once_for_processes_of_its_boot() {
    in_virtual_time(3, async {
        let (table, clock) = (Arc::new(Table::new(Versions::Numbers)), Clock::tokio());
        let connect = async |clock: Clock, boot: &str| {
            let link = Link::new(1);
            let config = KvConfig::new().ttl(TTL).clock(clock).boot_id(boot);
            (config.connect(Client::new(&table, &link)).await.unwrap(), link)
        };
        let ahead = {
            let clock = clock.clone();
            Clock::from_fn(move || clock.now() + TTL * 100)
        };
        // Each looks once, as a process of cron does.
        let is_free = async |boot: &str, lock: &str| {
            let (locks, _) = connect(clock.clone(), boot).await;
            locks.mutex(lock).try_acquire().await.unwrap().is_some()
        };
        let (crashed, link) = connect(clock.clone(), "one").await;
        let guard = crashed.mutex("a").acquire().await.unwrap();
        let (of_the_future, other_link) = connect(ahead, "one").await;
        let other = of_the_future.mutex("b").acquire().await.unwrap();
        for link in [link, other_link] {
            link.set(Faults { refuse: 1.0, ..Faults::default() }, 0.0, Duration::ZERO);
        }
        while guard.is_valid() {
            assert!(!is_free("one", "a").await, "the holder counts on it");
            sleep(TTL / 100).await;
        }
        sleep(TTL * 10).await;
        assert!(!other.is_valid());
        assert!(!is_free("another", "a").await, "its clock is another one");
        assert!(is_free("one", "a").await);
        assert!(!is_free("one", "b").await, "it is as one that was written now");
        let (locks, _) = connect(clock.clone(), "one").await;
        let next = timeout(TTL * 2, locks.mutex("b").acquire()).await;
        next.expect("it is free a ttl after that").unwrap().release().await.unwrap();
    });
}
