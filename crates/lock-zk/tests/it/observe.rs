//! Observers of elections: watches notify them, and they survive the end of their session.

use std::thread;
use std::time::Duration;

use crate::common::{LONG, Scene, Server, TIMEOUT, client, config, opened, server};
use futures_util::poll;
use lock_core::{Leader, Locks, Observer};
use lock_zk::{ZkLayout, ZkRecipe, ZkWait};
use tokio::sync::oneshot;
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

/// As a `select!` loop keeps it while another branch runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_nobody_polls_keeps_no_lost_lock() {
    let server = server().await;
    let other = connect(&server, ZkRecipe::Queue).await;
    let config = config(&server).session_timeout(TIMEOUT);
    let ((lost, is_lost), (followed, is_followed)) = (oneshot::channel(), oneshot::channel::<()>());
    let paused = thread::spawn(|| {
        let one_thread = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        one_thread.block_on(async move {
            let locks = opened(&config).await;
            let guard = locks.mutex("a").acquire().await.unwrap();
            let mut leaders = locks.election("a").observe();
            assert!(poll!(Box::pin(leaders.next())).is_pending());
            // The process stands still: the session ends on this side before it does on the servers.
            thread::sleep(TIMEOUT * 17 / 20);
            guard.lost().await;
            lost.send(()).unwrap();
            let _ = is_followed.await;
            drop(leaders);
        });
    });
    is_lost.await.unwrap();
    let next = timeout(PUSHED, other.mutex("a").acquire()).await.expect("the lost lock is free").unwrap();
    drop(followed);
    tokio::task::spawn_blocking(|| paused.join().unwrap()).await.unwrap();
    drop(next);
}

/// The directory of the lock is watched for its creation or for its children, not for both: one that is not polled keeps the
/// first, so the others poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_is_not_polled_keeps_nothing_from_others() {
    let server = server().await;
    let (watching, leading) =
        (connect(&server, ZkRecipe::Queue).await, connect(&server, ZkRecipe::Queue).await);
    let mut leaders = [(); 3].map(|()| watching.election("a").observe());
    for leaders in &mut leaders {
        assert_eq!(next(leaders).await, None);
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
    watching.close().await.unwrap();
    leading.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_asked_to_resign_keeps_its_label() {
    let server = server().await;
    for recipe in [ZkRecipe::Queue, ZkRecipe::Ephemeral(ZkWait::Watch)] {
        let (watching, leading) = (connect(&server, recipe).await, connect(&server, recipe).await);
        let leadership = leading.election("a").campaign("one").await.unwrap();
        assert!(watching.request_revocation("a").await.unwrap());
        timeout(PUSHED, leadership.revoke_requested()).await.expect("it is asked");
        let leader = watching.election("a").leader().await.unwrap().unwrap();
        assert_eq!((leader.label(), leader.token), (Some("one"), Some(leadership.token())), "{recipe:?}");
        let mut leaders = watching.election("a").observe();
        assert_eq!(next(&mut leaders).await.unwrap().label(), Some("one"), "{recipe:?}");
        drop(leaders);
        leadership.resign().await.unwrap();
        watching.close().await.unwrap();
        leading.close().await.unwrap();
        client(&server).await.delete("/locks/a", None).await.ok();
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
