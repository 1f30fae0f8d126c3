//! Clients of other libraries on the Redis locks that they share with ours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use lock_testkit::{PATIENCE, soon};
use polylock::{ErrorKind, Guard, GuardState, LockOptions, Released};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::meeting::{LEASE, MOMENT, Meeting, NOW, Ours, SHORT, release};
use crate::peers::redis::Client;
use crate::peers::servers::Site;
use crate::peers::{LONG, Peer};
use crate::stories::*;
use crate::{Story, trials_of};

/// Every value of the URL option `wait` of `redis://`.
const WAITS: &[&str] = &["queue", "notify", "poll"];

/// The value of its option `recipe` for older fleets.
const SETNX: &str = "setnx-timestamp";

/// Our queue, with releases that leave the lock free for others.
const LEAVE_FREE: &str = "leave-free";

pub(crate) fn trials(one: &Site, five: &Site) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |store, site: &Site, client, stories: &[&'static [Story<At>]]| {
        // How we wait concerns all clients alike: one of them has all ways in the full tier.
        let is_deep = WAITS[1..].contains(&store) && client != Client::RedisPy;
        let prefix = format!("{}{client}::{store}", if is_deep { "deep::" } else { "" });
        for &stories in stories {
            let at = |name: &str| At {
                name: format!("{client}/{store}/{name}"),
                client,
                store,
                site: site.clone(),
            };
            trials.extend(trials_of(&prefix, stories, at));
        }
    };
    for &store in WAITS {
        Client::ALL.iter().for_each(|client| add(store, one, *client, &[OF_ALL, OF_LEASES, OF_VALUES]));
        Client::WITHOUT_TTL.iter().for_each(|client| add(store, one, *client, &[WITHOUT_TTL]));
        Client::OF_ANOTHER_TYPE
            .iter()
            .for_each(|client| add(store, one, *client, &[OF_LEASES, OF_ANOTHER_TYPE]));
    }
    for client in Client::REDLOCK {
        add("redlock", five, client, &[OF_ALL, OF_LEASES, OF_VALUES, OF_QUORUM]);
    }
    add(SETNX, one, Client::Setnx, &[OF_ALL, OF_LEASES]);
    add(LEAVE_FREE, one, Client::RedisPy, &[OF_LEAVE_FREE]);
    trials
}

const OF_ALL: &[Story<At>] = stories![our_lock_excludes_them];

const OF_LEASES: &[Story<At>] = stories![
    no_update_of_a_mixed_fleet_is_lost,
    our_renewal_keeps_them_out,
    they_get_the_lock_when_ours_ends,
    they_get_the_lock_of_a_process_of_ours_that_is_gone,
    we_get_the_lock_when_they_release_it,
    they_get_the_lock_when_we_release_it,
    their_lock_excludes_us,
    we_cannot_touch_the_lock_that_replaced_ours,
];

/// Not for the recipe of timestamps: it extends nothing, and its release looks at the time that it wrote only.
const OF_VALUES: &[Story<At>] = stories![
    we_get_the_lock_when_their_extended_lock_ends,
    they_cannot_extend_or_release_the_lock_that_replaced_theirs,
];

const OF_LEAVE_FREE: &[Story<At>] =
    stories![they_get_grants_beside_our_queue, no_update_of_a_mixed_fleet_is_lost];

const OF_QUORUM: &[Story<At>] = stories![their_majority_excludes_us, our_majority_excludes_them];

const WITHOUT_TTL: &[Story<At>] = stories![a_lock_without_a_ttl_is_waited_for];

/// They do not extend their lock, and we do not break it.
const OF_ANOTHER_TYPE: &[Story<At>] = stories![
    our_lock_is_an_error_for_them,
    they_cannot_touch_the_lock_that_replaced_theirs,
    their_lock_is_not_broken_by_name,
];

/// A client of theirs, and a way in which we lock on servers that both use.
#[derive(Clone)]
struct At {
    name: String,
    client: Client,
    store: &'static str,
    site: Site,
}

