//! Stores that are full or read-only for some time.

use std::time::Duration;

use lock_core::{BootInstant, Clock, Error, Guard, Locks, Released, Result, Token};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::conformance::client::Client;
use crate::conformance::guards::lifetime::must_be_extended;
use crate::conformance::held::Held;
use crate::conformance::helpers::{
    LATE, LONG, LOOK, NOISE, PATIENCE, SOON, client, client_with, eventually, fresh, give_back, must_be_of,
    nothing_left, take, take_within, wait_until_shown, within,
};
use crate::conformance::shared::sharers::{PERMIT, Share};
use crate::conformance::{Harness, Refusal, Still};

pub(crate) async fn what_is_refused_says_what_to_do_and_leaves_nothing(harness: &dyn Harness) {
    let (store, refusal) = store_of(harness).await;
    let (locks, name) = (client(&*store).await, fresh());
    give_back(take(&locks, &name).await).await;
    store.refuse_writes(true).await;
    let mutex = locks.mutex(&name);
    let acquired = [
        within(PATIENCE, "the refusal", mutex.acquire()).await.map(Some),
        within(PATIENCE, "the refusal", mutex.try_acquire()).await,
    ];
    for acquired in acquired {
        must_refuse(&acquired.expect_err("the store takes no writes"), refusal, harness);
    }
    // Some try to write when they connect.
    let error = match within(PATIENCE, "the connection", store.connect(LONG)).await {
        Ok(new) => within(PATIENCE, "the refusal", new.mutex(&name).acquire()).await.err(),
        Err(error) => Some(error),
    };
    must_refuse(&error.expect("the store takes no writes"), refusal, harness);
    store.refuse_writes(false).await;
    nothing_left(&*store, &name).await;
    give_back(take_within(PATIENCE, &locks, &name).await).await;
    nothing_left(&*store, &name).await;
}

pub(crate) async fn guards_are_neither_extended_wrongly_nor_lost_early(harness: &dyn Harness) {
    let (store, refusal) = store_of(harness).await;
    // All of them are refused before the first lease ends.
    let lease = if refusal.still == Still::Nothing { 2 * LONG } else { LONG };
    let (locks, other) = (client_with(&*store, lease).await, client(&*store).await);
    let (mut guards, mut late) = guards_of_all_modes(&locks).await;
    store.refuse_writes(true).await;
    if refusal.still == Still::HandsOver {
        for guard in &mut late {
            within(PATIENCE, "the downgrade", guard.downgrade()).await.expect("it needs no room");
        }
    }
    guards.extend(late);
    let deadlines: Vec<_> = guards.iter().map(Guard::valid_until).collect();
    if refusal.still == Still::Nothing {
        must_end(&guards, &deadlines, refusal, harness).await;
    } else {
        for (guard, deadline) in guards.iter().zip(deadlines) {
            must_last(guard, deadline, refusal.still, harness).await;
        }
    }
    let names: Vec<_> = guards.iter().map(|guard| guard.name().to_string()).collect();
    for guard in guards {
        let released = within(PATIENCE, "the release", guard.release()).await;
        let is_released = matches!(released, Ok(Released::Released));
        assert_eq!(is_released, refusal.still != Still::Nothing, "{released:?}");
    }
    store.refuse_writes(false).await;
    for name in &names {
        nothing_left(&*store, name).await;
        give_back(take_within(PATIENCE, &other, name).await).await;
    }
}

pub(crate) async fn waiters_get_the_lock_once_writes_are_allowed_or_need_none(harness: &dyn Harness) {
    let (store, refusal) = store_of(harness).await;
    let hands_over = refusal.still == Still::HandsOver;
    // A lease that cannot be released ends by itself. Others are not the subject.
    let lease = if refusal.still == Still::Nothing { LONG } else { 3 * LONG };
    let (holder, next) = (client_with(&*store, lease).await, client_with(&*store, lease).await);
    let mut queues = Vec::new();
    for pause in if hands_over { &PAUSES[..] } else { &PAUSES[..1] } {
        for ways in pairs_of_modes(&holder) {
            queues.push((*pause, Queue::new(&*store, refusal, (&holder, &next), ways).await));
        }
    }
    store.refuse_writes(true).await;
    let mut handing_over = JoinSet::new();
    for (pause, queue) in queues {
        handing_over.spawn(async move {
            sleep(pause).await;
            queue.hand_over(refusal).await
        });
    }
    let waiters = handing_over.join_all().await;
    store.refuse_writes(false).await;
    for waiter in waiters.into_iter().flatten() {
        waiter.comes().await;
    }
}

/// A lock that is held, and a waiter for it.
struct Queue {
    guard: Held,
    waiter: Waiter,
}

struct Waiter {
    task: JoinHandle<Held>,
    after: Token,
}

impl Queue {
    async fn new(
        store: &dyn Harness,
        refusal: Refusal,
        (holder, next): (&Client, &Client),
        (first, second): (Way, Way),
    ) -> Self {
        let name = fresh();
        let guard = within(PATIENCE, "the lock", acquire(holder, first, &name)).await.unwrap();
        let (after, locks, lock) = (guard.token(), next.clone(), name.clone());
        // A store that a waiter polls does not show it: one that is asked too late may refuse.
        let is_shown = next.capabilities().counts_waiters || refusal.still == Still::HandsOver;
        let task = tokio::spawn(async move {
            loop {
                match acquire(&locks, second, &lock).await {
                    Err(error) if !is_shown && error.kind() == refusal.kind => sleep(LOOK).await,
                    acquired => return acquired.unwrap_or_else(|error| panic!("the wait ended: {error:?}")),
                }
            }
        });
        if is_shown {
            wait_until_shown(store, next, &name).await;
        } else {
            sleep(NOISE).await;
        }
        Self { guard, waiter: Waiter { task, after } }
    }

