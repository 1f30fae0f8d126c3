//! Clients of other libraries and ours on the same locks: each excludes the other, both ways.
//!
//! Run a part by a part of its names: `cargo xtask test pottery::notify`.
//! The clients in other languages are installed by `cargo xtask setup`.

use std::mem;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use lock_testkit::redis::Reply;
use polylock::{ErrorKind, Guard, GuardState, Holder, LockOptions, Locks, Released, Token};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::peers::redis::{Client, FIVE, ONE, Peer, Site};
use crate::{Case, runtime};

/// Every value of the URL option `wait` of `redis://`.
const WAITS: &[&str] = &["queue", "notify", "poll"];

/// The value of its option `recipe` for older fleets.
const SETNX: &str = "setnx-timestamp";

/// Our queue, with releases that leave the lock free for others.
const LEAVE_FREE: &str = "leave-free";

pub(crate) fn trials() -> Vec<Trial> {
    let (one, five) = (Arc::new(Site::new(ONE)), Arc::new(Site::new(FIVE)));
    let redis = WAITS.iter().map(|wait| Store { name: wait, site: Arc::clone(&one) });
    let setnx = Store { name: SETNX, site: Arc::clone(&one) };
    let leave_free = Store { name: LEAVE_FREE, site: Arc::clone(&one) };
    let redlock = Store { name: "redlock", site: five };
    let mut trials = Vec::new();
    for store in redis {
        trials.extend(Client::ALL.iter().flat_map(|client| with_client(&store, *client, &CASES)));
        trials.extend(
            Client::WITHOUT_TTL.iter().flat_map(|client| with_client(&store, *client, &CASES_WITHOUT_TTL)),
        );
        trials.extend(
            Client::OF_ANOTHER_TYPE
                .iter()
                .flat_map(|client| with_client(&store, *client, &CASES_OF_ANOTHER_TYPE)),
        );
        trials.extend(with_type(&store));
    }
    for client in Client::REDLOCK {
        trials.extend(with_client(&redlock, client, &CASES));
        trials.extend(with_client(&redlock, client, &CASES_OF_QUORUM));
    }
    trials.extend(with_type(&redlock));
    trials.extend(with_client(&setnx, Client::Setnx, &CASES_OF_SETNX));
    trials.extend(with_type(&setnx));
    trials.extend(with_client(&leave_free, Client::RedisPy, &CASES_OF_LEAVE_FREE));
    trials
}

const CASES: [Case<At>; 11] = cases![
    no_update_of_a_mixed_fleet_is_lost,
    our_renewal_keeps_them_out,
    we_get_the_lock_when_their_extended_lock_ends,
    they_get_the_lock_when_ours_ends,
    they_get_the_lock_of_a_process_that_is_gone,
    we_get_the_lock_when_they_release_it,
    they_get_the_lock_when_we_release_it,
    their_lock_excludes_us,
    our_lock_excludes_them,
    they_cannot_touch_the_lock_that_replaced_theirs,
    we_cannot_touch_the_lock_that_replaced_ours,
];

/// Without those that the recipe does not pass among clients of its own: it extends nothing, and its release looks at the
/// time that it wrote only.
const CASES_OF_SETNX: [Case<At>; 9] = cases![
    no_update_of_a_mixed_fleet_is_lost,
    our_renewal_keeps_them_out,
    they_get_the_lock_when_ours_ends,
    they_get_the_lock_of_a_process_that_is_gone,
    we_get_the_lock_when_they_release_it,
    they_get_the_lock_when_we_release_it,
    their_lock_excludes_us,
    our_lock_excludes_them,
    we_cannot_touch_the_lock_that_replaced_ours,
];

const CASES_OF_LEAVE_FREE: [Case<At>; 2] =
    cases![they_get_grants_beside_our_queue, no_update_of_a_mixed_fleet_is_lost];

const CASES_OF_QUORUM: [Case<At>; 2] = cases![their_majority_excludes_us, our_majority_excludes_them];

const CASES_WITHOUT_TTL: [Case<At>; 1] = cases![a_lock_without_a_ttl_is_waited_for];

/// Without those in which they extend their lock, which Redisson does not, or we break it, which is refused.
const CASES_OF_ANOTHER_TYPE: [Case<At>; 11] = cases![
    no_update_of_a_mixed_fleet_is_lost,
    our_renewal_keeps_them_out,
    they_get_the_lock_when_ours_ends,
    they_get_the_lock_of_a_process_that_is_gone,
    we_get_the_lock_when_they_release_it,
    they_get_the_lock_when_we_release_it,
    their_lock_excludes_us,
    our_lock_is_an_error_for_them,
    their_late_release_leaves_our_lock,
    their_lock_is_not_broken_by_name,
    we_cannot_touch_the_lock_that_replaced_ours,
];

