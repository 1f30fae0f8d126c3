//! Writers that become readers.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Guard, GuardState, Locks, LossReason, Released, Result};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::conformance::client::Client;
use crate::conformance::helpers::{
    LEASE_SLACK, LONG, LOOK, NOISE, PATIENCE, SOON, client, client_with, eventually, fresh, give_back,
    nothing_left, short_client, take, wait_for_waiters, within,
};
use crate::conformance::shared::readers::{give_back_all, must_not_write, write};
use crate::conformance::shared::sharers::Share::Reader;
use crate::conformance::{Fault, Harness};
use crate::helpers::cancel::cancel_after;

pub(crate) async fn a_writer_becomes_a_reader(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut guard = within(SOON, "the lock", one.rw(&name).write()).await.unwrap();
    let (token, owner) = (guard.token(), guard.owner());
    let waiting = [Reader.wait(&one, &name), Reader.wait(&two, &name)];
    wait_for_waiters(&one, &name, 2).await;
    assert!(waiting.iter().all(|reader| !reader.is_finished()), "a reader got the lock beside a writer");
    downgrade(&mut guard).await.expect("the lock is ours");
    give_back_all(waiting).await;
    for _ in 0..2 {
        downgrade(&mut guard).await.expect("the lock is ours");
        assert!(guard.is_valid(), "the downgrade lost the lock");
        assert_eq!((guard.token(), guard.owner()), (token, owner));
        let mut readers = Vec::new();
        for locks in [&one, &two, &one] {
            let reader = Reader.try_take(locks, &name).await.expect("readers share the lock");
            assert!(reader.token() > token, "a reader came later, with token {}", reader.token());
            readers.push(reader);
        }
        for locks in [&one, &two] {
            must_not_write(locks, &name).await;
        }
        for reader in readers {
            give_back(reader).await;
        }
        must_not_write(&one, &name).await;
        must_not_write(&two, &name).await;
        let verified = within(SOON, "the answer of verify", guard.verify()).await.unwrap();
        assert_eq!(verified, GuardState::Valid);
    }
    let last = Reader.take(&two, &name).await;
    give_back(guard).await;
    must_not_write(&one, &name).await;
    give_back(last).await;
    let next = take(&one, &name).await;
    assert!(next.token() > token);
    Reader.must_be_busy(&two, &name).await;
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_downgrade_lets_waiting_readers_in_and_no_writer(harness: &dyn Harness) {
    let [one, two, three, four] =
        [client(harness).await, client(harness).await, client(harness).await, client(harness).await];
    let (fair, name) = (harness.capabilities().fifo, fresh());
    let mut guard = take_to_write(&one, &name).await;
    let first = Reader.wait(&two, &name);
    wait_for_waiters(&one, &name, 1).await;
    let mut writers = vec![write(&three, &name)];
    wait_for_waiters(&one, &name, 2).await;
    let behind = Reader.wait(&four, &name);
    wait_for_waiters(&one, &name, 3).await;
    // Of the same process as the holder.
    writers.push(write(&one, &name));
    wait_for_waiters(&one, &name, 4).await;
    assert!(!first.is_finished(), "one writes, and a reader got the lock");

    downgrade(&mut guard).await.expect("the lock is ours");
    let first = within(SOON, "the reader before the writer to get the lock", first).await.unwrap();
    sleep(NOISE).await;
    assert!(writers.iter().all(|writer| !writer.is_finished()), "two read, and a writer got the lock");
    assert!(!fair || !behind.is_finished(), "a reader came before a writer that waited already");
    assert!(guard.is_valid() && first.token() > guard.token());
    let token = guard.token();
    give_back(guard).await;
    sleep(NOISE).await;
    assert!(writers.iter().all(|writer| !writer.is_finished()), "one reads, and a writer got the lock");
    give_back(first).await;
    let mut others = JoinSet::new();
    for other in writers.into_iter().chain([behind]) {
        others.spawn(async move {
            let guard = other.await.unwrap();
            assert!(guard.token() > token);
            give_back(guard).await;
        });
    }
    while let Some(ended) = within(SOON, "the others to get the lock", others.join_next()).await {
        ended.expect("each has its turn");
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn only_a_writer_becomes_a_reader(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let mut reader = Reader.take(&locks, &name).await;
    downgrade(&mut reader).await.expect("a reader is one already");
    must_not_write(&locks, &name).await;
    give_back(reader).await;
    let mut mutex = within(SOON, "the lock", Locks::mutex(&locks, &name).acquire()).await.unwrap();
    must_be(ErrorKind::Unsupported, downgrade(&mut mutex).await);
    assert!(mutex.is_valid());
    Reader.must_be_busy(&locks, &name).await;
    give_back(mutex).await;
    if harness.capabilities().permits.is_supported() {
        let mut permit = within(SOON, "a permit", locks.semaphore(&name, 2).acquire()).await.unwrap();
        must_be(ErrorKind::Unsupported, downgrade(&mut permit).await);
        give_back(permit).await;
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_lost_writer_becomes_no_reader(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut guard = take_to_write(&one, &name).await;
    assert!(two.break_lock(&name).await.unwrap(), "the lock was held");
    let next = take_to_write(&two, &name).await;
    must_be(ErrorKind::Lost, downgrade(&mut guard).await);
    let lost = within(SOON, "the loss to be known", guard.lost()).await;
    assert_eq!(lost, LossReason::Removed);
    Reader.must_be_busy(&one, &name).await;
    assert!(matches!(within(SOON, "the release", guard.release()).await, Ok(Released::AlreadyLost)));
    assert!(next.is_valid());
    Reader.must_be_busy(&one, &name).await;
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_writer_that_became_a_reader_is_renewed(harness: &dyn Harness) {
    let (one, two, name) = (short_client(harness).await, client(harness).await, fresh());
    let mut guard = take_to_write(&one, &name).await;
    downgrade(&mut guard).await.expect("the lock is ours");
    sleep(2 * harness.short_lease()).await;
    assert!(guard.is_valid(), "it is renewed as before");
    must_not_write(&two, &name).await;
    // It is still noticed that it ends.
    assert!(two.break_lock(&name).await.unwrap(), "the lock was held");
    let limit = harness.short_lease() + LEASE_SLACK;
    within(limit, "the loss to be known", guard.lost()).await;
    give_back(take_to_write(&two, &name).await).await;
    assert!(matches!(within(SOON, "the release", guard.release()).await, Ok(Released::AlreadyLost)));
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_cancelled_downgrade_gives_nothing_up(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut done = false;
    for k in 0..1_000 {
        let mut guard = take_to_write(&one, &name).await;
        let downgraded = within(SOON, "the downgrade", cancel_after(k, guard.downgrade())).await;
        done = downgraded.is_some();
        downgraded.transpose().expect("the lock is ours");
        assert!(guard.is_valid());
        must_not_write(&two, &name).await;
        // The lock can be released as it is, and the downgrade can be called again.
        if k % 2 == 0 {
            downgrade(&mut guard).await.expect("the lock is ours");
            let tried = || Reader.try_take(&two, &name);
            give_back(eventually(SOON, "a reader to be let in", tried).await).await;
            must_not_write(&one, &name).await;
        }
        give_back(guard).await;
        give_back(take_to_write(&two, &name).await).await;
        if done {
            break;
        }
    }
    assert!(done, "the downgrade took more than a thousand polls");
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_downgrade_without_an_answer_gives_nothing_up(harness: &dyn Harness) {
    for fault in [Fault::LoseReplies, Fault::CutAfterRequest, Fault::Hold] {
        for again in [true, false] {
            // After outages a session is valid for less time.
            let (link, name) = (harness.link().await, fresh());
            let (direct, locks) = (client(harness).await, client_with(&*link, 2 * LONG).await);
            let mut guard = take_to_write(&locks, &name).await;
            link.fault(fault).await;
            // A short wait: the lease must outlast the fault.
            let downgraded = timeout(Duration::from_millis(1_500), guard.downgrade()).await;
            if let Ok(downgraded) = downgraded {
                must_be(ErrorKind::Unavailable, downgraded);
            }
            must_not_write(&direct, &name).await;
            assert!(guard.is_valid(), "{fault:?}: the lease is long");
            link.fault(Fault::None).await;
            if again {
                while let Err(error) = downgrade(&mut guard).await {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error:?}");
                    sleep(LOOK).await;
                }
                assert!(guard.is_valid(), "{fault:?}: the lease is long");
                give_back(Reader.take(&direct, &name).await).await;
                must_not_write(&direct, &name).await;
            }
            match within(PATIENCE, "the release", guard.release()).await {
                Ok(released) => assert_eq!(released, Released::Released, "{fault:?}"),
                // The release continues in the background.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error:?}"),
            }
            // Whatever it was, nothing is left of it.
            give_back(within(PATIENCE, "the lock", direct.rw(&name).write()).await.unwrap()).await;
            nothing_left(harness, &name).await;
        }
    }
}

async fn take_to_write(locks: &Client, name: &str) -> Guard {
    let acquired = within(SOON, "the lock", locks.rw(name).write()).await;
    acquired.unwrap_or_else(|error| panic!("cannot acquire: {error:?}"))
}

async fn downgrade(guard: &mut Guard) -> Result<()> {
    within(PATIENCE, "the downgrade", guard.downgrade()).await
}

fn must_be(kind: ErrorKind, downgraded: Result<()>) {
    let result = downgraded.as_ref().map_err(Error::kind);
    assert_eq!(result, Err(kind), "{downgraded:?}");
}