    /// Releases the lock. Returns the waiter that the store cannot give it yet.
    async fn hand_over(self, refusal: Refusal) -> Option<Waiter> {
        let Self { guard, waiter } = self;
        assert!(!waiter.task.is_finished() && guard.is_valid(), "{guard:?} and {:?}", waiter.task);
        if refusal.still == Still::HandsOver {
            give_back(guard).await;
            waiter.comes().await;
            return None;
        }
        drop(guard);
        // The store refuses it meanwhile.
        sleep(LATE).await;
        assert!(!waiter.task.is_finished(), "the store takes no writes");
        Some(waiter)
    }
}

impl Waiter {
    async fn comes(self) {
        let guard = within(PATIENCE, "the next holder", self.task).await.unwrap();
        assert!(guard.token() > self.after, "token {} came after {}", guard.token(), self.after);
        give_back(guard).await;
    }
}

/// A store of its own: other cases write.
async fn store_of(harness: &dyn Harness) -> (Box<dyn Harness>, Refusal) {
    (harness.private().await, harness.refusal().expect("the case is for stores that can refuse"))
}

fn must_refuse(error: &Error, refusal: Refusal, harness: &dyn Harness) {
    must_be_of(error, harness);
    assert_eq!((error.kind(), error.outcome()), (refusal.kind, refusal.outcome), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains(refusal.advice)), "{error:?}");
}

/// The store extends no lease: each guard is valid until its deadline.
async fn must_end(guards: &[Guard], deadlines: &[BootInstant], refusal: Refusal, harness: &dyn Harness) {
    // The answer to a renewal may have been on its way.
    let end = Clock::boot().now() + 2 * LONG;
    for guard in guards {
        let extended = within(PATIENCE, "the refusal", guard.extend(3 * LONG)).await;
        must_refuse(&extended.expect_err("the store takes no writes"), refusal, harness);
    }
    let mut any_is_valid = true;
    while any_is_valid {
        sleep(LOOK).await;
        any_is_valid = false;
        for (guard, deadline) in guards.iter().zip(deadlines) {
            let is_valid = guard.is_valid();
            let is_over = Clock::boot().now() >= *deadline;
            assert!(guard.valid_until() <= end, "{guard:?} was extended beyond {end:?}");
            assert!(is_valid || is_over, "lost before its lease ended: {guard:?}");
            any_is_valid |= is_valid;
        }
    }
}

/// The store extends leases: the guard is valid for longer than it was.
async fn must_last(guard: &Guard, deadline: BootInstant, still: Still, harness: &dyn Harness) {
    let is_renewed = || async {
        assert!(guard.is_valid(), "lost: {:?}", guard.state());
        (guard.valid_until() > deadline).then_some(())
    };
    eventually(PATIENCE, "a renewal", is_renewed).await;
    let asked = Clock::boot().now();
    let until = within(PATIENCE, "the extension", guard.extend(2 * LONG)).await.expect("it needs no room");
    must_be_extended(harness, &guard.validity(), until, asked + LONG + LONG / 2);
    if still == Still::HandsOver {
        // A larger number may be a longer text.
        let floor = Token::new(guard.token().get() + 160);
        within(PATIENCE, "the answer", guard.raise_token(floor)).await.expect("it needs no room");
    }
    within(PATIENCE, "the answer", guard.verify()).await.expect("nothing is written");
    assert!(guard.is_valid(), "lost: {:?}", guard.state());
}

/// How a lock is acquired: as a mutex, or shared.
type Way = Option<Share>;

const MUTEX: Way = None;
const READER: Way = Some(Share::Reader);

async fn acquire(locks: &Client, way: Way, name: &str) -> Result<Held> {
    match way {
        None => locks.mutex(name).acquire().await,
        Some(share) => share.acquire(locks, name).await.map(Held::from),
    }
}

/// Holders, and those who wait for them.
fn pairs_of_modes(locks: &Client) -> Vec<(Way, Way)> {
    let (mut pairs, capabilities) = (vec![(MUTEX, MUTEX)], locks.capabilities());
    if capabilities.shared.is_supported() {
        pairs.extend([(MUTEX, READER), (READER, MUTEX)]);
    }
    if capabilities.permits.is_supported() {
        pairs.push((MUTEX, Some(PERMIT)));
    }
    pairs
}

/// Guards of all modes; and writers that may still become readers.
async fn guards_of_all_modes(locks: &Client) -> (Vec<Guard>, Vec<Guard>) {
    let (capabilities, shared) = (locks.capabilities(), &fresh());
    let mutex = within(SOON, "the lock", Locks::mutex(locks, fresh()).acquire()).await;
    let (mut guards, mut writers) = (vec![mutex.unwrap()], Vec::new());
    if capabilities.shared.is_supported() {
        guards.extend([Share::Reader.take(locks, shared).await, Share::Reader.take(locks, shared).await]);
        let mut downgraded = write(locks).await;
        within(SOON, "the downgrade", downgraded.downgrade()).await.unwrap();
        guards.push(downgraded);
        writers.push(write(locks).await);
    }
    if capabilities.permits.is_supported() {
        guards.push(PERMIT.take(locks, &fresh()).await);
    }
    (guards, writers)
}

async fn write(locks: &Client) -> Guard {
    within(SOON, "the lock", locks.rw(fresh()).write()).await.unwrap()
}

/// When waiters are given the lock that the store needs no room to hand over: at once; when its message alone would be too
/// late, and they have to ask; and when a store that trusts no waiter for long would have forgotten them.
const PAUSES: [Duration; 3] = [Duration::ZERO, LATE, SOON];
