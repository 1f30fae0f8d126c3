//! Curator, kazoo and we on the same locks of ZooKeeper: each excludes the others, and all stand in one queue.
//!
//! Run a part by a part of its names: `cargo xtask test kazoo::mutex`.
//! The clients are installed by `cargo xtask setup`.

use std::fs::File;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use lock_testkit::history::{Mode, ReleaseOutcome};
use lock_testkit::{EventKind, History, Recorder, check};
use polylock::{Guard, GuardState, Holder, Locks, Released};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::peers::zookeeper::{Client, Peer, Site, ZkRecipe};
use crate::runtime;

pub(crate) fn trials() -> Vec<Trial> {
    let site = Arc::new(Site::default());
    let mut trials = Vec::new();
    for client in Client::ALL {
        trials.extend(trials_of(&site, client, MUTEX, &CASES));
        trials.extend(trials_of(&site, client, MUTEX, &CASES_OF_QUEUE));
    }
    for client in Client::SHARING {
        for pair in [WRITERS, READER_AND_WRITER] {
            trials.extend(trials_of(&site, client, pair, &CASES));
            trials.extend(trials_of(&site, client, pair, &CASES_OF_QUEUE));
        }
        trials.extend(trials_of(&site, client, WRITER_AND_READER, &CASES));
        trials.extend(trials_of(&site, client, READERS, &CASES_OF_SHARING));
        trials.extend(trials_of(&site, client, READERS, &CASES_OF_DOWNGRADE));
    }
    for pair in [READER_AND_MUTEX, WRITER_AND_MUTEX] {
        trials.extend(trials_of(&site, Client::Kazoo, pair, &CASES));
        // It does not see a mutex in the directory of a read/write lock, not even its own.
        trials.extend(trials_of(&site, Client::Curator, pair, &CASES_OF_ONE_SIDE));
    }
    trials.extend(trials_of(&site, Client::Curator, REVOCABLE, &CASES_OF_REVOCATION));
    trials
}

type Case = crate::Case<At>;

/// For two locks that exclude each other.
const CASES: [Case; 7] = cases![
    their_lock_excludes_us,
    our_lock_excludes_them,
    we_get_the_lock_when_they_release_it,
    they_get_the_lock_when_we_release_it,
    we_get_the_lock_of_their_process_that_is_killed,
    they_get_the_lock_of_a_process_of_ours_that_is_gone,
    they_cannot_touch_the_lock_that_replaced_theirs,
];

/// For locks that exclude other locks of their library as well.
const CASES_OF_QUEUE: [Case; 2] = cases![whoever_gives_up_lets_nobody_in, all_stand_in_one_queue];

const CASES_OF_SHARING: [Case; 3] =
    cases![readers_share, a_writer_that_waits_is_not_overtaken, readers_and_writers_stand_in_one_queue];

const CASES_OF_DOWNGRADE: [Case; 1] = cases![our_writer_that_becomes_a_reader_keeps_their_writer_out];

/// For those of which only we see the other.
const CASES_OF_ONE_SIDE: [Case; 3] = cases![
    their_lock_excludes_us,
    we_get_the_lock_when_they_release_it,
    we_get_the_lock_of_their_process_that_is_killed,
];

const CASES_OF_REVOCATION: [Case; 2] = cases![they_ask_for_our_lock, we_ask_for_their_lock];

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

/// Which lock of theirs meets which of ours.
#[derive(Clone, Copy)]
struct Pair {
    name: &'static str,
    theirs: ZkRecipe,
    ours: ZkRecipe,
}

const MUTEX: Pair = Pair { name: "mutex", theirs: ZkRecipe::Mutex, ours: ZkRecipe::Mutex };
const REVOCABLE: Pair = Pair { name: "revocable", theirs: ZkRecipe::Revocable, ours: ZkRecipe::Mutex };
const READERS: Pair = Pair { name: "readers", theirs: ZkRecipe::Read, ours: ZkRecipe::Read };
const WRITERS: Pair = Pair { name: "writers", theirs: ZkRecipe::Write, ours: ZkRecipe::Write };
const READER_AND_WRITER: Pair =
    Pair { name: "reader-and-writer", theirs: ZkRecipe::Read, ours: ZkRecipe::Write };
const WRITER_AND_READER: Pair =
    Pair { name: "writer-and-reader", theirs: ZkRecipe::Write, ours: ZkRecipe::Read };
const READER_AND_MUTEX: Pair =
    Pair { name: "reader-and-mutex", theirs: ZkRecipe::Read, ours: ZkRecipe::Mutex };
const WRITER_AND_MUTEX: Pair =
    Pair { name: "writer-and-mutex", theirs: ZkRecipe::Write, ours: ZkRecipe::Mutex };

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
        // Each of our tasks stands in the queue of the store.
        let url = format!(
            "zk://{addr}?layout={layout}&session_timeout={}ms&local_handovers=1",
            session.as_millis()
        );
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
    recipe: ZkRecipe,
}

