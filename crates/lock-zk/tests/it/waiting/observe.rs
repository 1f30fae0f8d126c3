//! Observers of elections: they keep nothing, and survive the end of their session.

use std::thread;
use std::time::Duration;

use futures_util::poll;
use lock_core::{Leader, Locks, Observer};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::common::*;

/// An observer looks again after a session timeout. What it reports well before, a watch has reported.
async fn locks(server: &Server) -> Locks {
    opened(&config(server).session_timeout(LASTING)).await
}

async fn next(leaders: &mut Observer) -> Option<Leader> {
    soon(leaders.next()).await.unwrap().unwrap()
}

/// As a `select!` loop keeps it while another branch runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_nobody_polls_keeps_no_lost_lock() {
    let server = server().await;
    let (other, config) = (locks(&server).await, config(&server));
    let ((lost, is_lost), (followed, is_followed)) = (oneshot::channel(), oneshot::channel::<()>());
    let paused = thread::spawn(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async move {
            let locks = opened(&config).await;
            let guard = take(&locks, "a").await;
            let mut leaders = locks.election("a").observe();
            assert!(poll!(Box::pin(leaders.next())).is_pending());
            // Time: the process is paused, and the session ends on this side before it does on the servers.
            thread::sleep(TIMEOUT * 17 / 20);
            guard.lost().await;
            lost.send(()).unwrap();
            let _ = is_followed.await;
            drop(leaders);
        });
    });
    is_lost.await.unwrap();
    let next = take(&other, "a").await;
    drop(followed);
    tokio::task::spawn_blocking(|| paused.join().unwrap()).await.unwrap();
    drop(next);
}

/// The directory of the lock is watched for its creation or for its children, not for both: one that is not polled keeps the
/// first, so the others poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_is_not_polled_keeps_nothing_from_others() {
    let server = server().await;
    let (watching, leading) = (locks(&server).await, locks(&server).await);
    let mut leaders = [(); 3].map(|()| watching.election("a").observe());
    for leaders in &mut leaders {
        assert_eq!(next(leaders).await, None);
        // Time: it is polled until it watches.
        assert!(timeout(Duration::from_millis(300), leaders.next()).await.is_err(), "nothing has changed");
    }
    let [unpolled, mut second, mut third] = leaders;
    for _ in 0..2 {
        let leadership = leading.election("a").campaign("one").await.unwrap();
        for leaders in [&mut second, &mut third] {
            assert_eq!(next(leaders).await.unwrap().token, Some(leadership.token()));
        }
        leadership.resign().await.unwrap();
        for leaders in [&mut second, &mut third] {
            assert_eq!(next(leaders).await, None);
        }
    }
    drop((unpolled, second, third));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_asked_to_resign_keeps_its_label() {
    for recipe in RECIPES {
        let scene = Scene::of(TIMEOUT, |config| config.recipe(recipe)).await;
        let leadership = scene.locks.election("a").campaign("one").await.unwrap();
        assert!(scene.other.request_revocation("a").await.unwrap());
        soon(leadership.revoke_requested()).await;
        let leader = scene.other.election("a").leader().await.unwrap().unwrap();
        assert_eq!((leader.label(), leader.token), (Some("one"), Some(leadership.token())), "{recipe:?}");
        leadership.resign().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_survives_the_end_of_its_session() {
    let scene = Scene::new().await;
    let mut leaders = scene.locks.election("a").observe();
    assert_eq!(next(&mut leaders).await, None);
    scene.black_hole(true);
    let leadership = scene.other.election("a").campaign("one").await.unwrap();
    let outage = async { while leaders.next().await.unwrap().is_ok() {} };
    soon(outage).await;
    scene.black_hole(false);
    let seen = soon(async {
        loop {
            match leaders.next().await.unwrap() {
                Ok(Some(leader)) => break leader,
                Ok(None) => {}
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    });
    assert_eq!(seen.await.token, Some(leadership.token()));
    leadership.resign().await.unwrap();
}