const CASES_OF_TYPES: [Case<TypeAt>; 2] =
    cases![a_lock_of_another_type_excludes_us, our_lock_is_the_wrong_type_for_them,];

fn with_client(store: &Store, client: Client, cases: &'static [Case<At>]) -> impl Iterator<Item = Trial> {
    // How we wait concerns all clients alike: one of them has all ways in the full tier.
    let is_deep = WAITS[1..].contains(&store.name) && client != Client::RedisPy;
    let tier = if is_deep { "deep::" } else { "" };
    cases.iter().map(move |(name, case)| {
        let (key, store) = (format!("{client}/{}/{name}", store.name), store.clone());
        trial(format!("{tier}{client}::{}::{name}", store.name), move || {
            case(At { name: key, client, store })
        })
    })
}

fn with_type(store: &Store) -> impl Iterator<Item = Trial> {
    TYPES.iter().flat_map(move |kind| {
        CASES_OF_TYPES.iter().map(move |(name, case)| {
            let (key, store) = (format!("{}/{}/{name}", kind.name, store.name), store.clone());
            trial(format!("{}::{}::{name}", kind.name, store.name), move || {
                case(TypeAt { name: key, kind, store })
            })
        })
    })
}

fn trial<F: Future<Output = ()>>(name: String, case: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, move || {
        runtime().block_on(case());
        Ok(())
    })
}

/// A way in which we lock, on servers that others use too.
#[derive(Clone)]
struct Store {
    name: &'static str,
    site: Arc<Site>,
}

impl Store {
    /// A client of ours whose locks have this prefix.
    async fn connect(&self, prefix: &str) -> Locks {
        let addrs = self.site.addrs().await;
        // On a busy machine a server may be slow to answer, and is no less alive for it.
        let url = match self.name {
            "redlock" => format!("redlock://{addrs}?prefix={prefix}&master_timeout=500ms"),
            LEAVE_FREE => format!("redis://{addrs}?prefix={prefix}&leave_free=10%"),
            SETNX => format!("redis://{addrs}?prefix={prefix}&recipe={SETNX}"),
            wait => format!("redis://{addrs}?prefix={prefix}&wait={wait}"),
        };
        Locks::connect(&url).await.unwrap()
    }

    async fn set_everywhere(&self, command: &[&str]) {
        for reply in self.site.everywhere(command).await {
            assert!(!reply.is_error(), "{command:?}: {reply:?}");
        }
    }
}

/// Where a case runs, and against whom.
struct At {
    name: String,
    client: Client,
    store: Store,
}

impl At {
    async fn ours(&self) -> Locks {
        self.store.connect(self.client.prefix()).await
    }

    async fn theirs(&self) -> Box<dyn Peer> {
        self.client.start(&self.store.site).await
    }

    fn key(&self) -> String {
        format!("{}{}", self.client.prefix(), self.name)
    }

    /// Nobody has touched the lock that this guard holds.
    async fn is_untouched(&self, guard: &Guard) {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert!(guard.is_valid());
        let site = &self.store.site;
        assert!(site.ends_within(&self.key(), OUR_TTL).await, "the lock's ttl is not ours");
        assert!(
            self.ours().await.mutex(&self.name).try_acquire().await.unwrap().is_none(),
            "the lock is free"
        );
    }
}

