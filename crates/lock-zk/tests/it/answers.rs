//! What servers answer, and when, by the will of the test: real servers, and between them and us a client that loses
//! requests and answers, and gives others in their place.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use lock_core::{ErrorKind, GuardState, Locks, LossReason, Outcome, Released, Token};
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{
    Acls, Connector, CreateMode, Error, MultiWriteError, MultiWriteResult, Stat,
};
use lock_zk::{
    Answer, Change, DriverSession, Ensemble, SessionClient, States, Watching, ZkLayout, ZkRecipe, ZkWait,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long an acquisition waits.
const PATIENCE: Duration = Duration::from_millis(700);
/// What a noisy machine may take longer.
const SLACK: Duration = Duration::from_secs(2);

/// What becomes of a request.
enum Fate {
    Passes,
    LosesAnswer,
    /// It is not sent, and this is the answer.
    Fails(Error),
    /// It is not sent before this ends.
    Waits(CancellationToken),
    /// The node that it creates gets this number.
    Numbered(&'static str),
}

/// A kind of request, as its method is called; the creation of a container is one of its own, and so is a mere check.
type Kind = &'static str;
/// Decides on each request, by its kind and the node that it is about first.
type Script = Arc<dyn Fn(Kind, &str) -> Fate + Send + Sync>;

/// Opens sessions whose requests end as the script says.
struct Meddler {
    hosts: String,
    script: Script,
}

impl fmt::Debug for Meddler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meddler").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

#[async_trait]
impl Ensemble for Meddler {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let connect = |connector: Connector, host: String| async move { connector.connect(&host).await };
        let inner = Arc::new(DriverSession::open(&self.hosts, session_timeout, connect).await?);
        Ok(Arc::new(Meddled { inner, script: Arc::clone(&self.script) }))
    }
}

struct Meddled {
    inner: Arc<dyn SessionClient>,
    script: Script,
}

impl Fate {
    fn of<'a, T: Send + 'a>(self, ask: impl FnOnce() -> Answer<'a, T> + Send + 'a) -> Answer<'a, T> {
        match self {
            Self::Passes => ask(),
            Self::Waits(over) => async move { over.cancelled().then(|()| ask()).await }.boxed(),
            Self::LosesAnswer => ask().map(|_| Err(Error::ConnectionLoss)).boxed(),
            Self::Fails(error) => ready(Err(error)).boxed(),
            Self::Numbered(_) => panic!("only creations get numbers"),
        }
    }
}

impl Meddled {
    fn meddle<'a, T: Send + 'a>(
        &self,
        kind: Kind,
        path: &str,
        ask: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        (self.script)(kind, path).of(ask)
    }
}

fn makes_container(change: &Change<'_>) -> bool {
    matches!(change, Change::Create { mode: CreateMode::Container, .. })
}

/// The same, with a node of this number.
fn numbered<'a>(change: Change<'a>, path: &'a str) -> Change<'a> {
    match change {
        Change::Create { data, acl, .. } => Change::Create { path, data, mode: CreateMode::Ephemeral, acl },
        change => change,
    }
}

