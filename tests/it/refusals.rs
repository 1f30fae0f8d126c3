//! What can pass ends no wait, no campaign and no observer: each refusal lasts for some seconds here, on real servers.

mod redis;
mod stores;

use std::time::Duration;

use lock_testkit::{come, soon, take, until};
use polylock::{Error, ErrorKind, Guard, Leadership, Locks, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::connect_at_last;

/// Time: longer than a waiter tolerates a server that does not answer, which is a lease or a session.
const OUTAGE: Duration = Duration::from_secs(3);

/// All go on while a store refuses what they ask, and get their locks when it allows it again. Returns the errors that the
/// observer reported. `first` is the URL of the leader and the holder, `others` that of those who wait for them.
async fn endure(
    (first, others): (&str, &str),
    outage: Duration,
    refuse: impl AsyncFnOnce(),
    allow: impl AsyncFnOnce(),
) -> Vec<Error> {
    let mut standbys = Standbys::of(first, others).await;
    refuse().await;
    standbys.give_back().await;
    standbys.stay(outage).await;
    allow().await;
    standbys.come().await
}

/// An outage is an item, and not each try.
fn has(errors: &[Error], kind: ErrorKind) {
    assert!(errors.iter().any(|error| error.kind() == kind) && errors.len() < 6, "{errors:?}");
}

/// What connects first fails at once.
async fn is_refused(url: &str, kind: ErrorKind) {
    let error = Locks::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
}

/// A leader and a holder, with those that wait for them: tasks of two other clients.
struct Standbys {
    seen: UnboundedReceiver<Result<Option<String>>>,
    tasks: Vec<JoinHandle<Result<()>>>,
    leads: UnboundedReceiver<(&'static str, Leadership)>,
    held: Option<(Leadership, Guard)>,
}

impl Standbys {
    async fn of(first: &str, others: &str) -> Self {
        let [leading, waiting, observing] =
            [connect_at_last(first).await, connect_at_last(others).await, connect_at_last(others).await];
        let mut seen = observe(&observing);
        assert_eq!(next(&mut seen).await.unwrap(), None);
        let leadership = leading.election("leader").campaign("one").await.unwrap();
        let held = (leadership, take(&leading, "a").await);
        assert_eq!(next(&mut seen).await.unwrap().as_deref(), Some("one"));
        let (says, leads) = unbounded_channel();
        let candidates = [(&waiting, "two"), (&observing, "three")];
        let candidates =
            candidates.map(|(locks, label)| tokio::spawn(stand_by(locks.clone(), label, says.clone())));
        // Two of them are of one client.
        let waiters = [&waiting, &waiting, &observing].map(|locks| tokio::spawn(wait(locks.clone())));
        // What is refused at first ends: on a busy machine it takes longer until all of them have been answered.
        if leading.capabilities().counts_waiters {
            for name in ["leader", "a"] {
                let are_two = async || observing.inspect(name).await.is_ok_and(|seen| seen.waiters >= 2);
                until("two wait", are_two).await;
            }
        }
        // Time: no store shows a waiter that polls, or one behind another of its client.
        sleep(Duration::from_millis(500)).await;
        Self { seen, tasks: candidates.into_iter().chain(waiters).collect(), leads, held: Some(held) }
    }

    /// Gives the locks back, or lets them expire where the store refuses that.
    async fn give_back(&mut self) {
        let (leadership, guard) = self.held.take().expect("they are given back once");
        let both = async { tokio::join!(leadership.resign(), guard.release()) };
        // Time: a store that does not answer lets them expire.
        drop(timeout(Duration::from_secs(1), both).await);
    }

    /// Checks that all go on through the outage.
    async fn stay(&mut self, outage: Duration) {
        let until = Instant::now() + outage;
        while Instant::now() < until {
            if let Some(task) = self.tasks.iter_mut().find(|task| task.is_finished()) {
                panic!("one has ended: {:?}", task.await);
            }
            // Time: the outage lasts.
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that all get their lock, and that the observer reports the leaders; returns the errors that it reported.
    async fn come(mut self) -> Vec<Error> {
        drop(self.held);
        let mut refusals = Vec::new();
        for _ in 0..2 {
            let (label, leadership) = soon(self.leads.recv()).await.expect("two stand by");
            loop {
                match next(&mut self.seen).await {
                    Ok(Some(leader)) if leader == label => break,
                    Ok(_) => {}
                    Err(error) => refusals.push(error),
                }
            }
            leadership.resign().await.unwrap();
        }
        for task in self.tasks {
            come(task).await.unwrap();
        }
        refusals
    }
}

async fn stand_by(
    locks: Locks,
    label: &'static str,
    leads: UnboundedSender<(&'static str, Leadership)>,
) -> Result<()> {
    let leadership = locks.election("leader").campaign(label).await?;
    drop(leads.send((label, leadership)));
    Ok(())
}

async fn wait(locks: Locks) -> Result<()> {
    locks.mutex("a").acquire().await?.release().await.map(drop)
}

/// The labels of the leaders, and the errors between them.
fn observe(locks: &Locks) -> UnboundedReceiver<Result<Option<String>>> {
    let (mut leaders, (says, seen)) = (locks.election("leader").observe(), unbounded_channel());
    tokio::spawn(async move {
        while let Some(item) = leaders.next().await {
            drop(says.send(item.map(|leader| leader.and_then(|leader| leader.label().map(str::to_owned)))));
        }
    });
    seen
}

async fn next(seen: &mut UnboundedReceiver<Result<Option<String>>>) -> Result<Option<String>> {
    soon(seen.recv()).await.expect("the observer goes on")
}
