//! Clients of other libraries, which only know Redis, beside ours that move to ZooKeeper: each excludes the other on every
//! rung, and a tombstone keeps the others out.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use lock_testkit::{PATIENCE, migration_url, until};
use polylock::migrate::Gate;
use polylock::{Locks, Operator, Rung};

use crate::meeting::{LEASE, Meeting, NOW, Ours, SHORT, are_kept_out, release};
use crate::peers::redis::Client;
use crate::peers::servers::Site;
use crate::peers::{LONG, Peer};
use crate::stories::*;
use crate::{Story, trials_of};

/// The rungs beside which clients of Redis alone may run.
const RUNGS: [Rung; 4] = [Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move];

pub(crate) fn trials(site: &Site) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |client: Client, rung, stories| {
        let at = |name: &str| At {
            name: format!("{rung}/{name}"),
            client,
            migration: "there",
            rung,
            site: site.clone(),
        };
        trials.extend(trials_of(&format!("{client}::{rung}"), stories, at));
    };
    for client in Client::ALL.into_iter().chain([Client::Setnx]) {
        for rung in RUNGS {
            add(client, rung, OF_ALL);
            // Once a name has moved, they do not get it any more.
            if rung < Rung::Move {
                add(client, rung, OF_LOCKS_THAT_STAY);
            }
        }
        add(client, Rung::Move, OF_TOMBSTONES);
        // The recipe has no token: its release looks at the time that it wrote only.
        add(client, Rung::Move, if client == Client::Setnx { OF_SETNX } else { OF_TOKENS });
    }
    add(Client::PythonRedisLock, Rung::Move, OF_RESETS);
    Client::OF_ANOTHER_TYPE.iter().for_each(|client| add(*client, Rung::Move, OF_ANOTHER_TYPE));
    trials
}

const OF_ALL: &[Story<At>] = stories![
    their_lock_excludes_us,
    our_lock_excludes_them,
    our_renewal_keeps_them_out,
    we_get_the_lock_when_they_release_it,
];

const OF_LOCKS_THAT_STAY: &[Story<At>] =
    stories![they_get_the_lock_when_we_release_it, they_get_the_lock_of_a_process_of_ours_that_is_gone];

const OF_TOMBSTONES: &[Story<At>] = stories![
    a_lock_that_has_moved_is_busy_for_them,
    their_late_calls_leave_the_tombstone,
    no_update_is_lost_while_the_lock_moves,
    they_get_the_lock_after_the_way_back,
];

const OF_TOKENS: &[Story<At>] = stories![they_cannot_touch_the_tombstone_that_replaced_their_lock];

const OF_SETNX: &[Story<At>] = stories![a_time_that_is_written_late_takes_the_place_of_the_tombstone];

const OF_RESETS: &[Story<At>] = stories![their_reset_removes_the_tombstone];

const OF_ANOTHER_TYPE: &[Story<At>] = stories![a_tombstone_is_an_error_for_them];

/// A client of theirs, and ours on a rung. A migration is of all locks with a prefix.
#[derive(Clone)]
struct At {
    name: String,
    client: Client,
    /// Which one of those that share locks with the client.
    migration: &'static str,
    rung: Rung,
    site: Site,
}

impl At {
    /// What the names of all locks of the migration begin with, for the client.
    fn folder(&self) -> String {
        format!("{}/{}/", self.migration, self.client)
    }

    fn key(&self) -> String {
        format!("{}{}{}", self.client.prefix(), self.folder(), self.name)
    }

    /// The URLs of both stores.
    async fn stores(&self, lease: Duration) -> [String; 2] {
        let (lease, folder) = (lease.as_secs(), self.folder());
        let recipe = if self.client == Client::Setnx { "&recipe=setnx-timestamp" } else { "" };
        let (prefix, addr) = (self.client.prefix(), self.site.addrs().await);
        let zk = self.site.servers.zk().await.url();
        [
            format!("redis://{addr}?prefix={prefix}{folder}&ttl={lease}s{recipe}"),
            format!("{zk}?dir=/{}&session_timeout={lease}s&session=private", folder.trim_matches('/')),
        ]
    }

    /// A process of ours: on this rung, or on those of the record.
    async fn process(&self, rung: Option<Rung>, lease: Duration) -> Ours {
        let [from, to] = self.stores(lease).await;
        let pinned = rung.map(|rung| format!("&rung={rung}")).unwrap_or_default();
        Ours::connect(&migration_url("interop", &from, &to, &pinned), &self.name).await
    }

