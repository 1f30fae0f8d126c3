//! Curator, kazoo and we on the same locks of ZooKeeper: each excludes the others, and all stand in one queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use lock_testkit::history::{Mode, ReleaseOutcome};
use lock_testkit::{EventKind, History, PATIENCE, Recorder, check, come, soon, until};
use polylock::{Guard, Released};
use tokio::task::JoinSet;

use crate::meeting::{LEASE, Meeting, NOW, Ours, Recipe, SHORT, a_moment, release, wait};
use crate::peers::servers::Servers;
use crate::peers::zookeeper::Client;
use crate::peers::{LONG, Peer, Remote};
use crate::stories::*;
use crate::{Story, trials_of};

pub(crate) fn trials(servers: &Arc<Servers>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |client, pair: Pair, stories: &[&'static [Story<At>]]| {
        for &stories in stories {
            let at = |name: &str| {
                let name = format!("{client}.{}.{name}", pair.name);
                At { name, client, pair, servers: Arc::clone(servers) }
            };
            trials.extend(trials_of(&format!("{client}::{}", pair.name), stories, at));
        }
    };
    for client in Client::ALL {
        add(client, MUTEX, &[OF_BOTH_SIDES, OF_OUR_SIDE, OF_QUEUE]);
    }
    for client in Client::SHARING {
        add(client, WRITERS, &[OF_BOTH_SIDES, OF_OUR_SIDE, OF_QUEUE]);
        add(client, READER_AND_WRITER, &[OF_BOTH_SIDES, OF_OUR_SIDE, OF_QUEUE]);
        add(client, WRITER_AND_READER, &[OF_BOTH_SIDES, OF_OUR_SIDE]);
        add(client, READERS, &[OF_SHARING]);
    }
    for pair in [READER_AND_MUTEX, WRITER_AND_MUTEX] {
        add(Client::Kazoo, pair, &[OF_BOTH_SIDES, OF_OUR_SIDE]);
        // It does not see a mutex in the directory of a read/write lock, not even its own.
        add(Client::Curator, pair, &[OF_OUR_SIDE]);
    }
    add(Client::Curator, REVOCABLE, &[OF_REVOCATION]);
    trials
}

/// Where they see our lock.
const OF_BOTH_SIDES: &[Story<At>] = stories![
    our_lock_excludes_them,
    they_get_the_lock_when_we_release_it,
    they_get_the_lock_of_a_process_of_ours_that_is_gone,
    they_cannot_touch_the_lock_that_replaced_theirs,
];

/// Where we see theirs.
const OF_OUR_SIDE: &[Story<At>] = stories![
    their_lock_excludes_us,
    we_get_the_lock_when_they_release_it,
    we_get_the_lock_of_their_process_that_is_killed,
];

/// For locks that exclude other locks of their library as well.
const OF_QUEUE: &[Story<At>] = stories![whoever_gives_up_lets_nobody_in, all_stand_in_one_queue];

const OF_SHARING: &[Story<At>] = stories![
    readers_share,
    a_writer_that_waits_is_not_overtaken,
    all_stand_in_one_queue,
    our_writer_that_becomes_a_reader_keeps_their_writer_out,
];

const OF_REVOCATION: &[Story<At>] = stories![they_ask_for_our_lock, we_ask_for_their_lock];

/// Which lock of theirs meets which of ours.
#[derive(Clone, Copy)]
struct Pair {
    name: &'static str,
    theirs: &'static str,
    ours: Recipe,
}

const MUTEX: Pair = Pair { name: "mutex", theirs: "mutex", ours: Recipe::Mutex };
const REVOCABLE: Pair = Pair { name: "revocable", theirs: "revocable", ours: Recipe::Mutex };
const READERS: Pair = Pair { name: "readers", theirs: "read", ours: Recipe::Read };
const WRITERS: Pair = Pair { name: "writers", theirs: "write", ours: Recipe::Write };
const READER_AND_WRITER: Pair = Pair { name: "reader-and-writer", theirs: "read", ours: Recipe::Write };
const WRITER_AND_READER: Pair = Pair { name: "writer-and-reader", theirs: "write", ours: Recipe::Read };
const READER_AND_MUTEX: Pair = Pair { name: "reader-and-mutex", theirs: "read", ours: Recipe::Mutex };
const WRITER_AND_MUTEX: Pair = Pair { name: "writer-and-mutex", theirs: "write", ours: Recipe::Mutex };

#[derive(Clone)]
struct At {
    name: String,
    client: Client,
    pair: Pair,
    servers: Arc<Servers>,
}

impl At {
    fn path(&self) -> String {
        format!("/locks/{}", self.name)
    }

