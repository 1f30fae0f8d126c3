//! What observers learn of acquisitions, and of the locks that they get.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::observe::{Acquisition, LockEvent, LockObserver, Observation};
use lock_core::{Locks, Reentrant, Released};

use super::Harness;
use super::client::Client;
use super::helpers::{
    PATIENCE, SOON, client, eventually, fresh, give_back, nothing_left, take, try_take, wait_for_waiters,
    within,
};
use super::shared::sharers::Share::Reader;
use crate::helpers::steps::acquiring;

/// The names of the events of each acquisition, in the order in which the acquisitions began.
#[derive(Clone, Debug, Default)]
struct Record(Arc<Mutex<Vec<String>>>);

#[derive(Debug)]
struct Recorded(Record, usize);

impl LockObserver for Record {
    fn begin(&self, _: &Acquisition<'_>) -> Box<dyn Observation> {
        let begin = |all: &mut Vec<_>| {
            all.push(String::new());
            all.len() - 1
        };
        Box::new(Recorded(self.clone(), self.change(begin)))
    }
}

impl Observation for Recorded {
    /// When a lock is renewed, and whether the server is silent for a moment, is up to the machine.
    fn on(&self, event: &LockEvent, _: Duration) {
        let event = format!("{event:?}");
        let name = event.split([' ', '(']).next().unwrap_or_default();
        if !["Renewed", "Suspect", "Confirmed"].contains(&name) {
            self.0.change(|all| all[self.1] = format!("{} {name}", all[self.1]).trim().to_owned());
        }
    }
}

impl Record {
    fn of(client: &Client) -> (Client, Self) {
        let record = Self::default();
        let observed = Locks::clone(client).observe(record.clone());
        (Client::new(observed, client.handle()), record)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<String>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn all(&self) -> Vec<String> {
        self.change(|all| all.clone())
    }

    /// Waits until the last acquisitions have these events.
    async fn shows(&self, last: &[&str]) {
        let shows = || async {
            let all = self.all();
            all.iter()
                .map(String::as_str)
                .skip(all.len().saturating_sub(last.len()))
                .eq(last.iter().copied())
                .then_some(())
        };
        eventually(SOON, &format!("the events {last:?}"), shows).await;
    }
}

const ENDED: &str = "Requested Acquired Released";
const LEFT: &str = "Queued LeftQueue Cancelled";

pub(super) async fn a_lock_is_observed_from_its_request_to_its_end(harness: &dyn Harness) {
    let (client, other, name) = (client(harness).await, client(harness).await, fresh());
    let (one, record) = Record::of(&client);
    give_back(take(&one, &name).await).await;
    record.shows(&[ENDED]).await;
    drop(take(&one, &name).await);
    record.shows(&[ENDED; 2]).await;
    let owner = Reentrant::new(&Locks::mutex(&one, &name));
    let outer = within(SOON, "the lock", owner.acquire()).await.unwrap();
    drop(within(SOON, "the nested lock", owner.acquire()).await.unwrap());
    assert_eq!(outer.release().await.unwrap(), Some(Released::Released));
    let held = take(&other, &name).await;
    assert!(try_take(&one, &name).await.is_none());
    give_back(held).await;
    record.shows(&[ENDED, ENDED, ENDED, "Requested Busy"]).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn waits_are_observed_in_the_process_and_at_the_store(harness: &dyn Harness) {
    let (client, other, name) = (client(harness).await, client(harness).await, fresh());
    let (one, record) = Record::of(&client);
    let acquiring = || acquiring(Locks::mutex(&one, &name));
    let held = take(&other, &name).await;
    let leaves = acquiring();
    record.shows(&["Requested"]).await;
    leaves.abort();
    record.shows(&["Requested Cancelled"]).await;
    let first = acquiring();
    record.shows(&["Requested Cancelled", "Requested"]).await;
    let second = acquiring();
    record.shows(&["Requested", "Queued"]).await;
    let leaves = acquiring();
    record.shows(&["Queued", "Queued"]).await;
    leaves.abort();
    record.shows(&["Requested", "Queued", LEFT]).await;
    wait_for_waiters(&other, &name, 1).await;
    give_back(held).await;
    for waiter in [first, second] {
        give_back(within(PATIENCE, "the lock", waiter).await.unwrap()).await;
    }
    let (first, second) = match record.all()[1].ends_with("HandedOver") {
        true => ("Requested Acquired HandedOver", "Queued LeftQueue Acquired Released"),
        false => (ENDED, "Queued LeftQueue Requested Acquired Released"),
    };
    record.shows(&[first, second, LEFT]).await;
    nothing_left(harness, &name).await;
}

pub(super) async fn a_loss_is_observed_before_the_release_and_once(harness: &dyn Harness) {
    let (client, other, name) = (client(harness).await, client(harness).await, fresh());
    let (one, record) = Record::of(&client);
    let guard = take(&one, &name).await;
    assert!(other.break_lock(&name).await.unwrap(), "the lock is held");
    within(PATIENCE, "the loss", guard.lost()).await;
    record.shows(&["Requested Acquired Lost"]).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(record.all(), ["Requested Acquired Lost"]);
    nothing_left(harness, &name).await;
}

pub(super) async fn readers_are_observed_each(harness: &dyn Harness) {
    let (client, name) = (client(harness).await, fresh());
    let (one, record) = Record::of(&client);
    let [first, second] = [Reader.take(&one, &name).await, Reader.take(&one, &name).await];
    record.shows(&["Requested Acquired"; 2]).await;
    give_back(first).await;
    record.shows(&[ENDED, "Requested Acquired"]).await;
    give_back(second).await;
    record.shows(&[ENDED; 2]).await;
    nothing_left(harness, &name).await;
}