impl Ours {
    async fn acquire(&self, wait: Duration) -> Option<Guard> {
        let (mutex, rw) = (self.locks.mutex(&self.name), self.locks.rw(&self.name));
        // A busy machine may keep the server from answering for longer than no time.
        let acquired = match self.recipe {
            ZkRecipe::Mutex | ZkRecipe::Revocable if wait == NOW => mutex.try_acquire().await,
            ZkRecipe::Mutex | ZkRecipe::Revocable => mutex.try_acquire_for(wait).await,
            ZkRecipe::Read if wait == NOW => rw.try_read().await,
            ZkRecipe::Read => rw.try_read_for(wait).await,
            ZkRecipe::Write if wait == NOW => rw.try_write().await,
            ZkRecipe::Write => rw.try_write_for(wait).await,
        };
        acquired.unwrap()
    }

    fn with(&self, recipe: ZkRecipe) -> Self {
        Self { recipe, ..self.clone() }
    }

    async fn release(guard: Guard) {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// A client of theirs.
struct Theirs {
    peer: Peer,
    path: String,
    recipe: ZkRecipe,
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
    let holder = ours.locks.inspect(&at.name).await.unwrap().holder().cloned();
    assert!(matches!(holder, Some(Holder::Foreign(_))), "{holder:?}");
    at.until_there_are(1).await;
    theirs.release().await;
    Ours::release(ours.acquire(NOW).await.expect("they released it")).await;
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
    Ours::release(waiter.await.unwrap().expect("they released it")).await;
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
    assert!(held, "they did not get what we released");
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
    // With its runtime goes all that would keep the session or release the lock.
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

async fn readers_share(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let mut writer = at.theirs().await;
    writer.recipe = ZkRecipe::Write;
    for theirs_first in [true, false] {
        let guard = if theirs_first {
            assert!(theirs.acquire(NOW).await);
            ours.acquire(NOW).await.expect("they only read")
        } else {
            let guard = ours.acquire(NOW).await.expect("nobody has it");
            assert!(theirs.acquire(NOW).await, "we only read");
            guard
        };
        // As long as one of them reads, nobody writes.
        assert!(!writer.acquire(NOW).await);
        assert!(ours.with(ZkRecipe::Write).acquire(NOW).await.is_none());
        Ours::release(guard).await;
        assert!(!writer.acquire(NOW).await);
        assert!(ours.with(ZkRecipe::Write).acquire(NOW).await.is_none());
        theirs.release().await;
        Ours::release(ours.with(ZkRecipe::Write).acquire(NOW).await.expect("nobody has it")).await;
        assert!(writer.acquire(NOW).await);
        writer.release().await;
        at.until_there_are(0).await;
    }
}

async fn a_writer_that_waits_is_not_overtaken(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let mut late = at.theirs().await;
    // Our writer behind their reader.
    assert!(theirs.acquire(NOW).await);
    let writer = ours.with(ZkRecipe::Write);
    let waiter = tokio::spawn(async move { writer.acquire(LONG).await });
    at.until_there_are(2).await;
    assert!(!late.acquire(NOW).await);
    assert!(ours.acquire(NOW).await.is_none());
    theirs.release().await;
    Ours::release(waiter.await.unwrap().expect("they released it")).await;
    // Their writer behind our reader.
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    theirs.recipe = ZkRecipe::Write;
    let waiter = tokio::spawn(async move { (theirs.acquire(LONG).await, theirs) });
    at.until_there_are(2).await;
    assert!(!late.acquire(NOW).await);
    assert!(at.ours_for(SESSION * 2).await.acquire(NOW).await.is_none());
    Ours::release(guard).await;
    let (held, mut theirs) = waiter.await.unwrap();
    assert!(held, "they did not get what we released");
    theirs.release().await;
    at.until_there_are(0).await;
}

async fn our_writer_that_becomes_a_reader_keeps_their_writer_out(at: At) {
    let (ours, mut reader, mut writer, mut late) =
        (at.ours().await, at.theirs().await, at.theirs().await, at.theirs().await);
    writer.recipe = ZkRecipe::Write;
    // Their reader before their writer, and nobody between him and us.
    for reader_first in [true, false] {
        let mut guard = ours.with(ZkRecipe::Write).acquire(NOW).await.expect("nobody has it");
        let first = tokio::spawn(async move { (!reader_first || reader.acquire(LONG).await, reader) });
        let mut there = if reader_first { 2 } else { 1 };
        at.until_there_are(there).await;
        let waiting = tokio::spawn(async move { (writer.acquire(LONG).await, writer) });
        at.until_there_are(there + 1).await;
        let behind = tokio::spawn(async move { (late.acquire(LONG).await, late) });
        there += 2;
        at.until_there_are(there).await;
        sleep(MOMENT).await;
        assert!(!reader_first || !first.is_finished(), "we write");
        guard.downgrade().await.unwrap();
        let (held, their_reader) = timeout(PATIENCE, first).await.expect("we only read").unwrap();
        assert!(held, "they did not get in with us");
        reader = their_reader;
        sleep(MOMENT).await;
        assert!(!waiting.is_finished() && !behind.is_finished(), "two read, and one waits to write");
        at.until_there_are(there).await;
        if reader_first {
            reader.release().await;
            sleep(MOMENT).await;
            assert!(!waiting.is_finished() && !behind.is_finished(), "we read still");
        }
        Ours::release(guard).await;
        let (held, their_writer) = waiting.await.unwrap();
        assert!(held, "they did not get what we released");
        writer = their_writer;
        sleep(MOMENT).await;
        assert!(!behind.is_finished(), "one writes");
        writer.release().await;
        let (held, their_late) = behind.await.unwrap();
        assert!(held, "they did not get what they released");
        late = their_late;
        late.release().await;
        at.until_there_are(0).await;
    }
}

async fn they_ask_for_our_lock(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    let waiter = {
        let path = at.path();
        let mut other = at.theirs().await;
        tokio::spawn(async move { (other.peer.acquire(&path, ZkRecipe::Mutex, LONG).await, other) })
    };
    at.until_there_are(2).await;
    assert!(!guard.is_revoke_requested());
    assert!(theirs.peer.revoke(&at.path()).await);
    timeout(PATIENCE, guard.revoke_requested()).await.expect("they have asked for it");
    // A wish only.
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    Ours::release(guard).await;
    let (held, mut other) = waiter.await.unwrap();
    assert!(held, "they did not get what we released");
    other.release().await;
    at.until_there_are(0).await;
}

async fn we_ask_for_their_lock(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(NOW).await);
    assert!(!theirs.peer.is_revoked(NOW).await);
    assert!(ours.locks.request_revocation(&at.name).await.unwrap());
    assert!(theirs.peer.is_revoked(PATIENCE).await);
    assert!(ours.acquire(MOMENT).await.is_none());
    theirs.release().await;
    Ours::release(ours.acquire(NOW).await.expect("they released it")).await;
    at.until_there_are(0).await;
}

async fn all_stand_in_one_queue(at: At) {
    let recipes = (vec![at.pair.theirs], vec![at.pair.ours]);
    stand_in_one_queue(at, recipes).await;
}

async fn readers_and_writers_stand_in_one_queue(at: At) {
    let recipes = vec![ZkRecipe::Read, ZkRecipe::Read, ZkRecipe::Write];
    stand_in_one_queue(at, (recipes.clone(), recipes)).await;
}

/// Of both makes as many, who get the lock in the order of the transactions in which they asked for it.
async fn stand_in_one_queue(at: At, (theirs_take, ours_take): (Vec<ZkRecipe>, Vec<ZkRecipe>)) {
    let history = Records::new(&at.name);
    let mut fleet = JoinSet::new();
    for member in 0..MEMBERS {
        // A process has one session for all that are alike.
        let ours = at.ours_for(SESSION + Duration::from_secs(1) * member).await;
        let mut theirs = at.theirs().await;
        let (path, recipes) = (at.path(), theirs_take.clone());
        let records = history.file.clone();
        fleet.spawn(we_work(ours, at.path(), ours_take.clone(), history.recorder(2 * member)));
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

async fn we_work(ours: Ours, path: String, recipes: Vec<ZkRecipe>, recorder: Recorder) {
    let record = |kind| recorder.record_at(0, 0, &path, kind);
    for recipe in recipes.into_iter().cycle().take(ROUNDS) {
        let mode = if recipe == ZkRecipe::Read { Mode::Shared } else { Mode::Exclusive };
        record(EventKind::AcquireCalled);
        let guard = ours.with(recipe).acquire(LONG).await;
        let guard = guard.unwrap_or_else(|| panic!("we were kept out for {LONG:?}"));
        let token = Some(guard.token().get());
        record(EventKind::Acquired { token, valid_until_ns: None, mode });
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

    /// Nobody held the lock together with others whom it excludes, and the tokens, which come from the numbers of the
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
        assert_eq!((report.holds, report.locks.len()), (2 * MEMBERS as usize * ROUNDS, 1));
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
/// What those have that are: longer than it takes the other client to ask, on a busy machine.
const SHORT: Duration = Duration::from_secs(5);
/// Far longer than what must happen takes to happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any trial.
const LONG: Duration = Duration::from_secs(60);

const MEMBERS: u32 = 3;
/// Of each member: 500 grants in all.
const ROUNDS: usize = 84;
