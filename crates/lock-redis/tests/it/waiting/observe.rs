//! Observers of elections: the server notifies them, and they survive its faults.

use std::time::Duration;

use lock_core::{Leader, Observer};
use lock_testkit::{RedisServer, soon};
use tokio::time::timeout;

use crate::common::{KEY, client};

/// Long enough for a dozen looks of an observer that polls.
// Time: that nothing is asked for has no event.
const IDLE: Duration = Duration::from_secs(3);

async fn next(leaders: &mut Observer) -> Option<Leader> {
    soon(leaders.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_server_notifies_an_observer_that_does_not_poll() {
    let server = RedisServer::start().await.unwrap();
    let (watching, leading) = (client(&server, "ttl=60s").await, client(&server, "ttl=60s").await);
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
            _ => assert_eq!(server.call(&["DEL", KEY]).await.int(), Some(1)),
        }
        assert_eq!(next(&mut leaders).await, None);
    }
}

#[tokio::test]
async fn an_observer_survives_an_outage() {
    let server = RedisServer::builder().appendonly(true).start().await.unwrap();
    let watching = client(&server, "ttl=60s").await;
    let mut leaders = watching.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    server.kill();
    let error = soon(leaders.next()).await.unwrap().unwrap_err();
    assert!(error.is_retryable() && error.operation() == Some("observe"), "{error}");
    server.start_again().await.unwrap();
    let leading = client(&server, "ttl=60s").await;
    let _leadership = leading.election("a").campaign("one").await.unwrap();
    let leader = loop {
        match soon(leaders.next()).await.unwrap() {
            Ok(Some(leader)) => break leader,
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert_eq!(leader.label(), Some("one"));
}