    async fn on(&self, rung: Rung) -> Ours {
        self.process(Some(rung), LEASE).await
    }

    async fn operator(&self) -> Operator {
        let [from, to] = self.stores(LEASE).await;
        let connect = |url: &str| Arc::clone(Locks::connect_lazy(url).unwrap().backend());
        Operator::connect("interop", connect(&from), connect(&to)).await.unwrap()
    }

    async fn get(&self, key: &str) -> Option<String> {
        self.site.first(&["GET", key]).await.text().map(ToOwned::to_owned)
    }

    /// The keys of the tombstone.
    fn tombstone_keys(&self) -> Vec<String> {
        let key = self.key();
        let text = (self.client == Client::Setnx).then(|| format!("polylock:moved:{{{key}}}"));
        [key].into_iter().chain(text).collect()
    }

    /// The bytes of the tombstone, which has its whole life before it.
    async fn tombstone(&self) -> Vec<String> {
        let mut values = Vec::new();
        for key in self.tombstone_keys() {
            let left = self.site.first(&["PTTL", &key]).await.int();
            assert!(left > Some(DAYS_29), "{key} ends in {left:?} ms");
            values.push(self.get(&key).await.unwrap_or_else(|| panic!("there is no {key}")));
        }
        assert!(values.iter().any(|value| value.starts_with("polylock:moved")), "{values:?}");
        values
    }

    /// Moves the lock, and returns the bytes of its tombstone.
    async fn move_lock(&self) -> Vec<String> {
        let ours = self.on(Rung::Move).await;
        release(ours.hold().await).await;
        ours.locks.close().await.unwrap();
        self.tombstone().await
    }

    /// The status finds that a tombstone is gone, and the next process on `move` writes another.
    async fn is_found_and_healed(&self, theirs: &mut dyn Peer) {
        let operator = self.operator().await;
        let is_lost = async || operator.status().await.unwrap().lost_tombstones.contains(&self.name);
        // That a lock has moved is noted in the background.
        until("the status finds the lost tombstone", is_lost).await;
        self.move_lock().await;
        assert!(!is_lost().await);
        are_kept_out(theirs).await;
    }
}

impl Meeting for At {
    async fn ours_for(&self, lease: Duration) -> Ours {
        self.process(Some(self.rung), lease).await
    }

    async fn theirs(&self) -> Box<dyn Peer> {
        self.client.start(&self.site, &format!("{}{}", self.folder(), self.name)).await
    }

    async fn has_moved(&self) -> bool {
        let [.., text] = &self.tombstone_keys()[..] else { unreachable!("a lock has a key") };
        let is_time = self.client != Client::Setnx || self.get(&self.key()).await == Some(YEAR_5000.into());
        is_time && self.get(text).await.is_some_and(|text| text.starts_with("polylock:moved"))
    }

    async fn is_free(&self, ours: &Ours, theirs: &mut dyn Peer) {
        assert_eq!(self.has_moved().await, self.rung == Rung::Move);
        if self.rung == Rung::Move {
            let tombstone = self.tombstone().await;
            are_kept_out(theirs).await;
            assert_eq!(self.tombstone().await, tombstone);
        } else {
            assert!(theirs.acquire(PATIENCE).await);
            assert_ne!(theirs.release().await, Some(false));
        }
        release(ours.hold().await).await;
    }
}

async fn a_lock_that_has_moved_is_busy_for_them(at: At) {
    let (tombstone, mut theirs) = (at.move_lock().await, at.theirs().await);
    are_kept_out(&mut *theirs).await;
    // Ours come and go meanwhile, and a tombstone is written once.
    for rung in RUNGS {
        let guard = at.on(rung).await.hold().await;
        are_kept_out(&mut *theirs).await;
        at.is_untouched(&guard).await;
        release(guard).await;
    }
    assert_eq!(at.tombstone().await, tombstone);
}

/// Their lock has ended, and ours has moved it, when they extend and release it.
async fn their_late_calls_leave_the_tombstone(at: At) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire_for(Some(SHORT), NOW).await);
    let guard = ours.hold().await;
    let tombstone = at.tombstone().await;
    // The recipe extends nothing, and does not look whose lock it is, but whether its own time has come.
    let has_tokens = at.client != Client::Setnx;
    assert!(!has_tokens || !theirs.extend(SHORT).await, "they extended the tombstone");
    let released = theirs.release().await;
    assert!(!has_tokens || released != Some(true), "they released the tombstone");
    assert_eq!(at.tombstone().await, tombstone);
    at.is_untouched(&guard).await;
    release(guard).await;
    at.is_free(&ours, &mut *theirs).await;
}