impl SessionClient for Meddled {
    fn id(&self) -> i64 {
        self.inner.id()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn states(&self) -> Box<dyn States> {
        self.inner.states()
    }

    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)> {
        let kind = if mode == CreateMode::Container { "container" } else { "create" };
        match (self.script)(kind, path) {
            Fate::Numbered(number) => async move {
                self.inner.create(&format!("{path}{number}"), data, CreateMode::Ephemeral, acl).await
            }
            .boxed(),
            fate => fate.of(move || self.inner.create(path, data, mode, acl)),
        }
    }

    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()> {
        self.meddle("delete", path, move || self.inner.delete(path, version))
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>> {
        self.meddle("stat", path, || self.inner.stat(path))
    }

    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)> {
        self.meddle("watch_stat", path, || self.inner.watch_stat(path))
    }

    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)> {
        self.meddle("data", path, || self.inner.data(path))
    }

    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)> {
        self.meddle("watch_data", path, || self.inner.watch_data(path))
    }

    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat> {
        self.meddle("set_data", path, move || self.inner.set_data(path, data, version))
    }

    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)> {
        self.meddle("children", path, || self.inner.children(path))
    }

    fn multi<'a>(
        &'a self,
        changes: &'a [Change<'a>],
    ) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>> {
        let path = changes.first().map_or("", Change::path);
        let kind = match changes {
            [Change::Check { .. }] => "check",
            changes if changes.iter().any(makes_container) => "container",
            _ => "multi",
        };
        match (self.script)(kind, path) {
            Fate::Passes => self.inner.multi(changes),
            Fate::Waits(over) => over.cancelled_owned().then(|()| self.inner.multi(changes)).boxed(),
            Fate::LosesAnswer => {
                let lost = |_| Err(MultiWriteError::RequestFailed { source: Error::ConnectionLoss });
                self.inner.multi(changes).map(lost).boxed()
            }
            Fate::Fails(source) => ready(Err(MultiWriteError::RequestFailed { source })).boxed(),
            Fate::Numbered(number) => async move {
                let path = format!("{path}{number}");
                let changes: Vec<_> = changes.iter().map(|change| numbered(*change, &path)).collect();
                self.inner.multi(&changes).await
            }
            .boxed(),
        }
    }
}

/// A client of this library whose requests end as the script says.
async fn meddled(
    server: &ZooKeeper,
    layout: ZkLayout,
    script: impl Fn(Kind, &str) -> Fate + Send + Sync + 'static,
) -> Locks {
    let meddler = Meddler { hosts: server.connect_string(), script: Arc::new(script) };
    opened(&config(server).layout(layout).ensemble(Arc::new(meddler))).await
}

/// A holder that goes on as a reader while an operator whose requests of this kind are lost until then breaks its lock.
async fn a_writer_is_broken_as_a_reader(kind: Kind, layout: ZkLayout) {
    let server = server().await;
    let client = client(&server).await;
    let holder = opened(&config(&server).layout(layout)).await;
    let (reads, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let script = {
        let (reads, lost) = (Arc::clone(&reads), Arc::clone(&lost));
        move |asked: Kind, path: &str| {
            if asked != kind || !path.starts_with("/locks/a/") || reads.load(Ordering::SeqCst) {
                return Fate::Passes;
            }
            lost.fetch_add(1, Ordering::SeqCst);
            Fate::Fails(Error::ConnectionLoss)
        }
    };
    let breaker = meddled(&server, layout, script).await;
    let mut guard = holder.rw("a").write().await.unwrap();
    let breaking = tokio::spawn(async move { breaker.break_lock("a").await.unwrap() });
    until("nothing is lost", async || lost.load(Ordering::SeqCst) > 0).await;
    guard.downgrade().await.unwrap();
    assert_eq!(children(&client, "a").await.len(), 1, "{layout:?}: it reads");
    reads.store(true, Ordering::SeqCst);
    assert!(timeout(SOON, breaking).await.unwrap().unwrap(), "{layout:?}: somebody held it");
    assert_eq!(children(&client, "a").await.len(), 0, "{layout:?}: it is broken");
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LossReason::Removed);
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
        let server = server().await;
        let client = client(&server).await;
        let answers = Arc::new(Mutex::new(Vec::new()));
        let script = {
            let answers = Arc::clone(&answers);
            move |kind: Kind, _: &str| {
                let mut answers = answers.lock().unwrap();
                match answers.pop_if(|(asked, _)| *asked == kind) {
                    Some((_, fate)) => fate,
                    None => Fate::Passes,
                }
            }
        };
        let locks = meddled(&server, ZkLayout::Curator, script).await;
        let mut guard = locks.rw("a").write().await.unwrap();
        // The last first.
        let refused = || ("data", Fate::Fails(error.clone()));
        answers.lock().unwrap().extend([refused(), refused(), ("multi", Fate::LosesAnswer)]);
        let downgraded = guard.downgrade().await;
        assert!(downgraded.is_ok(), "{error}: {downgraded:?}");
        assert!(answers.lock().unwrap().is_empty(), "{error}: it came to pass");
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
        assert_eq!(children(&client, "a").await.len(), 0, "{error}: the reader's node is left");
    }
}