/// A client of ours whose locks have this prefix.
pub(crate) async fn connect(store: &str, site: &Site, prefix: &str, ttl: Duration, name: &str) -> Ours {
    let (scheme, option) = match store {
        // Time: on a busy machine a server may be slow to answer, and is no less alive for it.
        "redlock" => ("redlock", "master_timeout=2s".to_owned()),
        LEAVE_FREE => ("redis", "leave_free=10%".to_owned()),
        SETNX => ("redis", format!("recipe={SETNX}")),
        wait => ("redis", format!("wait={wait}")),
    };
    let (addrs, ttl) = (site.addrs().await, ttl.as_secs());
    let url = format!("{scheme}://{addrs}?prefix={prefix}&ttl={ttl}s&connect_timeout=10s&{option}");
    Ours::connect(&url, name).await
}

impl At {
    fn key(&self) -> String {
        format!("{}{}", self.client.prefix(), self.name)
    }
}

impl Meeting for At {
    async fn ours_for(&self, lease: Duration) -> Ours {
        connect(self.store, &self.site, self.client.prefix(), lease, &self.name).await
    }

    async fn theirs(&self) -> Box<dyn Peer> {
        self.client.start(&self.site, &self.name).await
    }

    async fn is_untouched(&self, guard: &Guard) {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert!(guard.is_valid());
        assert!(self.site.ends_within(&self.key(), LEASE).await, "the lock's ttl is not ours");
        assert!(self.ours().await.acquire(NOW).await.is_none(), "the lock is free");
    }

    async fn takes_from_them(&self, ours: &Ours) {
        if Client::OF_ANOTHER_TYPE.contains(&self.client) {
            self.site.does(&["DEL", &self.key()]).await;
        } else {
            assert!(ours.locks.break_lock(&*self.name).await.unwrap());
        }
    }
}

async fn we_get_the_lock_when_their_extended_lock_ends(at: At) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire_for(Some(SHORT), NOW).await);
    let waiter = ours.waits().await;
    let extended = Instant::now();
    assert!(theirs.extend(SHORT).await);
    let guard = waiter.await.unwrap();
    is_over(extended);
    // What they do too late does not hurt us.
    assert!(!theirs.extend(SHORT).await);
    assert_ne!(theirs.release().await, Some(true));
    at.is_untouched(&guard).await;
    release(guard).await;
}

async fn they_get_the_lock_when_ours_ends(at: At) {
    let (ours, mut theirs) = at.both().await;
    let fixed = ours.locks.mutex_with(&*at.name, LockOptions::new().fixed_ttl(SHORT)).unwrap();
    let asked = Instant::now();
    let guard = fixed.acquire().await.unwrap();
    assert!(theirs.acquire(PATIENCE).await);
    is_over(asked);
    // What we do too late does not hurt them.
    assert!(!guard.is_valid());
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert!(ours.acquire(NOW).await.is_none());
    assert_ne!(theirs.release().await, Some(false));
}

/// A short lease from then on has ended. The server's clock is not ours, and has whole milliseconds.
fn is_over(since: Instant) {
    // Time: it lasts so long.
    assert!(since.elapsed() + Duration::from_millis(10) >= SHORT, "after {:?}", since.elapsed());
}

async fn they_cannot_extend_or_release_the_lock_that_replaced_theirs(at: At) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire(NOW).await);
    at.takes_from_them(&ours).await;
    let guard = ours.hold().await;
    // They do not know yet, so these are sent.
    assert!(!theirs.extend(LONG).await);
    assert_ne!(theirs.release().await, Some(true));
    at.is_untouched(&guard).await;
    release(guard).await;
}

