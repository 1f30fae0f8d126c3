//! What servers answer, and when, by the will of the test: see [`Meddler`].

use std::time::Duration;

use lock_core::{ErrorKind, GuardState, LossReason, Outcome, Released, Token};
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::Error;
use lock_zk::{ZkLayout, ZkRecipe};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::common::meddler::{Fate, Kind, Meddler};
use crate::common::*;
use crate::recipes::modes::Way;

/// A holder that goes on as a reader while an operator whose requests of this kind are lost until then breaks its lock.
async fn a_writer_is_broken_as_a_reader(kind: Kind, layout: ZkLayout) {
    let scene = Scene::with(TIMEOUT, layout).await;
    let meddler = Meddler::new(&scene.server);
    let breaker = meddler.locks(config(&scene.server).layout(layout)).await;
    meddler.set(move |asked, path| match asked == kind && path.starts_with("/locks/a/") {
        true => Fate::Fails(Error::ConnectionLoss),
        false => Fate::Passes,
    });
    let mut guard = Way::Write.take(&scene.locks).await;
    let breaking = tokio::spawn(async move { breaker.break_lock("a").await.unwrap() });
    until("one is lost", async || !meddler.met().is_empty()).await;
    guard.downgrade().await.unwrap();
    assert_eq!(children(&scene.client, "a").await.len(), 1, "{layout:?}: it reads");
    meddler.heal();
    assert!(come(breaking).await, "{layout:?}: somebody held it");
    assert_eq!(children(&scene.client, "a").await.len(), 0, "{layout:?}: it is broken");
    assert_eq!(soon(guard.lost()).await, LossReason::Removed);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_whose_deletion_is_lost_finds_the_downgraded_holder() {
    for layout in LAYOUTS {
        a_writer_is_broken_as_a_reader("delete", layout).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_finds_the_holder_that_became_a_reader_after_the_look() {
    a_writer_is_broken_as_a_reader("stat", ZkLayout::Curator).await;
}

/// The server puts the node of the reader in its place, and its answer is lost; then it refuses by itself for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_after_a_lost_answer_does_not_end_a_downgrade() {
    for error in [Error::Throttled, Error::NotReadOnly, Error::NoAuth] {
        let scene = Scene::new().await;
        let meddler = Meddler::new(&scene.server);
        let locks = meddler.locks(config(&scene.server)).await;
        let mut guard = Way::Write.take(&locks).await;
        let refused = || ("data", Fate::Fails(error.clone()));
        // The last first.
        let mut answers = vec![refused(), refused(), ("multi", Fate::LosesAnswer)];
        meddler.set(move |kind, _| match answers.pop_if(|(asked, _)| *asked == kind) {
            Some((_, fate)) => fate,
            None => Fate::Passes,
        });
        let downgraded = guard.downgrade().await;
        assert!(downgraded.is_ok(), "{error}: {downgraded:?}");
        assert_eq!(meddler.met(), ["multi", "data", "data"], "{error}");
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
        assert_eq!(children(&scene.client, "a").await.len(), 0, "{error}: the reader's node is left");
    }
}

/// The caller dropped the future, and the servers refuse reads for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_creation_left_is_looked_for_until_the_servers_let_us_look() {
    // More than there are looks where nothing is refused.
    const REFUSALS: usize = 6;
    for error in [Error::NoAuth, Error::Throttled] {
        let scene = Scene::new().await;
        let meddler = Meddler::new(&scene.server);
        mkdir(&scene.client, "/locks/a").await;
        let locks = meddler.locks(config(&scene.server)).await;
        let (mut refusals, refused) = (0..REFUSALS, error.clone());
        meddler.set(move |kind, path| match kind {
            "create" if path.starts_with("/locks/a/") => Fate::LosesAnswer,
            "children" if refusals.next().is_some() => Fate::Fails(refused.clone()),
            _ => Fate::Passes,
        });
        // The answer is lost, and the first look for the node is refused.
        assert!(locks.mutex("a").acquire().await.is_err(), "{error}");
        // It is not in the way.
        give_back(take(&scene.other, "a").await).await;
        let (lost, refused): (Vec<_>, Vec<_>) = meddler.met().into_iter().partition(|kind| *kind == "create");
        assert_eq!((lost.len(), refused.len()), (1, REFUSALS), "{error}");
        assert_eq!(children(&scene.client, "a").await.len(), 0, "{error}");
    }
}

/// Without containers the server keeps directories, also when their numbers start again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_are_no_containers_directories_stay() {
    let interval = ZooKeeper::builder().property("znode.container.checkIntervalMs", "20");
    let scene = Scene::at(interval.start().await.unwrap().into(), TIMEOUT, |config| config).await;
    let meddler = Meddler::new(&scene.server);
    let (without, mut seen) = (meddler.locks(config(&scene.server)).await, None);
    let stat = async |path| scene.client.check_stat(path).await.unwrap().map(|dir| dir.czxid);
    for replaced in [false, true] {
        meddler.set(move |kind, path| match kind {
            "container" => Fate::Fails(Error::Unimplemented),
            "create" | "multi" if path.ends_with("-lock-") && replaced => Fate::Numbered("1073741824"),
            _ => Fate::Passes,
        });
        give_back(take(&without, "a").await).await;
        assert!(meddler.met().contains(&"container"), "{replaced}");
        let dir = stat("/locks/a").await;
        assert!(dir.is_some() && dir != seen, "its numbers go on");
        seen = dir;
        give_back(take(&scene.other, "b").await).await;
        until("containers go", async || stat("/locks/b").await.is_none()).await;
        settled().await;
        assert_eq!(stat("/locks/a").await, seen, "{replaced}");
    }
}