/// The caller dropped the future, and the servers refuse reads for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_creation_left_is_looked_for_until_the_servers_let_us_look() {
    for error in [Error::NoAuth, Error::Throttled] {
        let server = server().await;
        let client = client(&server).await;
        let (lost, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let script = {
            let (lost, refused, error) = (Arc::clone(&lost), Arc::clone(&refused), error.clone());
            move |kind: Kind, path: &str| match kind {
                "create" if path.starts_with("/locks/a/") => {
                    lost.fetch_add(1, Ordering::SeqCst);
                    Fate::LosesAnswer
                }
                "children" if refused.load(Ordering::SeqCst) < REFUSALS => {
                    refused.fetch_add(1, Ordering::SeqCst);
                    Fate::Fails(error.clone())
                }
                _ => Fate::Passes,
            }
        };
        mkdir(&client, "/locks/a").await;
        let locks = meddled(&server, ZkLayout::Curator, script).await;
        // The answer is lost, and the first look for the node is refused.
        assert!(locks.mutex("a").acquire().await.is_err(), "{error}");
        assert_eq!(lost.load(Ordering::SeqCst), 1, "{error}");
        let other = connect(&server).await;
        let guard = timeout(SOON, other.mutex("a").acquire()).await.expect("it is not in the way").unwrap();
        assert_eq!(refused.load(Ordering::SeqCst), REFUSALS, "{error}");
        give_back(guard).await;
        assert_eq!(children(&client, "a").await.len(), 0, "{error}");
    }
}

/// More than there are looks where nothing is refused.
const REFUSALS: usize = 6;

/// Without containers the server keeps directories, also when their numbers start again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_are_no_containers_directories_stay() {
    let interval = ZooKeeper::builder().property("znode.container.checkIntervalMs", "20");
    let server = Server::from(interval.start().await.unwrap());
    let client = client(&server).await;
    let (refused, large) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let script = {
        let (refused, large) = (Arc::clone(&refused), Arc::clone(&large));
        move |kind: Kind, path: &str| match kind {
            "container" => {
                refused.fetch_add(1, Ordering::SeqCst);
                Fate::Fails(Error::Unimplemented)
            }
            "create" | "multi" if path.ends_with("-lock-") && large.load(Ordering::SeqCst) => {
                Fate::Numbered("1073741824")
            }
            _ => Fate::Passes,
        }
    };
    let (without, with) = (meddled(&server, ZkLayout::Curator, script).await, connect(&server).await);
    let mut seen = None;
    for replaced in [false, true] {
        large.store(replaced, Ordering::SeqCst);
        refused.store(0, Ordering::SeqCst);
        give_back(without.mutex("a").acquire().await.unwrap()).await;
        assert!(refused.load(Ordering::SeqCst) > 0, "{replaced}");
        let dir = client.check_stat("/locks/a").await.unwrap().unwrap();
        assert!(seen.is_none_or(|before| before != dir.czxid), "its numbers go on");
        seen = Some(dir.czxid);
        give_back(with.mutex("b").acquire().await.unwrap()).await;
        let start = Instant::now();
        while client.check_stat("/locks/b").await.unwrap().is_some() {
            assert!(start.elapsed() < SOON, "containers go");
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(100)).await;
        assert_eq!(client.check_stat("/locks/a").await.unwrap().map(|dir| dir.czxid), seen, "{replaced}");
    }
}

