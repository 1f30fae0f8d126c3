//! Clients of other libraries, which only know Redis, beside ours that move to ZooKeeper: each excludes the other on every
//! rung, and a tombstone keeps the others out.
//!
//! Run a part by a part of its names: `cargo xtask test redis-py::dual`.
//! The clients in other languages are installed by `cargo xtask setup`.

use std::mem;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use lock_testkit::{ZooKeeper, migration_url};
use polylock::migrate::Gate;
use polylock::{Guard, GuardState, Locks, Operator, Released, Rung, Token};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::peers::redis::{Client, ONE, Peer, Site};
use crate::runtime;

/// The rungs beside which clients of Redis alone may run.
const RUNGS: [Rung; 4] = [Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move];

pub(crate) fn trials() -> Vec<Trial> {
    let zk = Arc::default();
    let mut trials = Vec::new();
    for client in Client::ALL.into_iter().chain([Client::Setnx]) {
        let stage = Stage::new(client, &zk);
        for rung in RUNGS {
            trials.extend(CASES.iter().map(|case| trial(&stage, rung, case)));
            // Once a name has moved, they do not get it any more.
            if rung < Rung::Move {
                trials.extend(CASES_OF_LOCKS_THAT_STAY.iter().map(|case| trial(&stage, rung, case)));
            }
        }
        trials.extend(CASES_OF_TOMBSTONES.iter().map(|case| trial(&stage, Rung::Move, case)));
        match client {
            Client::Setnx => trials.extend(CASES_OF_SETNX.iter().map(|case| trial(&stage, Rung::Move, case))),
            _ => trials.extend(CASES_OF_TOKENS.iter().map(|case| trial(&stage, Rung::Move, case))),
        }
        if client == Client::PythonRedisLock {
            trials.extend(CASES_OF_RESETS.iter().map(|case| trial(&stage, Rung::Move, case)));
        }
        // The way back is that of all names.
        let alone = Stage { site: Arc::new(Site::new(ONE)), name: format!("{client}-back"), ..stage };
        trials.extend(CASES_OF_THE_WAY_BACK.iter().map(|case| trial(&alone, Rung::Move, case)));
    }
    for client in Client::OF_ANOTHER_TYPE {
        let stage = Stage::new(client, &zk);
        trials.extend(CASES_OF_ANOTHER_TYPE.iter().map(|case| trial(&stage, Rung::Move, case)));
    }
    trials
}

type Case = crate::Case<At>;

const CASES: [Case; 4] = cases![
    their_lock_excludes_us,
    our_lock_excludes_them,
    our_renewal_keeps_them_out,
    we_get_the_lock_when_they_release_it,
];

const CASES_OF_LOCKS_THAT_STAY: [Case; 2] =
    cases![they_get_the_lock_when_we_release_it, they_get_the_lock_of_a_process_that_is_gone];

const CASES_OF_TOMBSTONES: [Case; 3] = cases![
    a_lock_that_has_moved_is_busy_for_them,
    their_late_calls_leave_the_tombstone,
    no_update_is_lost_while_the_lock_moves,
];

/// The recipe has no token: its release looks at the time that it wrote only.
const CASES_OF_TOKENS: [Case; 1] = cases![they_cannot_touch_the_tombstone_that_replaced_their_lock];

const CASES_OF_SETNX: [Case; 1] = cases![a_time_that_is_written_late_takes_the_place_of_the_tombstone];

const CASES_OF_RESETS: [Case; 1] = cases![their_reset_removes_the_tombstone];

const CASES_OF_THE_WAY_BACK: [Case; 1] = cases![they_get_the_lock_after_the_way_back];

const CASES_OF_ANOTHER_TYPE: [Case; 1] = cases![a_tombstone_is_an_error_for_them];

fn trial(stage: &Stage, rung: Rung, (name, case): &'static Case) -> Trial {
    let at = At { name: format!("{rung}/{name}"), rung, stage: stage.clone() };
    Trial::test(format!("{}::{rung}::{name}", stage.client), move || {
        runtime().block_on(case(at));
        Ok(())
    })
}

