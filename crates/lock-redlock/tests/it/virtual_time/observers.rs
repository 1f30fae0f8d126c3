//! Observers of elections: a quorum notifies them, and they survive the loss of one.

use std::time::Duration;

use lock_core::{Leader, Observer};
use lock_testkit::fake::{Faults, Link, Trace};
use lock_testkit::soon;
use tokio::time::timeout;

use super::SECOND;
use super::fleet::Fleet;

/// Long enough for half a dozen looks of an observer that polls.
const IDLE: Duration = Duration::from_secs(3);

async fn next(leaders: &mut Observer) -> Option<Leader> {
    soon(leaders.next()).await.unwrap().unwrap()
}

/// How often an observer looks while nothing happens.
async fn idle_looks(leaders: &mut Observer, trace: &Trace) -> usize {
    let looks = || trace.lines().iter().filter(|line| line.contains("EVALSHA")).count();
    let before = looks();
    assert!(timeout(IDLE, leaders.next()).await.is_err(), "nothing has changed");
    looks() - before
}

#[tokio::test(start_paused = true)]
async fn a_quorum_notifies_an_observer_that_does_not_poll() {
    let (fleet, trace) = (Fleet::new(5).await, Trace::new());
    fleet.masters[4].keep(&trace, "");
    let (watching, leading) = (fleet.connect(60 * SECOND).await, fleet.connect(60 * SECOND).await);
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    for round in 0..4 {
        if round == 2 {
            // A minority neither votes nor notifies.
            (0..2).for_each(|master| fleet.masters[master].crash());
        }
        let leadership = leading.election("a").campaign("one").await.unwrap();
        assert_eq!(next(&mut leaders).await.unwrap().label(), Some("one"));
        // From here on it waits for a notification.
        let looks = idle_looks(&mut leaders, &trace).await;
        assert!(looks < 5, "it looked {looks} times in {IDLE:?}");
        match round {
            0 => drop(leadership.resign().await.unwrap()),
            1 => drop(leadership),
            // As an operator does, one master after the other: a quorum decides.
            2 => (2..5).for_each(|master| assert_eq!(fleet.command(master, "DEL lock:a").int(), Some(1))),
            _ => assert!(leading.break_lock("a").await.unwrap()),
        }
        assert_eq!(next(&mut leaders).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_without_notifications_of_a_quorum_polls() {
    let (fleet, trace) = (Fleet::new(5).await, Trace::new());
    fleet.masters[4].keep(&trace, "");
    let (watching, leading) = (fleet.connect(60 * SECOND).await, fleet.connect(60 * SECOND).await);
    (0..3).for_each(|master| fleet.links[master][1].set_faults(Faults { refuse: 1.0, ..Faults::default() }));
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    assert!(idle_looks(&mut leaders, &trace).await >= 3, "it has to poll");
    let leadership = leading.election("a").campaign("one").await.unwrap();
    assert_eq!(next(&mut leaders).await.unwrap().token, Some(leadership.token()));
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_observer_survives_the_pause_of_a_quorum() {
    let fleet = Fleet::new(5).await;
    let (watching, leading) = (fleet.connect(60 * SECOND).await, fleet.connect(60 * SECOND).await);
    let mut leaders = watching.election("a").observe();
    let leadership = leading.election("a").campaign("one").await.unwrap();
    while next(&mut leaders).await.is_none() {}
    (0..3).for_each(|master| fleet.stall(master, 600 * SECOND));
    fleet.command(4, "DEL lock:a");
    let error = soon(leaders.next()).await.unwrap().unwrap_err();
    assert!(error.is_retryable() && error.operation() == Some("observe"), "{error}");
    fleet.links.iter().flatten().for_each(Link::resume);
    drop(leadership);
    loop {
        match soon(leaders.next()).await.unwrap() {
            Ok(None) => break,
            Ok(Some(leader)) => assert_eq!(leader.label(), Some("one")),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}
