//! Observers of elections: the masters notify them, and they survive the loss of a minority.

use std::time::Duration;

use lock_core::{Leader, Locks, Observer};
use lock_testkit::{RedisFive, RedisServer};
use tokio::time::timeout;

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for half a dozen looks of an observer that polls.
const IDLE: Duration = Duration::from_secs(3);

async fn client(masters: &RedisFive) -> Locks {
    // Longer than the test waits: what is seen earlier was notified.
    let url = format!("{}?ttl=60s", masters.url());
    connect(&url).await.unwrap()
}

async fn next(leaders: &mut Observer) -> Option<Leader> {
    timeout(PATIENCE, leaders.next()).await.expect("a change is reported").unwrap().unwrap()
}

/// How often an observer looks while nothing happens.
async fn idle_looks(leaders: &mut Observer, master: &RedisServer) -> u64 {
    let before = master.calls_of("eval").await;
    assert!(timeout(IDLE, leaders.next()).await.is_err(), "nothing has changed");
    master.calls_of("eval").await - before
}

#[tokio::test]
async fn a_quorum_notifies_an_observer_that_does_not_poll() {
    let masters = RedisFive::start().await.unwrap();
    let (watching, leading) = (client(&masters).await, client(&masters).await);
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    for round in 0..4 {
        if round == 2 {
            // A minority neither votes nor notifies.
            masters.servers()[..2].iter().for_each(RedisServer::kill);
        }
        let leadership = leading.election("a").campaign("one").await.unwrap();
        assert_eq!(next(&mut leaders).await.unwrap().label(), Some("one"));
        // From here on it waits for a notification.
        let looks = idle_looks(&mut leaders, &masters.servers()[4]).await;
        assert!(looks < 5, "it looked {looks} times in {IDLE:?}");
        match round {
            0 => drop(leadership.resign().await.unwrap()),
            1 => drop(leadership),
            2 => {
                // As an operator does, one master after the other: a quorum decides.
                for master in &masters.servers()[2..] {
                    assert_eq!(master.command(&["DEL", "lock:a"]).await.unwrap().int(), Some(1));
                }
            }
            _ => assert!(leading.break_lock("a").await.unwrap()),
        }
        assert_eq!(next(&mut leaders).await, None);
    }
}

#[tokio::test]
async fn an_observer_without_notifications_of_a_quorum_polls() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let masters = RedisFive::start().await.unwrap();
    for master in &masters.servers()[..3] {
        master.command(&["ACL", "SETUSER", "default", "-client|tracking"]).await.unwrap();
    }
    let (watching, leading) = (client(&masters).await, client(&masters).await);
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    assert!(idle_looks(&mut leaders, &masters.servers()[4]).await >= 3, "it has to poll");
    let leadership = leading.election("a").campaign("one").await.unwrap();
    assert_eq!(next(&mut leaders).await.unwrap().token, Some(leadership.token()));
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
}

#[tokio::test]
async fn an_observer_survives_the_pause_of_a_quorum() {
    let masters = RedisFive::start().await.unwrap();
    let (watching, leading) = (client(&masters).await, client(&masters).await);
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    let leadership = leading.election("a").campaign("one").await.unwrap();
    assert_eq!(next(&mut leaders).await.unwrap().label(), Some("one"));
    masters.servers()[..3].iter().for_each(RedisServer::stop);
    assert_eq!(masters.servers()[4].command(&["DEL", "lock:a"]).await.unwrap().int(), Some(1));
    let error = timeout(PATIENCE, leaders.next()).await.expect("it is reported").unwrap().unwrap_err();
    assert!(error.is_retryable() && error.operation() == Some("observe"), "{error}");
    masters.servers()[..3].iter().for_each(RedisServer::cont);
    drop(leadership);
    loop {
        match timeout(PATIENCE, leaders.next()).await.expect("it goes on").unwrap() {
            Ok(None) => break,
            Ok(Some(leader)) => assert_eq!(leader.label(), Some("one")),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}
