//! Observers of elections: watches notify them, and they survive the end of their session.

use std::time::Duration;

use crate::common::{LONG, Scene, Server, TIMEOUT, config, server};
use lock_core::{Leader, Locks, Observer};
use lock_zk::{ZkLayout, ZkRecipe, ZkWait};
use tokio::time::timeout;

/// An observer looks again after a session timeout. What it reports well before, a watch has reported.
const SESSION: Duration = Duration::from_secs(40);
const PUSHED: Duration = Duration::from_secs(15);

async fn next(leaders: &mut Observer) -> Option<Leader> {
    timeout(PUSHED, leaders.next()).await.expect("a change is reported").unwrap().unwrap()
}

async fn connect(server: &Server, recipe: ZkRecipe) -> Locks {
    config(server).session_timeout(SESSION).recipe(recipe).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_notify_an_observer() {
    let server = server().await;
    for (name, recipe) in [("a", ZkRecipe::Queue), ("b", ZkRecipe::Ephemeral(ZkWait::Watch))] {
        let (watching, leading) = (connect(&server, recipe).await, connect(&server, recipe).await);
        // In turn: of a lock without a directory, of a free one, of one with a holder.
        let mut leaders = watching.election(name).observe();
        assert_eq!(next(&mut leaders).await, None);
        for round in 0..3 {
            let leadership = leading.election(name).campaign("one").await.unwrap();
            assert_eq!(
                next(&mut leaders).await.unwrap().token,
                Some(leadership.token()),
                "{recipe:?}, {round}"
            );
            assert!(
                timeout(Duration::from_millis(300), leaders.next()).await.is_err(),
                "nothing has changed"
            );
            match round {
                0 => drop(leadership.resign().await.unwrap()),
                1 => drop(leadership),
                _ => assert!(watching.break_lock(name).await.unwrap()),
            }
            assert_eq!(next(&mut leaders).await, None, "{recipe:?}, {round}");
            // It is waiting for a leader, before there is one.
            assert!(
                timeout(Duration::from_millis(300), leaders.next()).await.is_err(),
                "nothing has changed"
            );
        }
        drop(leaders);
        watching.close().await.unwrap();
        leading.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_survives_the_end_of_its_session() {
    let scene = Scene::with(TIMEOUT, ZkLayout::Curator).await;
    let mut leaders = scene.locks.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    scene.black_hole(true);
    let leadership = scene.other.election("a").campaign("one").await.unwrap();
    // Its session ends meanwhile.
    let unseen = timeout(2 * LONG, async {
        loop {
            if let Err(error) = leaders.next().await.unwrap() {
                break error;
            }
        }
    });
    assert!(unseen.await.expect("an outage is reported").is_retryable());
    scene.black_hole(false);
    let seen = timeout(2 * PUSHED, async {
        loop {
            match leaders.next().await.unwrap() {
                Ok(Some(leader)) => break leader,
                Ok(None) => {}
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    });
    assert_eq!(seen.await.expect("it goes on").token, Some(leadership.token()));
    leadership.resign().await.unwrap();
}
