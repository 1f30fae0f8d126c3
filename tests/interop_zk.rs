//! Curator, kazoo and we on the same locks of ZooKeeper: each excludes the others, and all stand in one queue.
//!
//! Run a part by a part of its names: `cargo test --all-features --test interop_zk -- kazoo::mutex`.
//! The clients are installed by `cargo xtask setup`, which `cargo xtask test` runs first.

#[allow(unreachable_pub, reason = "a test program is no library")]
#[path = "peers/zookeeper/mod.rs"]
mod peers;
#[allow(dead_code, unreachable_pub, reason = "it runs what other test programs need as well")]
#[path = "peers/program.rs"]
mod program;

use std::fs::File;
use std::mem;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lock_testkit::history::{Mode, ReleaseOutcome};
use lock_testkit::{EventKind, History, Recorder, check};
use polylock::{Guard, Holder, Locks, Released, Standing};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use peers::{Client, Peer, Recipe, Site};

/// Every one has processes of its own; more of them at once, and all wait for a processor.
const THREADS: usize = 4;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let site = Arc::new(Site::default());
    let mut trials = Vec::new();
    for client in Client::ALL {
        trials.extend(trials_of(&site, client, MUTEX, &CASES));
        trials.extend(trials_of(&site, client, MUTEX, &CASES_OF_QUEUE));
    }
    for pair in [READER_AND_MUTEX, WRITER_AND_MUTEX] {
        trials.extend(trials_of(&site, Client::Kazoo, pair, &CASES));
        // It does not see a mutex in the directory of a read/write lock, not even its own.
        trials.extend(trials_of(&site, Client::Curator, pair, &CASES_OF_ONE_SIDE));
    }
    trials
}