/// Servers, and a client of another library on them. A migration is of all locks with a prefix.
#[derive(Clone)]
struct Stage {
    client: Client,
    /// That of the directory on ZooKeeper.
    name: String,
    site: Arc<Site>,
    zk: Arc<OnceCell<ZooKeeper>>,
}

impl Stage {
    fn new(client: Client, zk: &Arc<OnceCell<ZooKeeper>>) -> Self {
        Self { client, name: client.to_string(), site: Arc::new(Site::new(ONE)), zk: Arc::clone(zk) }
    }

    /// The URL of the locks of Redis that we share with them.
    async fn redis(&self) -> String {
        let recipe = if self.client == Client::Setnx { "&recipe=setnx-timestamp" } else { "" };
        let ttl = OUR_TTL.as_secs();
        format!("redis://{}?prefix={}&ttl={ttl}s{recipe}", self.site.addrs().await, self.client.prefix())
    }

    async fn zk(&self) -> String {
        let start = async || ZooKeeper::start().await.unwrap_or_else(|error| panic!("{error}"));
        let url = self.zk.get_or_init(start).await.url();
        format!("{url}?dir=/{}&session_timeout=4s&session=private", self.name)
    }

    /// A process of ours: on this rung, or on those of the record.
    async fn process(&self, rung: Option<Rung>) -> Locks {
        let (from, to) = (self.redis().await, self.zk().await);
        let pinned = rung.map(|rung| format!("&rung={rung}")).unwrap_or_default();
        Locks::connect(&migration_url("interop", &from, &to, &pinned)).await.unwrap()
    }

    async fn operator(&self) -> Operator {
        let connect = |url: &str| Arc::clone(Locks::connect_lazy(url).unwrap().backend());
        let (from, to) = (connect(&self.redis().await), connect(&self.zk().await));
        Operator::connect("interop", from, to).await.unwrap()
    }
}

/// Where a case runs, and against whom.
struct At {
    name: String,
    rung: Rung,
    stage: Stage,
}

impl At {
    async fn ours(&self) -> Locks {
        self.on(self.rung).await
    }

    async fn on(&self, rung: Rung) -> Locks {
        self.stage.process(Some(rung)).await
    }

    async fn theirs(&self) -> Box<dyn Peer> {
        self.stage.client.start(&self.stage.site).await
    }

    fn key(&self) -> String {
        format!("{}{}", self.stage.client.prefix(), self.name)
    }

    async fn get(&self, key: &str) -> Option<String> {
        let reply = self.stage.site.first(&["GET", key]).await;
        reply.text().map(ToOwned::to_owned)
    }

    async fn delete(&self) {
        assert_eq!(self.stage.site.first(&["DEL", &self.key()]).await.int(), Some(1));
    }

    /// The keys of the tombstone.
    fn tombstone_keys(&self) -> Vec<String> {
        let key = self.key();
        let text = (self.stage.client == Client::Setnx).then(|| format!("polylock:moved:{{{key}}}"));
        [key].into_iter().chain(text).collect()
    }

    /// The bytes of the tombstone, which has its whole life before it.
    async fn tombstone(&self) -> Vec<String> {
        let mut values = Vec::new();
        for key in self.tombstone_keys() {
            let left = self.stage.site.first(&["PTTL", &key]).await.int();
            assert!(left > Some(DAYS_29), "{key} ends in {left:?} ms");
            values.push(self.get(&key).await.unwrap_or_else(|| panic!("there is no {key}")));
        }
        assert!(values.iter().any(|value| value.starts_with("polylock:moved")), "{values:?}");
        values
    }

    async fn is_moved(&self) -> bool {
        let [.., text] = &self.tombstone_keys()[..] else { unreachable!("a lock has a key") };
        let is_time =
            self.stage.client != Client::Setnx || self.get(&self.key()).await == Some(YEAR_5000.into());
        is_time && self.get(text).await.is_some_and(|text| text.starts_with("polylock:moved"))
    }

    /// Moves the lock, and returns the bytes of its tombstone.
    async fn move_lock(&self) -> Vec<String> {
        let ours = self.on(Rung::Move).await;
        hold(&ours, &self.name).await.release().await.unwrap();
        ours.close().await.unwrap();
        self.tombstone().await
    }

