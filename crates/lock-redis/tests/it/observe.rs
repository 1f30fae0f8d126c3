//! Observers of elections: the server notifies them, and they survive its faults.

use std::time::Duration;

use lock_core::{Leader, Observer};
use lock_testkit::RedisServer;
use tokio::time::{sleep, timeout};

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for a dozen looks of an observer that polls.
const IDLE: Duration = Duration::from_secs(3);
const KEY: &str = "lock:a";

async fn next(leaders: &mut Observer) -> Option<Leader> {
    timeout(PATIENCE, leaders.next()).await.expect("a change is reported").unwrap().unwrap()
}

#[tokio::test]
async fn the_server_notifies_an_observer_that_does_not_poll() {
    let server = RedisServer::start().await.unwrap();
    let url = format!("{}?ttl=60s", server.url());
    let (watching, leading) = (connect(&url).await, connect(&url).await);
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    for round in 0..3 {
        let leadership = leading.election("a").campaign("one").await.unwrap();
        assert_eq!(next(&mut leaders).await.unwrap().label(), Some("one"));
        // From here on it waits for a notification.
        let before = server.calls_of("eval").await;
        assert!(timeout(IDLE, leaders.next()).await.is_err(), "nothing has changed");
        let looks = server.calls_of("eval").await - before;
        assert!((1..5).contains(&looks), "it looked {looks} times in {IDLE:?}");
        match round {
            0 => drop(leadership.resign().await.unwrap()),
            1 => drop(leadership),
            // As another client does.
            _ => assert_eq!(server.command(&["DEL", KEY]).await.unwrap().int(), Some(1)),
        }
        assert_eq!(next(&mut leaders).await, None);
    }
}

#[tokio::test]
async fn an_observer_without_notifications_polls() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    let rules = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", "-client|tracking"];
    server.command(&rules).await.unwrap();
    let watching = connect(&format!("redis://worker:pw@{}?ttl=60s", server.addr())).await;
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    let leading = connect(&server.url()).await;
    let leadership = leading.election("a").campaign("one").await.unwrap();
    assert_eq!(next(&mut leaders).await.unwrap().token, Some(leadership.token()));
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
}

#[tokio::test]
async fn an_observer_survives_an_outage() {
    let server = RedisServer::builder().appendonly(true).start().await.unwrap();
    let url = format!("{}?ttl=60s", server.url());
    let watching = connect(&url).await;
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    assert!(timeout(IDLE / 10, leaders.next()).await.is_err(), "nothing has changed");
    server.kill();
    let error = timeout(PATIENCE, leaders.next()).await.expect("an outage is reported").unwrap().unwrap_err();
    assert!(error.is_retryable() && error.operation() == Some("observe"), "{error}");
    server.start_again().await.unwrap();
    let leading = connect(&url).await;
    let _leadership = leading.election("a").campaign("one").await.unwrap();
    let leader = loop {
        match timeout(PATIENCE, leaders.next()).await.expect("it goes on").unwrap() {
            Ok(Some(leader)) => break leader,
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        sleep(Duration::from_millis(1)).await;
    };
    assert_eq!(leader.label(), Some("one"));
}