async fn their_lock_excludes_us(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(ours.mutex(&at.name).try_acquire().await.unwrap().is_none());
    assert!(ours.mutex(&at.name).try_acquire_for(MOMENT).await.unwrap().is_none());
    let holder = ours.inspect(&at.name).await.unwrap().holder().cloned();
    assert!(matches!(holder, Some(Holder::Foreign(_))), "{holder:?}");
    assert_ne!(theirs.release().await, Some(false));
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("they released it");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn our_lock_excludes_them(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("nobody has it");
    assert!(!theirs.acquire(&at.name, Some(LONG), NOW).await);
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert_ne!(theirs.release().await, Some(false));
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
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn they_get_the_lock_when_we_release_it(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.mutex(&at.name).acquire().await.unwrap();
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
    assert!(ours.mutex(&at.name).try_acquire().await.unwrap().is_none());
    assert_ne!(theirs.release().await, Some(false));
}

async fn we_get_the_lock_when_their_extended_lock_ends(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(SHORT), NOW).await);
    let mutex = ours.mutex(&at.name);
    let waiter = tokio::spawn(async move {
        let guard = mutex.try_acquire_for(PATIENCE).await.unwrap();
        (guard.expect("a lock that ended is free"), Instant::now())
    });
    sleep(MOMENT).await;
    let extended = Instant::now();
    assert!(theirs.extend(SHORT).await);
    let (guard, acquired) = waiter.await.unwrap();
    assert_later(acquired, extended + SHORT);
    // What they do too late does not hurt us.
    assert!(!theirs.extend(SHORT).await);
    assert_ne!(theirs.release().await, Some(true));
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn they_get_the_lock_when_ours_ends(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let fixed = ours.mutex_with(&at.name, LockOptions::new().fixed_ttl(SHORT)).unwrap();
    let asked = Instant::now();
    let guard = fixed.acquire().await.unwrap();
    assert!(theirs.acquire(&at.name, Some(LONG), PATIENCE).await);
    assert_later(Instant::now(), asked + SHORT);
    // What we do too late does not hurt them.
    assert!(!guard.is_valid());
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert!(ours.mutex(&at.name).try_acquire().await.unwrap().is_none());
    assert_ne!(theirs.release().await, Some(false));
}

async fn they_get_the_lock_of_a_process_that_is_gone(at: At) {
    let mut theirs = at.theirs().await;
    let (store, client, name) = (at.store.clone(), at.client, at.name.clone());
    let asked = Instant::now();
    // With its runtime goes all that would renew or release the lock.
    let gone = thread::spawn(move || {
        runtime().block_on(async {
            let ours = store.connect(client.prefix()).await;
            let renewed = ours.mutex_with(&name, LockOptions::new().ttl(SHORT)).unwrap();
            mem::forget(renewed.acquire().await.unwrap());
        });
    });
    gone.join().unwrap();
    assert!(!theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(theirs.acquire(&at.name, Some(LONG), PATIENCE).await);
    assert_later(Instant::now(), asked + SHORT);
    assert_ne!(theirs.release().await, Some(false));
}

async fn our_renewal_keeps_them_out(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let renewed = ours.mutex_with(&at.name, LockOptions::new().ttl(SHORT)).unwrap();
    let guard = renewed.acquire().await.unwrap();
    assert!(!theirs.acquire(&at.name, Some(LONG), SHORT + SHORT / 2).await);
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn our_lock_is_an_error_for_them(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("nobody has it");
    assert!(!theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(theirs.met_another_type().await, "they wait for our lock as for one of their own");
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(!theirs.met_another_type().await);
    // What it is, for whoever looks for the holder.
    let holder = ours.inspect(&at.name).await.unwrap().holder().cloned();
    assert!(matches!(&holder, Some(Holder::Foreign(text)) if text.contains("Redisson")), "{holder:?}");
    assert_ne!(theirs.release().await, Some(false));
}

async fn their_lock_is_not_broken_by_name(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    let refused = ours.break_lock(&at.name).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("a hash, as the locks of Redisson are"), "{refused}");
    assert_eq!(theirs.release().await, Some(true));
}

async fn their_late_release_leaves_our_lock(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    at.store.set_everywhere(&["DEL", &at.key()]).await;
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("it was deleted");
    // They do not know yet, so it is sent.
    assert_eq!(theirs.release().await, Some(false));
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn they_cannot_touch_the_lock_that_replaced_theirs(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    assert!(ours.break_lock(&at.name).await.unwrap());
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("it was broken");
    // They do not know yet, so these are sent.
    assert!(!theirs.extend(LONG).await);
    assert_ne!(theirs.release().await, Some(true));
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn we_cannot_touch_the_lock_that_replaced_ours(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("nobody has it");
    at.store.set_everywhere(&["DEL", &at.key()]).await;
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    // We do not know yet, so it is sent.
    assert_eq!(guard.extend(SHORT).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert!(!at.store.site.ends_within(&at.key(), OUR_TTL).await, "the lock's ttl is not theirs");
    assert!(ours.mutex(&at.name).try_acquire().await.unwrap().is_none());
    assert_ne!(theirs.release().await, Some(false));
}

async fn their_majority_excludes_us(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    assert!(theirs.acquire(&at.name, Some(LONG), NOW).await);
    at.store.site.forget_on_minority(&at.key()).await;
    assert!(ours.mutex(&at.name).try_acquire().await.unwrap().is_none());
    assert!(ours.mutex(&at.name).try_acquire_for(MOMENT).await.unwrap().is_none());
    assert!(theirs.extend(LONG).await);
    assert_ne!(theirs.release().await, Some(false));
    let guard = ours.mutex(&at.name).try_acquire_for(PATIENCE).await.unwrap().expect("they released it");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn our_majority_excludes_them(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("nobody has it");
    at.store.site.forget_on_minority(&at.key()).await;
    assert!(!theirs.acquire(&at.name, Some(LONG), NOW).await);
    at.is_untouched(&guard).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(theirs.acquire(&at.name, Some(LONG), PATIENCE).await);
    assert_ne!(theirs.release().await, Some(false));
}

async fn no_update_of_a_mixed_fleet_is_lost(at: At) {
    let (at, tokens) = (Arc::new(at), Arc::new(Mutex::new(Vec::new())));
    let mut fleet = JoinSet::new();
    for _ in 0..MEMBERS {
        fleet.spawn(they_update(Arc::clone(&at), at.theirs().await));
        fleet.spawn(we_update(Arc::clone(&at), at.ours().await, Arc::clone(&tokens)));
    }
    while let Some(member) = fleet.join_next().await {
        member.unwrap();
    }
    assert_eq!(at.store.site.read_counter(&at.name).await, 2 * MEMBERS * UPDATES, "updates were lost");
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), MEMBERS * UPDATES);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "tokens do not grow: {tokens:?}");
}

async fn they_update(at: Arc<At>, mut theirs: Box<dyn Peer>) {
    for _ in 0..UPDATES {
        assert!(theirs.acquire(&at.name, Some(LONG), LONG).await, "they were kept out for {LONG:?}");
        at.store.site.update_counter(&at.name).await;
        assert_ne!(theirs.release().await, Some(false));
    }
}

async fn we_update(at: Arc<At>, ours: Locks, tokens: Arc<Mutex<Vec<Token>>>) {
    for _ in 0..UPDATES {
        let guard = ours.mutex(&at.name).try_acquire_for(LONG).await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("we were kept out for {LONG:?}"));
        tokens.lock().unwrap().push(guard.token());
        at.store.site.update_counter(&at.name).await;
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// Three of ours and three of theirs ask again as soon as they have released the lock. Without the option theirs, which
/// look at the lock ten times a second, never find it free.
async fn they_get_grants_beside_our_queue(at: At) {
    let (at, grants) = (Arc::new(at), Arc::new(Mutex::new((0, 0))));
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push((at.ours().await, at.theirs().await));
    }
    let end = Instant::now() + Duration::from_secs(6);
    let mut fleet = JoinSet::new();
    for (ours, mut theirs) in clients {
        let (at_ours, at_theirs) = (Arc::clone(&at), Arc::clone(&at));
        let (grants_of_ours, grants_of_theirs) = (Arc::clone(&grants), Arc::clone(&grants));
        fleet.spawn(async move {
            while Instant::now() < end {
                let guard = ours.mutex(&at_ours.name).acquire().await.unwrap();
                grants_of_ours.lock().unwrap().0 += 1;
                sleep(UPDATE * 4).await;
                assert_eq!(guard.release().await.unwrap(), Released::Released);
            }
        });
        fleet.spawn(async move {
            while Instant::now() < end {
                if theirs
                    .acquire(&at_theirs.name, Some(LONG), end.saturating_duration_since(Instant::now()))
                    .await
                {
                    grants_of_theirs.lock().unwrap().1 += 1;
                    sleep(UPDATE * 4).await;
                    assert_ne!(theirs.release().await, Some(false));
                }
            }
        });
    }
    while let Some(client) = fleet.join_next().await {
        client.unwrap();
    }
    let (ours, theirs) = *grants.lock().unwrap();
    println!("{ours} grants to ours, {theirs} to theirs");
    assert!(theirs >= 5 && ours >= 20, "{ours} grants to ours, {theirs} to theirs");
}

async fn a_lock_without_a_ttl_is_waited_for(at: At) {
    let (ours, mut theirs) = (at.ours().await, at.theirs().await);
    let site = &at.store.site;
    assert!(theirs.acquire(&at.name, None, NOW).await);
    assert_eq!(site.first(&["PTTL", &at.key()]).await.int(), Some(-1));
    let value = site.first(&["GET", &at.key()]).await;
    let holder = ours.inspect(&at.name).await.unwrap().holder().cloned();
    let value = value.text().unwrap();
    assert!(matches!(&holder, Some(Holder::Foreign(text)) if text.contains(value)), "{holder:?}");

    let mutex = ours.mutex(&at.name);
    let waiter = tokio::spawn(async move { mutex.try_acquire_for(PATIENCE).await.unwrap() });
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    assert_eq!(site.first(&["DEL", &at.key()]).await.int(), Some(1));
    let freed = Instant::now();
    let guard = waiter.await.unwrap().expect("the lock is free");
    assert!(freed.elapsed() < CAP, "a bare DEL was noticed after {:?}", freed.elapsed());
    assert_ne!(theirs.release().await, Some(true));
    at.is_untouched(&guard).await;
}

/// A lock that is no string, as its own clients make it.
struct Type {
    name: &'static str,
    /// Takes the lock, with `KEY` for the key.
    take: &'static [&'static str],
    /// What a client sends first, whoever holds the lock.
    ask: &'static [&'static str],
}

const TYPES: [Type; 2] = [
    // The owner is the id of a client and of a thread in it, the value says how often it holds the lock.
    Type {
        name: "redisson",
        take: &["HINCRBY", "KEY", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"],
        ask: &["HEXISTS", "KEY", "8743c9c0-0795-4907-87fd-6c719a6b4586:1"],
    },
    // The score is the time in ms at which the lock ends; a writer has a member of its own beside it.
    Type {
        name: "symfony",
        take: &[
            "ZADD",
            "KEY",
            "4102444800000",
            "__write__",
            "4102444800000",
            "2xVYJhVJqoeuS1AKo2PZYGgPmbEMyaC9",
        ],
        ask: &["ZREMRANGEBYSCORE", "KEY", "-inf", "1"],
    },
];

struct TypeAt {
    name: String,
    kind: &'static Type,
    store: Store,
}

impl TypeAt {
    fn command<'a>(&'a self, words: &'static [&'static str]) -> Vec<&'a str> {
        words.iter().map(|&word| if word == "KEY" { &self.name[..] } else { word }).collect()
    }
}