/// A case, by the name of its function.
type Case = (&'static str, fn(At) -> Pin<Box<dyn Future<Output = ()>>>);

macro_rules! cases {
    ($($case:ident),* $(,)?) => { [$((stringify!($case), |at| Box::pin($case(at)))),*] };
}

/// For two locks that exclude each other.
const CASES: [Case; 8] = cases![
    their_lock_excludes_us,
    our_lock_excludes_them,
    we_get_the_lock_when_they_release_it,
    they_get_the_lock_when_we_release_it,
    we_get_the_lock_of_their_process_that_is_killed,
    they_get_the_lock_of_a_process_of_ours_that_is_gone,
    whoever_gives_up_lets_nobody_in,
    they_cannot_touch_the_lock_that_replaced_theirs,
];

/// For those of which only we see the other.
const CASES_OF_ONE_SIDE: [Case; 3] = cases![
    their_lock_excludes_us,
    we_get_the_lock_when_they_release_it,
    we_get_the_lock_of_their_process_that_is_killed,
];

const CASES_OF_QUEUE: [Case; 1] = cases![all_stand_in_one_queue];

fn trials_of(
    site: &Arc<Site>,
    client: Client,
    pair: Pair,
    cases: &'static [Case],
) -> impl Iterator<Item = Trial> {
    cases.iter().map(move |(name, case)| {
        let at = At { name: format!("{client}.{}.{name}", pair.name), client, pair, site: Arc::clone(site) };
        Trial::test(format!("{client}::{}::{name}", pair.name), move || {
            runtime().block_on(case(at));
            Ok(())
        })
    })
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system has threads to spare")
}

/// Which lock of theirs meets which of ours.
#[derive(Clone, Copy)]
struct Pair {
    name: &'static str,
    theirs: Recipe,
    ours: Recipe,
}

const MUTEX: Pair = Pair { name: "mutex", theirs: Recipe::Mutex, ours: Recipe::Mutex };
const READER_AND_MUTEX: Pair = Pair { name: "reader-and-mutex", theirs: Recipe::Read, ours: Recipe::Mutex };
const WRITER_AND_MUTEX: Pair = Pair { name: "writer-and-mutex", theirs: Recipe::Write, ours: Recipe::Mutex };

/// Where a case runs, and against whom.
struct At {
    name: String,
    client: Client,
    pair: Pair,
    site: Arc<Site>,
}

impl At {
    async fn ours(&self) -> Ours {
        self.ours_for(SESSION).await
    }

    async fn ours_for(&self, session: Duration) -> Ours {
        let (addr, layout) = (self.site.addr().await, self.client.layout());
        let url = format!("zk://{addr}?layout={layout}&session_timeout={}ms", session.as_millis());
        let locks = Locks::connect(&url).await.unwrap();
        Ours { locks, name: self.name.clone(), recipe: self.pair.ours }
    }

    async fn theirs(&self) -> Theirs {
        self.theirs_for(SESSION).await
    }

    async fn theirs_for(&self, session: Duration) -> Theirs {
        let peer = self.client.start(&self.site, session).await;
        Theirs { peer, path: self.path(), recipe: self.pair.theirs }
    }

    fn path(&self) -> String {
        format!("/locks/{}", self.name)
    }

    /// Waits until so many hold the lock or wait for it.
    async fn until_there_are(&self, count: usize) {
        let start = Instant::now();
        loop {
            let nodes = self.site.nodes(&self.path()).await;
            if nodes.len() == count {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{nodes:?} and not {count}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A client of ours.
#[derive(Clone)]
struct Ours {
    locks: Locks,
    name: String,
    recipe: Recipe,
}

impl Ours {
    async fn acquire(&self, wait: Duration) -> Option<Guard> {
        match self.recipe {
            Recipe::Mutex => self.locks.mutex(&self.name).try_acquire_for(wait).await.unwrap(),
            Recipe::Read => self.locks.rw(&self.name).try_read_for(wait).await.unwrap(),
            Recipe::Write => self.locks.rw(&self.name).try_write_for(wait).await.unwrap(),
        }
    }

    async fn release(guard: Guard) {
        assert_eq!(guard.verify().await.unwrap(), Standing::Valid);
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// A client of theirs.
struct Theirs {
    peer: Peer,
    path: String,
    recipe: Recipe,
}

impl Theirs {
    async fn acquire(&mut self, wait: Duration) -> bool {
        self.peer.acquire(&self.path, self.recipe, wait).await
    }

    async fn release(&mut self) {
        assert!(self.peer.release().await);
    }
}

async fn their_lock_excludes_us(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(NOW).await);
    assert!(ours.acquire(NOW).await.is_none());
    assert!(ours.acquire(MOMENT).await.is_none());
    let holder = ours.locks.inspect(&at.name).await.unwrap().holder;
    assert!(matches!(holder, Some(Holder::Foreign(_))), "{holder:?}");
    at.until_there_are(1).await;
    theirs.release().await;
    Ours::release(ours.acquire(NOW).await.expect("they gave it back")).await;
    at.until_there_are(0).await;
}

async fn our_lock_excludes_them(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    assert!(!theirs.acquire(NOW).await);
    assert!(!theirs.acquire(MOMENT).await);
    at.until_there_are(1).await;
    Ours::release(guard).await;
    assert!(theirs.acquire(NOW).await);
    theirs.release().await;
    at.until_there_are(0).await;
}

async fn we_get_the_lock_when_they_release_it(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(NOW).await);
    let waiter = tokio::spawn(async move { ours.acquire(LONG).await });
    at.until_there_are(2).await;
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    theirs.release().await;
    Ours::release(waiter.await.unwrap().expect("they gave it back")).await;
    at.until_there_are(0).await;
}

async fn they_get_the_lock_when_we_release_it(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    let waiter = tokio::spawn(async move { (theirs.acquire(LONG).await, theirs) });
    at.until_there_are(2).await;
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    Ours::release(guard).await;
    let (held, mut theirs) = waiter.await.unwrap();
    assert!(held, "they did not get what we gave back");
    assert!(ours.acquire(NOW).await.is_none());
    theirs.release().await;
    at.until_there_are(0).await;
}

async fn we_get_the_lock_of_their_process_that_is_killed(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs_for(SHORT).await);
    assert!(theirs.acquire(NOW).await);
    let waiter = {
        let ours = ours.clone();
        tokio::spawn(async move { ours.acquire(LONG).await })
    };
    at.until_there_are(2).await;
    theirs.peer.kill();
    // Its session goes on for a while, and the lock with it.
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    Ours::release(waiter.await.unwrap().expect("the lock of a session that ended is free")).await;
    at.until_there_are(0).await;
}

async fn they_get_the_lock_of_a_process_of_ours_that_is_gone(at: At) {
    let mut theirs = at.theirs().await;
    let at = Arc::new(at);
    let there = Arc::clone(&at);
    // With its runtime goes all that would keep the session or give the lock back.
    let gone = thread::spawn(move || {
        runtime().block_on(async {
            let ours = there.ours_for(SHORT).await;
            mem::forget(ours.acquire(NOW).await.expect("nobody has it"));
        });
    });
    gone.join().unwrap();
    assert!(!theirs.acquire(NOW).await);
    assert!(theirs.acquire(LONG).await);
    theirs.release().await;
    at.until_there_are(0).await;
}

async fn whoever_gives_up_lets_nobody_in(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let holder = at.ours_for(SESSION * 2).await;
    let guard = holder.acquire(NOW).await.expect("nobody has it");
    // They stand between the holder and us.
    let second = tokio::spawn(async move { (theirs.acquire(MOMENT * 2).await, theirs) });
    at.until_there_are(2).await;
    let third = tokio::spawn(async move { (ours.acquire(LONG).await, ours) });
    at.until_there_are(3).await;
    let (held, mut theirs) = second.await.unwrap();
    assert!(!held);
    at.until_there_are(2).await;
    sleep(MOMENT).await;
    assert!(!third.is_finished());
    Ours::release(guard).await;
    let (guard, ours) = third.await.unwrap();
    let guard = guard.expect("the one before us gave up, and the holder is done");
    // And we between the holder and them.
    let second = tokio::spawn(async move { (holder.acquire(MOMENT * 2).await, holder) });
    at.until_there_are(2).await;
    let third = tokio::spawn(async move { (theirs.acquire(LONG).await, theirs) });
    at.until_there_are(3).await;
    assert!(second.await.unwrap().0.is_none());
    at.until_there_are(2).await;
    sleep(MOMENT).await;
    assert!(!third.is_finished());
    Ours::release(guard).await;
    let (held, mut theirs) = third.await.unwrap();
    assert!(held, "the one before them gave up, and the holder is done");
    assert!(ours.acquire(NOW).await.is_none());
    theirs.release().await;
    at.until_there_are(0).await;
}

async fn they_cannot_touch_the_lock_that_replaced_theirs(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(NOW).await);
    assert!(ours.locks.break_lock(&at.name).await.unwrap());
    let guard = ours.acquire(NOW).await.expect("it was broken");
    // They do not know yet, so it is sent.
    theirs.release().await;
    Ours::release(guard).await;
    at.until_there_are(0).await;
}

/// Of both makes as many, who get the lock in the order of the transactions in which they asked for it.
async fn all_stand_in_one_queue(at: At) {
    let history = Records::new(&at.name);
    let mut fleet = JoinSet::new();
    for member in 0..MEMBERS {
        // A process has one session for all that are alike.
        let ours = at.ours_for(SESSION + Duration::from_secs(1) * member).await;
        let mut theirs = at.theirs().await;
        let (path, recipes) = (at.path(), [theirs.recipe]);
        let records = history.file.clone();
        fleet.spawn(we_work(ours, history.recorder(2 * member)));
        fleet.spawn(async move {
            let process = 2 * member + 1;
            let done = theirs.peer.work(&path, &recipes, ROUNDS, LONG, (process, &records)).await;
            assert!(done, "they were kept out for {LONG:?}");
        });
    }
    while let Some(member) = fleet.join_next().await {
        member.unwrap();
    }
    at.until_there_are(0).await;
    history.assert_that_all_were_served_in_order();
}

async fn we_work(ours: Ours, recorder: Recorder) {
    let record = |kind| recorder.record_at(0, 0, &ours.name, kind);
    for _ in 0..ROUNDS {
        record(EventKind::AcquireCalled);
        let guard = ours.acquire(LONG).await.unwrap_or_else(|| panic!("we were kept out for {LONG:?}"));
        let token = Some(guard.token().get());
        record(EventKind::Acquired { token, valid_until_ns: None, mode: Mode::Exclusive });
        record(EventKind::ReleaseCalled);
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        record(EventKind::Released { outcome: ReleaseOutcome::Released });
    }
}

/// What happened, in one file that all append to: the place in it is the time.
struct Records {
    file: PathBuf,
}

impl Records {
    fn new(name: &str) -> Self {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.history"));
        File::create(&file).expect("the target directory can be written to");
        Self { file }
    }

    fn recorder(&self, process: u32) -> Recorder {
        Recorder::create(&self.file, process).unwrap_or_else(|error| panic!("{error}")).flush_every_event()
    }

    /// Nobody held the lock together with others whom it excludes, and the tokens, which are the numbers of the
    /// transactions that made the nodes, grew from grant to grant.
    fn assert_that_all_were_served_in_order(&self) {
        let history = History::load([&self.file]).unwrap_or_else(|error| panic!("{error}"));
        let in_order = history.events().iter().cloned().zip(1..).map(|(mut event, place)| {
            event.at_ns = place;
            event
        });
        let history = History::new(in_order);
        let report = check(&history);
        report.assert_holds();
        assert_eq!(report.tenures, 2 * MEMBERS as usize * ROUNDS);
        let grants = history.events().iter().filter(|event| matches!(event.kind, EventKind::Acquired { .. }));
        let ours: Vec<_> = grants.map(|event| event.process % 2 == 0).collect();
        let changes = ours.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes > ROUNDS / 2, "the queue was hardly ever mixed: {changes} of {}", ours.len());
    }
}

const NOW: Duration = Duration::ZERO;
const MOMENT: Duration = Duration::from_millis(300);
/// What sessions have that are not meant to end.
const SESSION: Duration = Duration::from_secs(10);
/// What those have that are.
const SHORT: Duration = Duration::from_secs(2);
/// Far longer than what must happen takes to happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any trial.
const LONG: Duration = Duration::from_secs(60);

const MEMBERS: u32 = 3;
/// Of each member: 500 grants in all.
const ROUNDS: usize = 84;