/// The counter of a directory neither wraps nor fails: it gives its last number again and again, and negative ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_node_with_an_exhausted_number_is_no_lock() {
    for (layout, number) in LAYOUTS
        .into_iter()
        .flat_map(|layout| ["2147483647", "-2147483648", "-1"].map(|number| (layout, number)))
    {
        let scene = Scene::new().await;
        let meddler = Meddler::new(&scene.server);
        let locks = meddler.locks(config(&scene.server).layout(layout)).await;
        mkdir(&scene.client, "/locks/a").await;
        // Where the directory is unknown, and where this session had it a moment before.
        for kind in ["create", "multi"] {
            meddler.set(move |asked, path| {
                let enters = path.starts_with("/locks/a/") && path.ends_with(['-', '_']);
                let creates = matches!(asked, "create" | "multi") && enters;
                if creates { Fate::Numbered(number) } else { Fate::Passes }
            });
            let error = locks.mutex("a").acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{layout:?} {number}: {error}");
            assert_eq!(meddler.met(), [kind], "{layout:?} {number}");
            until_children(&scene.client, "a", 0).await;
            meddler.heal();
            give_back(take(&locks, "a").await).await;
        }
    }
}

/// Between the news of the raise and what is read then, the connection may break, and the next server be one that lags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_changed_is_read_behind_a_check() {
    for breaks in [false, true] {
        let scene = Scene::new().await;
        let meddler = Meddler::new(&scene.server);
        let locks = meddler.locks(config(&scene.server)).await;
        let note = move |breaks: bool| {
            let mut breaks = breaks;
            move |kind: Kind, path: &str| match path.ends_with("!token-base") {
                true if kind == "watch_data" && std::mem::take(&mut breaks) => {
                    Fate::Fails(Error::ConnectionLoss)
                }
                true => Fate::IsNoted,
                false => Fate::Passes,
            }
        };
        meddler.set(note(false));
        let (guard, next) = (take(&scene.other, "a").await, queue_up(&locks, "a").await);
        until("the first time", async || meddler.met() == ["watch_data", "watch_stat"]).await;
        settled().await;
        meddler.set(note(breaks));
        let floor = Token::new(guard.token().get() + 1_000_000);
        guard.raise_token(floor).await.unwrap();
        let next = hand_over(guard, next).await;
        assert!(next.token() > floor, "{} is not above {floor}", next.token());
        assert_eq!(meddler.met(), ["check", "watch_data"].repeat(if breaks { 2 } else { 1 }));
        give_back(next).await;
    }
}

/// A server that lags knows of no holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_reported_as_free_to_operators_behind_a_check_only() {
    for request in ["break", "break one", "ask"] {
        let scene = Scene::new().await;
        let meddler = Meddler::new(&scene.server);
        let operator = meddler.locks(config(&scene.server)).await;
        let guard = take(&scene.locks, "a").await;
        let mut lags = true;
        meddler.set(move |kind, path| match kind {
            "children" if path == "/locks/a" && std::mem::take(&mut lags) => Fate::Fails(Error::NoNode),
            "children" | "check" if path == "/locks/a" => Fate::IsNoted,
            _ => Fate::Passes,
        });
        let was_held = match request {
            "break" => operator.break_lock("a").await,
            "break one" => operator.break_lock_if("a", guard.token()).await,
            _ => operator.request_revocation("a").await,
        };
        assert!(was_held.unwrap(), "{request}");
        assert_eq!(meddler.met(), ["children", "check", "children"], "{request}");
        match request {
            "ask" => give_back(guard).await,
            _ => assert_eq!(soon(guard.lost()).await, LossReason::Removed, "{request}"),
        }
    }
}