/// As above, but they do not know yet, so what they do is sent.
async fn they_cannot_touch_the_tombstone_that_replaced_their_lock(at: At) {
    let mut theirs = at.theirs().await;
    assert!(theirs.acquire(NOW).await);
    at.site.does(&["DEL", &at.key()]).await;
    let tombstone = at.move_lock().await;
    assert!(!theirs.extend(LONG).await, "they extended the tombstone");
    assert_ne!(theirs.release().await, Some(true), "they released the tombstone");
    assert_eq!(at.tombstone().await, tombstone);
    are_kept_out(&mut *theirs).await;
}

/// It deletes the lock, whoever has it. What is left of the migration finds that, and heals it.
async fn their_reset_removes_the_tombstone(at: At) {
    let mut theirs = at.theirs().await;
    at.move_lock().await;
    assert!(!theirs.acquire(NOW).await);
    assert!(theirs.reset().await);
    assert_eq!(at.get(&at.key()).await, None, "it leaves the tombstone: docs/MIGRATION.md says otherwise");
    at.is_found_and_healed(&mut *theirs).await;
}

/// A client that has read a time that is over writes its own, whatever is there by then, and does not get the lock.
async fn a_time_that_is_written_late_takes_the_place_of_the_tombstone(at: At) {
    let (mut theirs, tombstone) = (at.theirs().await, at.move_lock().await);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let time = (now + SHORT).as_millis().to_string();
    let before = at.site.first(&["GETSET", &at.key(), &time]).await;
    assert_eq!(before.text(), Some(&*tombstone[0]), "from which it knows that it has not got the lock");
    at.is_found_and_healed(&mut *theirs).await;
}

/// In a migration of its own: the way back is that of all names.
async fn they_get_the_lock_after_the_way_back(at: At) {
    let at = At { migration: "back", ..at };
    let (ours, mut theirs) = (at.process(None, LEASE).await, at.theirs().await);
    let operator = at.operator().await;
    operator.set(Rung::Move, "*").await.unwrap();
    let mut last = None;
    until("our process follows the record", async || {
        let guard = ours.hold().await;
        last = Some(guard.token());
        release(guard).await;
        at.has_moved().await
    })
    .await;
    are_kept_out(&mut *theirs).await;
    assert!(matches!(operator.back(PATIENCE, |_| ()).await.unwrap(), Gate::Passed(_)));
    are_kept_out(&mut *theirs).await;
    assert!(matches!(operator.clean(None, |_| ()).await.unwrap(), Gate::Passed(_)));
    assert!(theirs.acquire(PATIENCE).await, "the lock is free on Redis again");
    assert!(ours.acquire(NOW).await.is_none());
    assert_ne!(theirs.release().await, Some(false));
    let guard = ours.hold().await;
    assert!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
    are_kept_out(&mut *theirs).await;
    at.is_untouched(&guard).await;
    release(guard).await;
}

/// They look for a lock of another type.
async fn a_tombstone_is_an_error_for_them(at: At) {
    let (tombstone, mut theirs) = (at.move_lock().await, at.theirs().await);
    are_kept_out(&mut *theirs).await;
    assert!(theirs.met_another_type().await, "they wait for a tombstone as for a lock of their own");
    assert_eq!(at.tombstone().await, tombstone);
}

/// Processes on all rungs and clients of Redis alone update a counter, until the lock moves and leaves the others out.
async fn no_update_is_lost_while_the_lock_moves(at: At) {
    let (fleet, mut updates) = (Fleet::new(&at.site, &at.key()), 0);
    for rungs in [&RUNGS[..3], &RUNGS[..]] {
        let (mut ours, theirs) = (Vec::new(), vec![at.theirs().await, at.theirs().await]);
        for &rung in rungs {
            ours.push(at.on(rung).await);
        }
        updates += fleet.work(&at, ours, theirs).await;
        assert_eq!(at.has_moved().await, rungs.contains(&Rung::Move));
    }
    fleet.is_right(updates).await;
}

/// In ms; a tombstone lives for thirty.
const DAYS_29: i64 = 29 * 86_400_000;
/// The time of a lock of the recipe that has moved, in ms.
const YEAR_5000: &str = "95617584000000";