    /// Whether they are kept out at once, and when they wait.
    async fn keeps_out(&self, theirs: &mut Box<dyn Peer>) {
        assert!(!theirs.acquire(&self.name, Some(LONG), NOW).await, "they got the lock");
        assert!(!theirs.acquire(&self.name, Some(LONG), MOMENT).await, "they got the lock after a wait");
    }

    /// Whoever comes next can have the lock: ours can, and theirs unless it has moved.
    async fn is_free(&self, ours: &Locks, theirs: &mut Box<dyn Peer>) {
        if self.is_moved().await {
            let tombstone = self.tombstone().await;
            self.keeps_out(theirs).await;
            assert_eq!(self.tombstone().await, tombstone);
        } else {
            assert!(theirs.acquire(&self.name, Some(LONG), PATIENCE).await);
            assert_ne!(theirs.release().await, Some(false));
        }
        hold(ours, &self.name).await.release().await.unwrap();
    }
}

/// Nobody has touched the lock that this guard holds.
async fn is_untouched(guard: &Guard) {
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    assert!(guard.is_valid());
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let guard = locks.mutex(name).try_acquire_for(PATIENCE).await.unwrap();
    guard.unwrap_or_else(|| panic!("{name} is busy"))
}

async fn is_busy(locks: &Locks, name: &str) {
    assert!(locks.mutex(name).try_acquire().await.unwrap().is_none(), "{name} is free");
}

async fn their_lock_excludes_us(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    is_busy(&ours, &at.name).await;
    assert!(ours.mutex(&at.name).try_acquire_for(MOMENT).await.unwrap().is_none());
    assert_ne!(theirs.release().await, Some(false));
    // What waited above may leave the queue a moment later.
    let guard = hold(&ours, &at.name).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert_eq!(at.is_moved().await, at.rung == Rung::Move);
    at.is_free(&ours, &mut theirs).await;
}

async fn our_lock_excludes_them(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("nobody has it");
    at.keeps_out(&mut theirs).await;
    is_untouched(&guard).await;
    is_busy(&at.ours().await, &at.name).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert_eq!(at.is_moved().await, at.rung == Rung::Move);
    at.is_free(&ours, &mut theirs).await;
}