/// What a waiter watches beyond its predecessor only saves time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_without_the_watch_behind_its_predecessor() {
    let scene = Scene::new().await;
    let meddler = Meddler::new(&scene.server);
    let locks = meddler.locks(config(&scene.server)).await;
    let (guard, next) = (take(&scene.locks, "a").await, queue_up(&scene.other, "a").await);
    let far = node(&scene.client, 0).await;
    meddler.set(move |kind, path| match kind {
        "watch_data" if path == far => Fate::Fails(Error::Unimplemented),
        _ => Fate::Passes,
    });
    let last = queue_up(&locks, "a").await;
    until("it is refused", async || !meddler.met().is_empty()).await;
    still_wait(&[&next, &last]).await;
    give_back(hand_over(hand_over(guard, next).await, last).await).await;
}

/// An answer that comes late is one of those on which the grant depends, behind the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_is_kept_whatever_answer_is_late() {
    // Time: the deadline is the subject. Without it the answer is waited for much longer.
    let (patience, long) = (Duration::from_millis(700), LASTING / 4);
    // The directories, the listing, what became of a creation, the place of a fixed node, and the base of the tokens.
    for (late, of, recipe) in [
        ("container", "/locks/a", ZkRecipe::Queue),
        ("children", "/locks/a", ZkRecipe::Queue),
        ("stat", "/locks/a/", ZkRecipe::Queue),
        ("watch_data", "/locks/!token-base", ZkRecipe::Queue),
        ("watch_data", "/locks/!token-base", EPHEMERAL),
        ("create", "/locks", EPHEMERAL),
    ] {
        let scene = Scene::of(TIMEOUT, |config| config.recipe(recipe)).await;
        let (meddler, over) = (Meddler::new(&scene.server), CancellationToken::new());
        if late != "container" && recipe == ZkRecipe::Queue {
            mkdir(&scene.client, "/locks/a").await;
        }
        let of_meddler = config(&scene.server).recipe(recipe).session_timeout(LASTING);
        // Before the first acquisition, as the base is read once.
        let (waits, mut is_first) = (over.clone(), true);
        meddler.set(move |kind, path| match path.starts_with(of) {
            // What became of it is looked for once the answer is lost.
            true if late == "stat" && kind == "create" && std::mem::take(&mut is_first) => Fate::LosesAnswer,
            // The directory above is another node.
            true if kind == late && (kind != "create" || path == of) => Fate::Waits(waits.clone()),
            _ => Fate::Passes,
        });
        let (locks, start) = (meddler.locks(of_meddler).await, Instant::now());
        let error = soon(locks.mutex("a").try_acquire_for(patience)).await.expect_err("nobody has it");
        let took = start.elapsed();
        assert!(meddler.met().contains(&late), "{late} {of}: no answer was late");
        let outcome = (error.kind(), error.outcome());
        assert_eq!(outcome, (ErrorKind::Unavailable, Outcome::Unknown), "{late} {of}");
        assert!(took >= patience && took < long, "{late} {of}: {took:?}");
        // Its node is deleted.
        over.cancel();
        give_back(take(&scene.other, "a").await).await;
    }
}

/// What the end of the session leaves open is not reported as a busy lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_whose_session_ends_does_not_report_a_free_lock_as_busy() {
    for recipe in RECIPES {
        for ends in [1, usize::MAX] {
            let server = server().await;
            let meddler = Meddler::new(&server);
            let locks = meddler.locks(config(&server).recipe(recipe)).await;
            give_back(take(&locks, "a").await).await;
            let mut left = 0..ends;
            meddler.set(move |kind, path| {
                let enters = matches!(kind, "create" | "multi") && path.starts_with("/locks/a");
                let ends = enters && left.next().is_some();
                if ends { Fate::Fails(Error::SessionExpired) } else { Fate::Passes }
            });
            let tried = locks.mutex("a").try_acquire().await;
            assert!(!meddler.met().is_empty(), "{recipe:?}: no session ended");
            if ends == 1 {
                give_back(tried.unwrap().expect("nobody has it")).await;
            } else {
                assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unavailable, "{recipe:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_may_not_read_its_node_does_not_ask_again_and_again() {
    let scene = Scene::new().await;
    let meddler = Meddler::new(&scene.server);
    let locks = meddler.locks(config(&scene.server)).await;
    let asks = |kind: Kind, path: &str| kind == "watch_data" && path.starts_with("/locks/a/");
    meddler.set(move |kind, path| match asks(kind, path) {
        true => Fate::Fails(Error::NoAuth),
        false => Fate::Passes,
    });
    let guard = take(&locks, "a").await;
    until("it asks again", async || meddler.met().len() > 3).await;
    // Time: every 15 ms would be far more.
    sleep(Duration::from_secs(1)).await;
    let times = meddler.met().len();
    assert!(times < 20, "{times} times");
    meddler.set(move |kind, path| if asks(kind, path) { Fate::IsNoted } else { Fate::Passes });
    until("it asks again", async || !meddler.met().is_empty()).await;
    delete_node(&scene.client, 0).await;
    assert_eq!(soon(guard.lost()).await, LossReason::Removed, "it is watched");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}