/// The counter of a directory neither wraps nor fails: it gives its last number again and again, and negative ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_node_with_an_exhausted_number_is_no_lock() {
    for (layout, number) in LAYOUTS
        .into_iter()
        .flat_map(|layout| ["2147483647", "-2147483648", "-1"].map(|number| (layout, number)))
    {
        let server = server().await;
        let client = client(&server).await;
        let (used_up, met) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
        let script = {
            let (used_up, met) = (Arc::clone(&used_up), Arc::clone(&met));
            move |kind: Kind, path: &str| {
                let creates = matches!(kind, "create" | "multi") && path.starts_with("/locks/a/");
                if !creates || !path.ends_with(['-', '_']) || !used_up.load(Ordering::SeqCst) {
                    return Fate::Passes;
                }
                met.lock().unwrap().push(kind);
                Fate::Numbered(number)
            }
        };
        let locks = meddled(&server, layout, script).await;
        mkdir(&client, "/locks/a").await;
        // Where the directory is unknown, and where this session had it a moment before.
        for kind in ["create", "multi"] {
            used_up.store(true, Ordering::SeqCst);
            let error = locks.mutex("a").acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{layout:?} {number}: {error}");
            assert_eq!(std::mem::take(&mut *met.lock().unwrap()), [kind], "{layout:?} {number}");
            until_children(&client, "a", 0).await;
            used_up.store(false, Ordering::SeqCst);
            give_back(locks.mutex("a").acquire().await.unwrap()).await;
        }
    }
}

/// Between the news of the raise and what is read then, the connection may break, and the next server be one that lags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_changed_is_read_behind_a_check() {
    for breaks in [false, true] {
        let server = server().await;
        let client = client(&server).await;
        let (asked, broken) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(true)));
        let script = {
            let (asked, broken) = (Arc::clone(&asked), Arc::clone(&broken));
            move |kind: Kind, path: &str| {
                if !path.ends_with("!token-base") {
                    return Fate::Passes;
                }
                asked.lock().unwrap().push(kind);
                let loses = kind == "watch_data" && !broken.swap(true, Ordering::SeqCst);
                if loses { Fate::Fails(Error::ConnectionLoss) } else { Fate::Passes }
            }
        };
        let (holder, locks) = (connect(&server).await, meddled(&server, ZkLayout::Curator, script).await);
        let guard = holder.mutex("a").acquire().await.unwrap();
        let lock = locks.mutex("a");
        let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until_children(&client, "a", 2).await;
        until("the first time", async || *asked.lock().unwrap() == ["watch_data", "watch_stat"]).await;
        sleep(Duration::from_millis(100)).await;
        asked.lock().unwrap().clear();
        broken.store(!breaks, Ordering::SeqCst);
        let floor = Token::new(guard.token().get() + 1_000_000);
        guard.raise_token(floor).await.unwrap();
        give_back(guard).await;
        let next = timeout(SOON, next).await.unwrap().unwrap();
        assert!(next.token() > floor, "{} is not above {floor}", next.token());
        let times = if breaks { 2 } else { 1 };
        assert_eq!(*asked.lock().unwrap(), ["check", "watch_data"].repeat(times));
        give_back(next).await;
    }
}