async fn we_cannot_touch_the_lock_that_replaced_ours(at: At) {
    let (ours, mut theirs) = at.both().await;
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    at.site.does(&["DEL", &at.key()]).await;
    assert!(theirs.acquire(NOW).await);
    // We do not know yet, so it is sent.
    assert_eq!(guard.extend(SHORT).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert!(!at.site.ends_within(&at.key(), LEASE).await, "the lock's ttl is not theirs");
    assert!(ours.acquire(NOW).await.is_none());
    assert_ne!(theirs.release().await, Some(false));
}

async fn our_lock_is_an_error_for_them(at: At) {
    let (ours, mut theirs) = at.both().await;
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    assert!(!theirs.acquire(NOW).await);
    assert!(theirs.met_another_type().await, "they wait for our lock as for one of their own");
    at.is_untouched(&guard).await;
    release(guard).await;
    assert!(theirs.acquire(NOW).await);
    assert!(!theirs.met_another_type().await);
    // What it is, for whoever looks for the holder.
    let holder = ours.sees_a_foreign_holder().await;
    assert!(holder.contains("Redisson"), "{holder}");
    assert_ne!(theirs.release().await, Some(false));
}

async fn their_lock_is_not_broken_by_name(at: At) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire(NOW).await);
    let refused = ours.locks.break_lock(&*at.name).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("a hash, as the locks of Redisson are"), "{refused}");
    assert_eq!(theirs.release().await, Some(true));
}

async fn their_majority_excludes_us(at: At) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire(NOW).await);
    at.site.forget_on_minority(&at.key()).await;
    ours.is_kept_out().await;
    assert!(theirs.extend(LONG).await);
    assert_ne!(theirs.release().await, Some(false));
    release(ours.hold().await).await;
}

async fn our_majority_excludes_them(at: At) {
    let (ours, mut theirs) = at.both().await;
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    at.site.forget_on_minority(&at.key()).await;
    assert!(!theirs.acquire(NOW).await);
    at.is_untouched(&guard).await;
    release(guard).await;
    assert!(theirs.acquire(PATIENCE).await);
    assert_ne!(theirs.release().await, Some(false));
}

async fn no_update_of_a_mixed_fleet_is_lost(at: At) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..MEMBERS {
        ours.push(at.ours().await);
        theirs.push(at.theirs().await);
    }
    let fleet = Fleet::new(&at.site, &at.name);
    let updates = fleet.work(&at, ours, theirs).await;
    assert_eq!(updates, 2 * MEMBERS * UPDATES);
    fleet.is_right(updates).await;
}

/// All ask again as soon as they have released the lock. Without the option theirs, which look at the lock ten times a second,
/// never find it free.
async fn they_get_grants_beside_our_queue(at: At) {
    let grants = Arc::new(watch::Sender::new((0, 0)));
    let mut fleet = JoinSet::new();
    for _ in 0..3 {
        let (ours, mut theirs) = at.both().await;
        let (to_us, to_them) = (Arc::clone(&grants), Arc::clone(&grants));
        fleet.spawn(async move {
            loop {
                let guard = ours.hold().await;
                to_us.send_modify(|(ours, _)| *ours += 1);
                works().await;
                release(guard).await;
            }
        });
        fleet.spawn(async move {
            loop {
                if theirs.acquire(MOMENT).await {
                    to_them.send_modify(|(_, theirs)| *theirs += 1);
                    works().await;
                    assert_ne!(theirs.release().await, Some(false));
                }
            }
        });
    }
    let mut granted = grants.subscribe();
    tokio::select! {
        enough = soon(granted.wait_for(|(ours, theirs)| *ours >= 20 && *theirs >= 5)) => drop(enough.unwrap()),
        Some(ended) = fleet.join_next() => ended.expect("each goes on"),
    }
}

async fn a_lock_without_a_ttl_is_waited_for(at: At) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire_for(None, NOW).await);
    assert_eq!(at.site.first(&["PTTL", &at.key()]).await.int(), Some(-1));
    let value = at.site.first(&["GET", &at.key()]).await;
    let (value, holder) = (value.text().unwrap(), ours.sees_a_foreign_holder().await);
    assert!(holder.contains(value), "{holder}");
    let waiter = ours.waits().await;
    // Without a notification.
    at.site.does(&["DEL", &at.key()]).await;
    let guard = waiter.await.unwrap();
    assert_ne!(theirs.release().await, Some(true));
    at.is_untouched(&guard).await;
}

/// The others ask for the lock meanwhile.
async fn works() {
    // Time: they are at work.
    sleep(Duration::from_millis(20)).await;
}

const MEMBERS: usize = 2;