async fn a_lock_of_another_type_excludes_us(at: TypeAt) {
    let ours = at.store.connect("").await;
    at.store.set_everywhere(&at.command(at.kind.take)).await;
    at.store.set_everywhere(&["PEXPIRE", &at.name, "60000"]).await;
    assert!(ours.mutex(&at.name).try_acquire().await.unwrap().is_none());
    assert!(ours.mutex(&at.name).try_acquire_for(MOMENT).await.unwrap().is_none());
    let holder = ours.inspect(&at.name).await.unwrap().holder().cloned();
    assert!(matches!(holder, Some(Holder::Foreign(_))), "{holder:?}");

    let mutex = ours.mutex(&at.name);
    let waiter = tokio::spawn(async move { mutex.try_acquire_for(PATIENCE).await.unwrap() });
    sleep(MOMENT).await;
    assert!(!waiter.is_finished());
    assert!(at.store.site.everywhere(&at.command(at.kind.ask)).await.iter().all(|reply| !reply.is_error()));
    at.store.set_everywhere(&["DEL", &at.name]).await;
    let guard = waiter.await.unwrap().expect("a release by others is noticed within the cap of a sleep");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn our_lock_is_the_wrong_type_for_them(at: TypeAt) {
    let ours = at.store.connect("").await;
    let guard = ours.mutex(&at.name).try_acquire().await.unwrap().expect("nobody has it");
    for command in [at.kind.ask, at.kind.take] {
        for reply in at.store.site.everywhere(&at.command(command)).await {
            assert!(matches!(&reply, Reply::Error(text) if text.starts_with("WRONGTYPE")), "{reply:?}");
        }
    }
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

fn assert_later(at: Instant, than: Instant) {
    // The server's clock is not ours, and has whole milliseconds.
    assert!(at + Duration::from_millis(10) >= than, "{:?} too early", than - at);
}

const NOW: Duration = Duration::ZERO;
const MOMENT: Duration = Duration::from_millis(300);
/// A lock that is released without a notification is found free within a sleep of two seconds; the rest is for a busy host.
const CAP: Duration = Duration::from_secs(5);
/// Whole seconds, which is what python-redis-lock counts in.
const SHORT: Duration = Duration::from_secs(2);
/// Far longer than what must be noticed takes to be noticed, and shorter than `LONG`.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any trial.
const LONG: Duration = Duration::from_secs(60);
/// What a lock of ours has when nothing else is said.
const OUR_TTL: Duration = Duration::from_secs(30);

const MEMBERS: usize = 3;
const UPDATES: usize = 4;
const UPDATE: Duration = Duration::from_millis(5);