    async fn remote(&self, recipe: &str, session: Duration) -> Remote {
        self.client.start(&self.servers, session, &self.path(), recipe).await
    }

    /// A client of theirs by this recipe.
    async fn by(&self, recipe: &str) -> Box<dyn Peer> {
        Box::new(self.remote(recipe, LEASE).await)
    }
}

impl Meeting for At {
    async fn ours_for(&self, lease: Duration) -> Ours {
        let (server, layout) = (self.servers.zk().await.connect_string(), self.client.layout());
        // Each of our tasks stands in the queue of the store.
        let url =
            format!("zk://{server}?layout={layout}&session_timeout={}s&local_handovers=1", lease.as_secs());
        Ours::connect(&url, &self.name).await.by(self.pair.ours)
    }

    async fn theirs(&self) -> Box<dyn Peer> {
        self.by(self.pair.theirs).await
    }

    async fn until_there_are(&self, count: usize) {
        let are_there = async || self.servers.nodes(&self.path()).await.len() == count;
        until(&format!("{count} hold or wait for {}", self.name), are_there).await;
    }
}

async fn we_get_the_lock_of_their_process_that_is_killed(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.remote(at.pair.theirs, SHORT).await);
    assert!(theirs.acquire(NOW).await);
    let waiter = ours.waits().await;
    at.until_there_are(2).await;
    theirs.kill();
    // Its session goes on for a while, and the lock with it.
    a_moment().await;
    assert!(!waiter.is_finished());
    release(come(waiter).await).await;
    at.until_there_are(0).await;
}

async fn whoever_gives_up_lets_nobody_in(at: At) {
    let (ours, theirs, holder) = (at.ours().await, at.theirs().await, at.ours_for(2 * LEASE).await);
    let guard = holder.hold().await;
    // They stand between the holder and us.
    let second = tokio::spawn(gives_up(theirs));
    at.until_there_are(2).await;
    let third = ours.waits().await;
    at.until_there_are(3).await;
    let theirs = come(second).await;
    at.until_there_are(2).await;
    a_moment().await;
    assert!(!third.is_finished(), "we passed the holder");
    release(guard).await;
    let guard = come(third).await;
    // And we between the holder and them.
    let second = tokio::spawn(async move { assert!(holder.acquire(PASSES).await.is_none()) });
    at.until_there_are(2).await;
    let third = wait(theirs).await;
    at.until_there_are(3).await;
    come(second).await;
    at.until_there_are(2).await;
    a_moment().await;
    assert!(!third.is_finished(), "they passed the holder");
    release(guard).await;
    let mut theirs = come(third).await;
    assert!(ours.acquire(NOW).await.is_none());
    assert_ne!(theirs.release().await, Some(false));
    at.until_there_are(0).await;
}

async fn gives_up(mut theirs: Box<dyn Peer>) -> Box<dyn Peer> {
    assert!(!theirs.acquire(PASSES).await);
    theirs
}

async fn readers_share(at: At) {
    let (ours, mut theirs, mut writer) = (at.ours().await, at.theirs().await, at.by("write").await);
    let our_writer = ours.by(Recipe::Write);
    for theirs_first in [true, false] {
        let guard = if theirs_first {
            assert!(theirs.acquire(NOW).await);
            ours.hold().await
        } else {
            let guard = ours.hold().await;
            assert!(theirs.acquire(NOW).await, "we only read");
            guard
        };
        // As long as one of them reads, nobody writes.
        assert!(!writer.acquire(NOW).await && our_writer.acquire(NOW).await.is_none());
        release(guard).await;
        assert!(!writer.acquire(NOW).await && our_writer.acquire(NOW).await.is_none());
        assert_ne!(theirs.release().await, Some(false));
        at.is_free(&our_writer, &mut *writer).await;
    }
}

async fn a_writer_that_waits_is_not_overtaken(at: At) {
    let (ours, mut theirs, mut late) = (at.ours().await, at.theirs().await, at.theirs().await);
    // Our writer behind their reader.
    assert!(theirs.acquire(NOW).await);
    let waiter = ours.by(Recipe::Write).waits().await;
    at.until_there_are(2).await;
    assert!(!late.acquire(NOW).await);
    assert!(ours.acquire(NOW).await.is_none());
    assert_ne!(theirs.release().await, Some(false));
    release(come(waiter).await).await;
    // Their writer behind our reader.
    let guard = ours.hold().await;
    let waiter = wait(at.by("write").await).await;
    at.until_there_are(2).await;
    assert!(!late.acquire(NOW).await);
    assert!(at.ours_for(2 * LEASE).await.acquire(NOW).await.is_none());
    release(guard).await;
    assert_ne!(come(waiter).await.release().await, Some(false));
    at.until_there_are(0).await;
}

