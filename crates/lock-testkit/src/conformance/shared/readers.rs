//! Many readers or one writer.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::Guard;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::helpers::{
    LEASE_SLACK, LONG, NOISE, PATIENCE, SOON, answered, client, eventually, fresh, give_back, nothing_left,
    short_client, wait_for_waiters, within,
};
use crate::conformance::shared::sharers::Share::Reader;
use crate::helpers::cancel::cancel_after;

pub(crate) async fn readers_share_a_lock(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let [first, second, third] =
        [Reader.take(&one, &name).await, Reader.take(&two, &name).await, Reader.take(&one, &name).await];
    for guard in [&first, &second, &third] {
        assert!(guard.is_valid() && guard.name().as_str() == name);
    }
    must_not_write(&one, &name).await;
    // They come and go in any order.
    give_back(second).await;
    must_not_write(&two, &name).await;
    let fourth = Reader.try_take(&two, &name).await.expect("readers share the lock");
    give_back(first).await;
    give_back(fourth).await;
    must_not_write(&two, &name).await;
    assert!(third.is_valid());
    give_back(third).await;
    let writer = try_write(&two, &name).await.expect("no reader is left");
    Reader.must_be_busy(&one, &name).await;
    Reader.must_be_busy(&two, &name).await;
    give_back(writer).await;
    give_back(Reader.take(&one, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn all_readers_that_try_at_once_get_the_lock(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    for _ in 0..5 {
        let mut trying = JoinSet::new();
        for task in 0..8 {
            let (locks, lock) = (locks.clone(), locks.rw(&name));
            trying.spawn(async move {
                match task % 3 {
                    0 => lock.try_read().await,
                    1 => answered(&locks, || lock.try_read_for(Duration::ZERO)).await,
                    _ => lock.try_read_for(SOON).await,
                }
            });
        }
        let mut guards = Vec::new();
        while let Some(tried) = within(SOON, "the answers", trying.join_next()).await {
            guards.push(tried.unwrap().unwrap().expect("no writer holds the lock or waits for it"));
        }
        for guard in guards {
            give_back(guard).await;
        }
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_writer_waits_for_all_readers(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let (first, second) = (Reader.take(&one, &name).await, Reader.take(&two, &name).await);
    let writer = write(&three, &name);
    wait_for_waiters(&one, &name, 1).await;
    assert!(!writer.is_finished(), "two read, and a writer got the lock");
    give_back(first).await;
    sleep(NOISE).await;
    assert!(!writer.is_finished(), "one reads, and a writer got the lock");
    assert!(second.is_valid());
    give_back(second).await;
    let writer = within(SOON, "the writer to get the lock", writer).await.unwrap();
    Reader.must_be_busy(&one, &name).await;
    Reader.must_be_busy(&three, &name).await;
    must_not_write(&two, &name).await;
    let readers = [Reader.wait(&one, &name), Reader.wait(&two, &name)];
    sleep(NOISE).await;
    assert!(readers.iter().all(|reader| !reader.is_finished()), "one writes, and a reader got the lock");
    give_back(writer).await;
    give_back_all(readers).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn readers_behind_a_waiting_writer_wait(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let held = Reader.take(&one, &name).await;
    let writer = write(&two, &name);
    wait_for_waiters(&one, &name, 1).await;
    let (sender, mut came) = mpsc::unbounded_channel();
    let mut readers = Vec::new();
    for locks in [&one, &two, &three] {
        Reader.must_be_busy(locks, &name).await;
        let (reader, sender) = (Reader.wait(locks, &name), sender.clone());
        readers.push(tokio::spawn(async move {
            let guard = reader.await.unwrap();
            sender.send(()).unwrap();
            guard
        }));
    }
    sleep(NOISE).await;
    assert!(came.try_recv().is_err(), "a reader came before a writer that waited already");
    give_back(held).await;
    let writer = within(SOON, "the writer to get the lock", writer).await.unwrap();
    sleep(NOISE / 3).await;
    assert!(came.try_recv().is_err(), "one writes, and a reader got the lock");
    give_back(writer).await;
    // All at once: each keeps its guard until the last has come.
    for _ in 0..3 {
        within(SOON, "the readers to get the lock", came.recv()).await;
    }
    must_not_write(&one, &name).await;
    give_back_all(readers).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn readers_behind_a_writer_that_gave_up_go_on(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let held = Reader.take(&one, &name).await;
    // Of another process, and of the same.
    for locks in [&three, &two] {
        let lock = two.rw(&name);
        let writer = tokio::spawn(async move { lock.try_write_for(SOON / 2).await });
        wait_for_waiters(&one, &name, 1).await;
        let reader = Reader.wait(locks, &name);
        assert!(within(SOON, "the deadline", writer).await.unwrap().unwrap().is_none(), "one reads");
        let reader = within(SOON, "the reader to get the lock", reader).await.unwrap();
        assert!(held.is_valid() && reader.token() > held.token());
        give_back(reader).await;
    }
    give_back(held).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_cancelled_writer_lets_readers_in(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let held = Reader.take(&one, &name).await;
    let mut done = false;
    for k in 0..1_000 {
        let lock = two.rw(&name);
        let waiting = lock.try_write_for(NOISE);
        let waited = within(SOON, "the deadline", cancel_after(k, waiting)).await;
        done = waited.is_some();
        assert!(waited.transpose().unwrap().flatten().is_none(), "one reads");
        // The roll-back may take a moment.
        for locks in [&two, &three] {
            let tried = || Reader.try_take(locks, &name);
            give_back(eventually(SOON, "a reader to be let in", tried).await).await;
        }
        if done {
            break;
        }
    }
    assert!(done, "the deadline was not kept");
    give_back(held).await;
    give_back(within(SOON, "the lock", write(&three, &name)).await.unwrap()).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_stream_of_readers_starves_no_writer(harness: &dyn Harness) {
    let (clients, name) = ([client(harness).await, client(harness).await], fresh());
    let (stop, mut stream) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for (number, locks) in (0..).zip(clients.iter().cycle().take(6)) {
        let (lock, stop) = (locks.rw(&name), Arc::clone(&stop));
        stream.spawn(async move {
            // There is a reader at any time.
            sleep(number * Duration::from_millis(7)).await;
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.read().await.unwrap();
                sleep(Duration::from_millis(40)).await;
                give_back(guard).await;
            }
        });
    }
    sleep(NOISE).await;
    let other = client(harness).await;
    for locks in [&other, &clients[0], &other] {
        let writer = within(SOON, "the writer to get the lock", locks.rw(&name).write()).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        give_back(writer).await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = within(PATIENCE, "the end of the stream", stream.join_next()).await {
        ended.expect("no reader fails");
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_stream_of_writers_starves_no_reader(harness: &dyn Harness) {
    let (clients, name) = ([client(harness).await, client(harness).await], fresh());
    let (stop, mut stream) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for locks in clients.iter().cycle().take(4) {
        let (lock, stop) = (locks.rw(&name), Arc::clone(&stop));
        stream.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.write().await.unwrap();
                sleep(Duration::from_millis(10)).await;
                give_back(guard).await;
            }
        });
    }
    sleep(NOISE).await;
    let other = client(harness).await;
    for locks in [&other, &clients[0], &other] {
        give_back(within(SOON, "the reader to get the lock", locks.rw(&name).read()).await.unwrap()).await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = within(PATIENCE, "the end of the stream", stream.join_next()).await {
        ended.expect("no writer fails");
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_dead_reader_blocks_until_its_lease_ends(harness: &dyn Harness) {
    let (one, two, three, name) =
        (short_client(harness).await, client(harness).await, client(harness).await, fresh());
    let ttl = harness.short_lease();
    let alive = Reader.take(&two, &name).await;
    mem::forget(Reader.take_fixed(&one, &name, ttl).await);
    let writer = write(&three, &name);
    sleep(ttl + LEASE_SLACK / 2).await;
    assert!(!writer.is_finished(), "one reads on, and a writer got the lock");
    assert!(alive.is_valid());
    give_back(alive).await;
    give_back(within(SOON, "the writer to get the lock", writer).await.unwrap()).await;

    // Without another reader.
    let dead = Reader.take_fixed(&one, &name, ttl).await;
    let (start, token) = (Instant::now(), dead.token());
    mem::forget(dead);
    let writer = within(ttl + LEASE_SLACK, "the writer to get the lock", write(&three, &name)).await.unwrap();
    assert!(start.elapsed() >= ttl / 2, "got the lock after {:?}, a lease lasts {ttl:?}", start.elapsed());
    assert!(writer.token() > token);
    give_back(writer).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_released_reader_does_not_keep_the_lock(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, short_client(harness).await, fresh());
    let ttl = harness.short_lease();
    for long_first in [true, false] {
        let short = async || mem::forget(Reader.take_fixed(&two, &name, ttl).await);
        if !long_first {
            short().await;
        }
        let long = Reader.take_fixed(&one, &name, 6 * LONG).await;
        if long_first {
            short().await;
        }
        give_back(long).await;
        must_not_write(&one, &name).await;
        let writer = within(ttl + LEASE_SLACK, "the lock", write(&two, &name)).await;
        give_back(writer.unwrap()).await;
        nothing_left(harness, &name).await;
    }
}

pub(crate) async fn readers_and_writers_are_not_exchanged(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let (lock, moment) = (locks.rw(&name), NOISE);
    let reader = Reader.take(&locks, &name).await;
    must_not_write(&locks, &name).await;
    let upgraded = answered(&locks, || lock.try_write_for(moment)).await.unwrap();
    assert!(upgraded.is_none(), "a reader waits for itself when it asks to write");
    assert!(reader.is_valid());
    give_back(reader).await;
    let writer =
        lock.try_write_until(Instant::now() + SOON).await.unwrap().expect("no reader holds the lock");
    Reader.must_be_busy(&locks, &name).await;
    let downgraded = answered(&locks, || lock.try_read_until(Instant::now() + moment)).await.unwrap();
    assert!(downgraded.is_none(), "a writer waits for itself when it asks to read");
    assert!(writer.is_valid());
    give_back(writer).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn readers_never_see_a_half_done_write(harness: &dyn Harness) {
    let name = fresh();
    let (halves, mut running) = (Arc::new([AtomicU64::new(0), AtomicU64::new(0)]), JoinSet::new());
    for locks in [client(harness).await, client(harness).await] {
        for _ in 0..2 {
            let (lock, halves) = (locks.rw(&name), Arc::clone(&halves));
            running.spawn(async move {
                for _ in 0..8 {
                    let guard = within(PATIENCE, "a turn", lock.write()).await.unwrap();
                    let [one, two] = [0, 1].map(|half| halves[half].load(Ordering::SeqCst));
                    assert_eq!(one, two, "two write");
                    halves[0].store(one + 1, Ordering::SeqCst);
                    sleep(Duration::from_millis(1)).await;
                    halves[1].store(two + 1, Ordering::SeqCst);
                    give_back(guard).await;
                }
            });
        }
        for _ in 0..4 {
            let (lock, halves) = (locks.rw(&name), Arc::clone(&halves));
            running.spawn(async move {
                for _ in 0..8 {
                    let guard = within(PATIENCE, "a turn", lock.read()).await.unwrap();
                    let one = halves[0].load(Ordering::SeqCst);
                    sleep(Duration::from_millis(1)).await;
                    assert_eq!(one, halves[1].load(Ordering::SeqCst), "one reads while another writes");
                    give_back(guard).await;
                }
            });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no task fails");
    }
    assert_eq!(halves[0].load(Ordering::SeqCst), 32, "updates were lost: two wrote");
    nothing_left(harness, &name).await;
}

/// Waits to write, in the background.
pub(crate) fn write(locks: &Client, name: &str) -> JoinHandle<Guard> {
    let lock = locks.rw(name);
    tokio::spawn(async move { lock.write().await.unwrap() })
}

async fn try_write(locks: &Client, name: &str) -> Option<Guard> {
    let written = within(SOON, "the answer of try_write", locks.rw(name).try_write()).await;
    written.unwrap_or_else(|error| panic!("contention is not an error: {error:?}"))
}

pub(crate) async fn must_not_write(locks: &Client, name: &str) {
    let writer = try_write(locks, name).await;
    assert!(writer.is_none(), "{name:?} is held, and there is a writer: {writer:?}");
}

pub(crate) async fn give_back_all(guards: impl IntoIterator<Item = JoinHandle<Guard>>) {
    let mut came = Vec::new();
    for guard in guards {
        came.push(within(SOON, "the readers to get the lock", guard).await.unwrap());
    }
    for guard in came {
        assert!(guard.is_valid());
        give_back(guard).await;
    }
}