/// An answer that comes late is one of those on which the grant depends, behind the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_is_kept_whatever_answer_is_late() {
    // The directories, the listing, what became of a creation, the place of a fixed node, and the base of the tokens.
    for (kind, of, recipe) in [
        ("container", "/locks/a", ZkRecipe::Queue),
        ("children", "/locks/a", ZkRecipe::Queue),
        ("data", "/locks/a/", ZkRecipe::Queue),
        ("watch_data", "/locks/!token-base", ZkRecipe::Queue),
        ("watch_data", "/locks/!token-base", ZkRecipe::Ephemeral(ZkWait::Watch)),
        ("create", "/locks", ZkRecipe::Ephemeral(ZkWait::Watch)),
    ] {
        let server = server().await;
        let (met, over) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let script = {
            let (met, over) = (Arc::clone(&met), over.clone());
            move |asked: Kind, path: &str| {
                // What became of it is looked for once the answer is lost.
                let lost = kind == "data" && asked == "create" && path.starts_with(of);
                if lost && met.load(Ordering::SeqCst) == 0 {
                    return Fate::LosesAnswer;
                }
                // The directory above is another node.
                if asked != kind || !path.starts_with(of) || (kind == "create" && path != of) {
                    return Fate::Passes;
                }
                met.fetch_add(1, Ordering::SeqCst);
                Fate::Waits(over.clone())
            }
        };
        if kind != "container" && recipe == ZkRecipe::Queue {
            mkdir(&client(&server).await, "/locks/a").await;
        }
        let meddler = Meddler { hosts: server.connect_string(), script: Arc::new(script) };
        let locks = opened(&config(&server).recipe(recipe).ensemble(Arc::new(meddler))).await;
        let start = Instant::now();
        let acquired = timeout(SOON, locks.mutex("a").try_acquire_for(PATIENCE)).await;
        let took = start.elapsed();
        assert!(met.load(Ordering::SeqCst) > 0, "{kind} {of}: no answer was late");
        let error = acquired.expect("it comes back").expect_err("nobody has it");
        let outcome = (error.kind(), error.outcome());
        assert_eq!(outcome, (ErrorKind::Unavailable, Outcome::Unknown), "{kind} {of}");
        assert!(took >= PATIENCE && took < PATIENCE + SLACK, "{kind} {of}: {took:?}");
        // Its node is deleted, and a client with hardly any time gets the lock.
        over.cancel();
        let other = opened(&config(&server).recipe(recipe)).await;
        let guard = timeout(SOON, other.mutex("a").acquire()).await.expect("nothing is left").unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// What the end of the session leaves open is not reported as a busy lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_whose_session_ends_does_not_report_a_free_lock_as_busy() {
    for recipe in [ZkRecipe::Queue, ZkRecipe::Ephemeral(ZkWait::Watch)] {
        for ends in [1, usize::MAX] {
            let server = server().await;
            let left = Arc::new(AtomicUsize::new(0));
            let script = {
                let left = Arc::clone(&left);
                move |kind: Kind, path: &str| {
                    let enters = matches!(kind, "create" | "multi") && path.starts_with("/locks/a");
                    let take = |left: usize| left.checked_sub(1);
                    match enters && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                        true => Fate::Fails(Error::SessionExpired),
                        false => Fate::Passes,
                    }
                }
            };
            let meddler = Meddler { hosts: server.connect_string(), script: Arc::new(script) };
            let locks = opened(&config(&server).recipe(recipe).ensemble(Arc::new(meddler))).await;
            give_back(locks.mutex("a").acquire().await.unwrap()).await;
            left.store(ends, Ordering::SeqCst);
            let tried = locks.mutex("a").try_acquire().await;
            assert!(left.load(Ordering::SeqCst) < ends, "{recipe:?}: no session ended");
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
    let server = server().await;
    let client = client(&server).await;
    let (asked, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let script = {
        let (asked, refused) = (Arc::clone(&asked), Arc::clone(&refused));
        move |kind: Kind, path: &str| {
            if kind != "watch_data" || !path.starts_with("/locks/a/") {
                return Fate::Passes;
            }
            asked.fetch_add(1, Ordering::SeqCst);
            if refused.load(Ordering::SeqCst) { Fate::Fails(Error::NoAuth) } else { Fate::Passes }
        }
    };
    let locks = meddled(&server, ZkLayout::Curator, script).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    until("it never asks again", async || asked.load(Ordering::SeqCst) > 3).await;
    sleep(Duration::from_secs(1)).await;
    // Every 15 ms would be far more.
    let times = asked.load(Ordering::SeqCst);
    assert!(times < 20, "{times} times");
    refused.store(false, Ordering::SeqCst);
    until("it is not asked again", async || asked.load(Ordering::SeqCst) > times).await;
    let node = children(&client, "a").await.remove(0);
    client.delete(&format!("/locks/a/{node}"), None).await.unwrap();
    assert_eq!(timeout(SOON, guard.lost()).await.expect("it is watched"), LossReason::Removed);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}