async fn our_renewal_keeps_them_out(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = hold(&ours, &at.name).await;
    assert!(!theirs.acquire(&at.name, Some(LONG), OUR_TTL + OUR_TTL / 2).await);
    is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn we_get_the_lock_when_they_release_it(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    let mutex = ours.mutex(&at.name);
    let waiter = tokio::spawn(async move { mutex.try_acquire_for(PATIENCE).await.unwrap() });
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    assert_ne!(theirs.release().await, Some(false));
    let guard = waiter.await.unwrap().expect("a release by others is noticed within the cap of a sleep");
    at.keeps_out(&mut theirs).await;
    is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn they_get_the_lock_when_we_release_it(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = hold(&ours, &at.name).await;
    let name = at.name.clone();
    let waiter = tokio::spawn(async move {
        let held = theirs.acquire(&name, Some(LONG), PATIENCE).await;
        (theirs, held)
    });
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let (mut theirs, held) = waiter.await.unwrap();
    assert!(held, "they did not get what we released");
    is_busy(&ours, &at.name).await;
    assert_ne!(theirs.release().await, Some(false));
}

async fn they_get_the_lock_of_a_process_that_is_gone(at: At) {
    let mut theirs = at.theirs().await;
    let (stage, rung, name) = (at.stage.clone(), at.rung, at.name.clone());
    // With its runtime goes all that would renew or release the lock.
    let gone = thread::spawn(move || {
        runtime().block_on(async {
            let ours = stage.process(Some(rung)).await;
            mem::forget(hold(&ours, &name).await);
        });
    });
    gone.join().unwrap();
    assert!(!theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(theirs.acquire(&at.name, Some(LONG), PATIENCE).await);
    let ours = at.ours().await;
    is_busy(&ours, &at.name).await;
    assert_ne!(theirs.release().await, Some(false));
    hold(&ours, &at.name).await.release().await.unwrap();
}

async fn a_lock_that_has_moved_is_busy_for_them(at: At) {
    let tombstone = at.move_lock().await;
    let mut theirs = at.theirs().await;
    at.keeps_out(&mut theirs).await;
    assert!(!theirs.acquire(&at.name, Some(SHORT), SHORT + MOMENT).await, "they got the lock after a wait");
    assert_eq!(at.tombstone().await, tombstone);
    // Ours come and go meanwhile, and a tombstone is written once.
    for rung in RUNGS {
        let ours = at.on(rung).await;
        let guard = hold(&ours, &at.name).await;
        at.keeps_out(&mut theirs).await;
        is_untouched(&guard).await;
        guard.release().await.unwrap();
    }
    assert_eq!(at.tombstone().await, tombstone);
}

/// Their lock has ended, and ours has moved it, when they extend and release it.
async fn their_late_calls_leave_the_tombstone(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(SHORT), NOW).await);
    let guard = hold(&ours, &at.name).await;
    let tombstone = at.tombstone().await;
    if at.stage.client != Client::Setnx {
        assert!(!theirs.extend(SHORT).await, "they extended the tombstone");
    }
    let released = theirs.release().await;
    // The recipe does not look whose lock it is, but whether its own time has come.
    assert!(at.stage.client == Client::Setnx || released != Some(true), "they released the tombstone");
    assert_eq!(at.tombstone().await, tombstone);
    is_untouched(&guard).await;
    guard.release().await.unwrap();
    at.is_free(&ours, &mut theirs).await;
}

/// As above, but they do not know yet, so what they do is sent.
async fn they_cannot_touch_the_tombstone_that_replaced_their_lock(at: At) {
    let mut theirs = at.theirs().await;
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    at.delete().await;
    let tombstone = at.move_lock().await;
    assert!(!theirs.extend(LONG).await, "they extended the tombstone");
    assert_ne!(theirs.release().await, Some(true), "they released the tombstone");
    assert_eq!(at.tombstone().await, tombstone);
    at.keeps_out(&mut theirs).await;
}

/// It deletes the lock, whoever has it. What is left of the migration finds that, and heals it.
async fn their_reset_removes_the_tombstone(at: At) {
    let mut theirs = at.theirs().await;
    at.move_lock().await;
    assert!(!theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(theirs.reset().await);
    assert_eq!(at.get(&at.key()).await, None, "it leaves the tombstone: docs/MIGRATION.md says otherwise");
    at.is_found_and_healed(&mut theirs).await;
}

/// A client that has read a time that is over writes its own, whatever is there by then, and does not get the lock.
async fn a_time_that_is_written_late_takes_the_place_of_the_tombstone(at: At) {
    let mut theirs = at.theirs().await;
    let tombstone = at.move_lock().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let time = (now + SHORT).as_millis().to_string();
    let before = at.stage.site.first(&["GETSET", &at.key(), &time]).await;
    assert_eq!(before.text(), Some(&*tombstone[0]), "from which it knows that it has not got the lock");
    at.is_found_and_healed(&mut theirs).await;
}

impl At {
    /// The status finds that a tombstone is gone, and the next process on `move` writes another.
    async fn is_found_and_healed(&self, theirs: &mut Box<dyn Peer>) {
        let operator = self.stage.operator().await;
        // That a lock has moved is noted in the background.
        let deadline = Instant::now() + PATIENCE;
        while !operator.status().await.unwrap().lost_tombstones.contains(&self.name) {
            assert!(Instant::now() < deadline, "nobody finds that {} lost its tombstone", self.name);
            sleep(Duration::from_millis(100)).await;
        }
        self.move_lock().await;
        assert!(!operator.status().await.unwrap().lost_tombstones.contains(&self.name));
        self.keeps_out(theirs).await;
    }
}

async fn they_get_the_lock_after_the_way_back(at: At) {
    let (ours, mut theirs) = (at.stage.process(None).await, at.theirs().await);
    let operator = at.stage.operator().await;
    operator.set(Rung::Move, "*").await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut last = hold(&ours, &at.name).await;
    while !at.is_moved().await {
        assert!(Instant::now() < deadline, "our process does not follow the record");
        last.release().await.unwrap();
        sleep(Duration::from_millis(50)).await;
        last = hold(&ours, &at.name).await;
    }
    let token = last.token();
    last.release().await.unwrap();
    at.keeps_out(&mut theirs).await;
    let gates = [operator.back(PATIENCE, |_| ()).await.unwrap(), {
        at.keeps_out(&mut theirs).await;
        operator.clean(None, |_| ()).await.unwrap()
    }];
    assert!(gates.iter().all(|gate| matches!(gate, Gate::Passed(_))), "{gates:?}");
    assert!(theirs.acquire(&at.name, Some(LONG), PATIENCE).await, "the lock is free on Redis again");
    is_busy(&ours, &at.name).await;
    assert_ne!(theirs.release().await, Some(false));
    let guard = hold(&ours, &at.name).await;
    assert!(guard.token() > token, "{} after {token}", guard.token());
    at.keeps_out(&mut theirs).await;
    is_untouched(&guard).await;
    guard.release().await.unwrap();
}

/// They look for a lock of another type.
async fn a_tombstone_is_an_error_for_them(at: At) {
    let tombstone = at.move_lock().await;
    let mut theirs = at.theirs().await;
    at.keeps_out(&mut theirs).await;
    assert!(theirs.met_another_type().await, "they wait for a tombstone as for a lock of their own");
    assert_eq!(at.tombstone().await, tombstone);
}

/// Processes on all rungs and clients of Redis alone update a counter, until the lock moves and leaves the others out.
async fn no_update_is_lost_while_the_lock_moves(at: At) {
    let (at, tokens) = (Arc::new(at), Arc::new(Mutex::new(Vec::new())));
    let mut done = 0;
    for rungs in [&RUNGS[..3], &RUNGS[..]] {
        let is_last = rungs.contains(&Rung::Move);
        let mut fleet = JoinSet::new();
        for &rung in rungs {
            fleet.spawn(we_update(Arc::clone(&at), at.on(rung).await, Arc::clone(&tokens)));
        }
        for _ in 0..2 {
            fleet.spawn(they_update(Arc::clone(&at), at.theirs().await, is_last));
        }
        while let Some(member) = fleet.join_next().await {
            done += member.unwrap();
        }
        assert_eq!(at.is_moved().await, is_last);
    }
    assert_eq!(at.stage.site.read_counter(&at.name).await, done, "updates were lost");
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 7 * UPDATES);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "tokens do not grow: {tokens:?}");
}