async fn our_writer_that_becomes_a_reader_keeps_their_writer_out(at: At) {
    let ours = at.ours().await.by(Recipe::Write);
    // Their reader before their writer, and nobody between him and us.
    for reader_first in [true, false] {
        let mut guard = ours.hold().await;
        let mut there = 1;
        #[expect(clippy::async_yields_async, reason = "who waits is awaited later")]
        let mut stands = async |recipe: &str| {
            let waiter = wait(at.by(recipe).await).await;
            there += 1;
            at.until_there_are(there).await;
            waiter
        };
        let first = if reader_first { Some(stands("read").await) } else { None };
        let (writer, behind) = (stands("write").await, stands("read").await);
        guard.downgrade().await.unwrap();
        let reader = match first {
            Some(first) => Some(come(first).await),
            None => None,
        };
        let both_wait = async |why| {
            a_moment().await;
            assert!(!writer.is_finished() && !behind.is_finished(), "{why}");
        };
        both_wait("two read, and one waits to write").await;
        at.until_there_are(there).await;
        if let Some(mut reader) = reader {
            assert_ne!(reader.release().await, Some(false));
            both_wait("we read still").await;
        }
        release(guard).await;
        let mut writer = come(writer).await;
        a_moment().await;
        assert!(!behind.is_finished(), "one writes");
        assert_ne!(writer.release().await, Some(false));
        assert_ne!(come(behind).await.release().await, Some(false));
        at.until_there_are(0).await;
    }
}

async fn they_ask_for_our_lock(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.remote("mutex", LEASE).await);
    let guard = ours.hold().await;
    let waiter = wait(at.by("mutex").await).await;
    at.until_there_are(2).await;
    assert!(!guard.is_revoke_requested());
    assert!(theirs.revoke().await);
    soon(guard.revoke_requested()).await;
    // A wish only.
    a_moment().await;
    assert!(!waiter.is_finished());
    release(guard).await;
    assert_ne!(come(waiter).await.release().await, Some(false));
    at.until_there_are(0).await;
}

async fn we_ask_for_their_lock(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.remote(at.pair.theirs, LEASE).await);
    assert!(theirs.acquire(NOW).await);
    assert!(!theirs.is_revoked(NOW).await);
    assert!(ours.locks.request_revocation(&*at.name).await.unwrap());
    assert!(theirs.is_revoked(PATIENCE).await);
    ours.is_kept_out().await;
    assert_ne!(theirs.release().await, Some(false));
    release(ours.hold().await).await;
    at.until_there_are(0).await;
}

/// Of both makes as many, who get the lock in the order of the transactions in which they asked for it; where both read, each
/// third time they write.
async fn all_stand_in_one_queue(at: At) {
    let (history, mut fleet) = (Records::new(&at.name), JoinSet::new());
    let is_shared = at.pair.name == READERS.name;
    let theirs = if is_shared { "read,read,write" } else { at.pair.theirs };
    let ours = if is_shared { vec![Recipe::Read, Recipe::Read, Recipe::Write] } else { vec![at.pair.ours] };
    for member in 0..MEMBERS {
        // Time: a process has one session for all that are alike.
        let us = at.ours_for(LEASE + Duration::from_secs(1) * member).await;
        let mut them = at.remote(at.pair.theirs, LEASE).await;
        let records = history.file.clone();
        fleet.spawn(we_work(us, at.path(), ours.clone(), history.recorder(2 * member)));
        fleet.spawn(async move { assert!(them.work(theirs, ROUNDS, 2 * member + 1, &records).await) });
    }
    fleet.join_all().await;
    at.until_there_are(0).await;
    history.assert_that_all_were_served_in_order();
}

async fn we_work(ours: Ours, path: String, recipes: Vec<Recipe>, recorder: Recorder) {
    let record = |kind| recorder.record_at(0, 0, &path, kind);
    for recipe in recipes.into_iter().cycle().take(ROUNDS) {
        let mode = if recipe == Recipe::Read { Mode::Shared } else { Mode::Exclusive };
        record(EventKind::AcquireCalled);
        let guard: Guard = ours.by(recipe).acquire(LONG).await.expect("we were not kept out");
        record(EventKind::Acquired { token: Some(guard.token().get()), valid_until_ns: None, mode });
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
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.history"));
        std::fs::File::create(&file).expect("the target directory can be written to");
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

/// Time: of a wait that is given up, which ends while others wait.
const PASSES: Duration = Duration::from_secs(2);

const MEMBERS: u32 = 3;
/// Of each member: 500 grants in all.
const ROUNDS: usize = 84;