/// Returns the number of its updates: once the lock has moved, it makes none.
async fn they_update(at: Arc<At>, mut theirs: Box<dyn Peer>, moves: bool) -> usize {
    let mut done = 0;
    while done < UPDATES {
        if theirs.acquire(&at.name, Some(LONG), if moves { SHORT } else { LONG }).await {
            at.stage.site.update_counter(&at.name).await;
            assert_ne!(theirs.release().await, Some(false));
            done += 1;
        } else {
            assert!(moves, "they were kept out for {LONG:?}");
            if at.is_moved().await {
                break;
            }
        }
    }
    done
}

async fn we_update(at: Arc<At>, ours: Locks, tokens: Arc<Mutex<Vec<Token>>>) -> usize {
    for _ in 0..UPDATES {
        let guard = ours.mutex(&at.name).try_acquire_for(LONG).await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("we were kept out for {LONG:?}"));
        tokens.lock().unwrap().push(guard.token());
        at.stage.site.update_counter(&at.name).await;
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    UPDATES
}

const NOW: Duration = Duration::ZERO;
const MOMENT: Duration = Duration::from_millis(300);
/// Whole seconds, which is what python-redis-lock counts in.
const SHORT: Duration = Duration::from_secs(2);
/// Far longer than what must be noticed takes to be noticed, and shorter than `LONG`.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than any trial.
const LONG: Duration = Duration::from_secs(60);
/// How long our locks on Redis outlive their process.
const OUR_TTL: Duration = Duration::from_secs(4);

/// In ms; a tombstone lives for thirty.
const DAYS_29: i64 = 29 * 86_400_000;
/// The time of a lock of the recipe that has moved, in ms.
const YEAR_5000: &str = "95617584000000";

const UPDATES: usize = 4;
