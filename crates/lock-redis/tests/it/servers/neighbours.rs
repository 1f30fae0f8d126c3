//! Neighbours: another user of the same server, who may read the keys of the locks, listen and publish.
//!
//! On Redis 6.2 a new user has all channels.

use std::time::Duration;

use futures_util::StreamExt as _;
use lock_core::{Guard, LockOptions, Locks};
use lock_redis::redis::aio::{MultiplexedConnection, PubSub};
use lock_redis::redis::{self, Client};
use lock_testkit::{RedisServer, acquiring, give_back, hand_over, queue_up, soon, take, until};
use tokio::time::Instant;

use crate::common::{KEY, QUEUE, client, queue_is};

struct Site {
    redis: RedisServer,
    /// The connection of the neighbour.
    eve: MultiplexedConnection,
}

impl Site {
    async fn new() -> Self {
        let redis = RedisServer::start().await.unwrap();
        let user =
            ["ACL", "SETUSER", "eve", "on", ">eve", "~lock:*", "&*", "+get", "+publish", "+psubscribe"];
        redis.call(&user).await;
        let client = Client::open(redis.url().replace("redis://", "redis://eve:eve@")).unwrap();
        let eve = client.get_multiplexed_async_connection().await.unwrap();
        Self { redis, eve }
    }

    async fn client(&self) -> Locks {
        client(&self.redis, "ttl=60s").await
    }

    /// The inbox of the only process that listens.
    async fn inbox(&self) -> String {
        let channels = self.redis.call(&["PUBSUB", "CHANNELS", "polylock:inbox:*"]).await;
        let [inbox] = channels.array().unwrap() else { panic!("{channels:?}") };
        inbox.text().unwrap().to_owned()
    }

    async fn publish(&self, inbox: &str, text: &str) {
        let mut eve = self.eve.clone();
        let heard: u32 = redis::cmd("PUBLISH").arg(inbox).arg(text).query_async(&mut eve).await.unwrap();
        assert!(heard > 0, "{text}");
    }

    /// Returns when a process has handled all messages, and sent all requests that came of them: the lock `b` is handed over to
    /// it by a later message, and it releases that lock by a later request.
    async fn handled(&self, holder: &Locks, process: &Locks) {
        let guard = take(holder, "b").await;
        let waiter = queue_up(process, "b").await;
        give_back(hand_over(guard, waiter).await).await;
    }

    /// Repeats a message, and releases the guard, which it has not harmed.
    async fn repeat(&self, heard: &str, inbox: &str, (holder, process): (&Locks, &Locks), guard: Guard) {
        let words = self.words().await;
        for _ in 0..10 {
            self.publish(inbox, heard).await;
        }
        self.handled(holder, process).await;
        assert_eq!(self.words().await, words, "the lock was returned");
        assert!(guard.is_valid());
        give_back(guard).await;
    }

    /// What the key of the lock says, as the neighbour may read it: owner id, token, and more.
    async fn words(&self) -> Vec<String> {
        let value: String = redis::cmd("GET").arg(KEY).query_async(&mut self.eve.clone()).await.unwrap();
        value.split(' ').map(str::to_owned).collect()
    }
}

/// The next hand-over that is heard.
async fn heard(ears: &mut PubSub) -> String {
    loop {
        let message = soon(ears.on_message().next()).await.unwrap();
        let text: String = message.get_payload().unwrap();
        if text.starts_with("passed ") {
            return text;
        }
    }
}

/// What somebody may say of this owner and token who knows no secret, in the form of today and in that of earlier versions.
fn forgeries(owner: &str, token: &str) -> Vec<String> {
    let guess = "0".repeat(40);
    vec![
        format!("granted {owner} {KEY}"),
        format!("granted {owner} {guess} {KEY}"),
        format!("passed {owner} {token} {KEY}"),
        format!("passed {owner} {token} {guess} {KEY}"),
        format!("passed {owner} 9000000000000000 {guess} {KEY}"),
        format!("passed {owner} 99999999999999999999 {guess} {KEY}"),
        format!("next {owner} 18446744073709551615"),
        format!("next {owner} nonsense"),
        "granted".to_owned(),
        "\u{1b}[2J\n".to_owned(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_grant_takes_no_lock_from_its_holder() {
    let site = Site::new().await;
    let (holder, other) = (site.client().await, site.client().await);
    // It listens from now on.
    site.handled(&holder, &other).await;
    let inbox = site.inbox().await;
    let guard = take(&holder, "a").await;
    let words = site.words().await;
    for forged in forgeries(&words[0], &words[1]) {
        site.publish(&inbox, &forged).await;
    }
    site.handled(&holder, &other).await;
    assert_eq!(site.words().await, words, "the lock was taken from its holder");
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(guard.is_valid());
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_grant_gives_no_lock_to_a_waiter() {
    let site = Site::new().await;
    let (holder, other) = (site.client().await, site.client().await);
    let guard = take(&holder, "a").await;
    let waiter = queue_up(&other, "a").await;
    let (inbox, words) = (site.inbox().await, site.words().await);
    // A neighbour without the right to read the queue does not know its owner id.
    let entry = site.redis.call(&["LINDEX", QUEUE, "0"]).await.text().unwrap().to_owned();
    let (owner, _) = entry.split_once(':').unwrap();
    for forged in forgeries(owner, &words[1]) {
        site.publish(&inbox, &forged).await;
    }
    site.handled(&holder, &other).await;
    assert!(!waiter.is_finished(), "a lock that another holds was granted");
    assert_eq!(site.redis.call(&["LINDEX", QUEUE, "0"]).await.text(), Some(&*entry), "it lost its place");
    let (before, token) = (guard.token(), words[1].parse::<u64>().unwrap());
    let guard = hand_over(guard, waiter).await;
    assert!(guard.token() > before && guard.token().get() < 2 * token, "{:?}", guard.token());
    give_back(guard).await;
}

/// A message that comes late or twice, or is repeated by who heard it.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_repeated_returns_no_lock() {
    let site = Site::new().await;
    let (holder, other) = (site.client().await, site.client().await);
    let client = Client::open(site.redis.url().replace("redis://", "redis://eve:eve@")).unwrap();
    let mut ears = client.get_async_pubsub().await.unwrap();
    ears.psubscribe("polylock:inbox:*").await.unwrap();
    let guard = take(&holder, "a").await;
    let waiter = queue_up(&other, "a").await;
    let inbox = site.inbox().await;
    let guard = hand_over(guard, waiter).await;
    let heard = heard(&mut ears).await;
    site.repeat(&heard, &inbox, (&holder, &other), guard).await;
    // Nor when another process holds it.
    let guard = take(&holder, "a").await;
    site.repeat(&heard, &inbox, (&holder, &other), guard).await;
}

/// As when the connection delivers it after the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_repeated_ends_no_lock_that_is_held_at_least() {
    let site = Site::new().await;
    let (holder, other) = (site.client().await, site.client().await);
    let client = Client::open(site.redis.url()).unwrap();
    let mut ears = client.get_async_pubsub().await.unwrap();
    ears.psubscribe("polylock:inbox:*").await.unwrap();
    let guard = take(&holder, "a").await;
    let report = other.mutex_with("a", LockOptions::new().hold_at_least(Duration::from_secs(60))).unwrap();
    let waiter = acquiring(report);
    queue_is(&site.redis, 1).await;
    let inbox = site.inbox().await;
    give_back(hand_over(guard, waiter).await).await;
    let words = site.words().await;
    let heard = heard(&mut ears).await;
    site.publish(&inbox, &heard).await;
    site.handled(&holder, &other).await;
    assert_eq!(site.words().await, words, "the lock was returned before its time");
}

/// As a script with a bug or a restore leaves it: no waiter can be in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_another_type_is_none() {
    let redis = RedisServer::start().await.unwrap();
    let (ours, theirs) = (client(&redis, "ttl=60s").await, client(&redis, "ttl=60s&leave_free=100%").await);
    for locks in [&ours, &ours, &theirs, &theirs] {
        give_back(take(locks, "a").await).await;
    }
    let spoilers: [&[&str]; 4] =
        [&["SET", QUEUE, "1"], &["HSET", QUEUE, "a", "1"], &["ZADD", QUEUE, "1", "a"], &["SADD", QUEUE, "a"]];
    for spoiler in spoilers {
        let spoil = async || {
            redis.call(&["DEL", QUEUE]).await;
            assert!(!redis.call(spoiler).await.is_error());
        };
        spoil().await;
        let guard = take(&ours, "a").await;
        spoil().await;
        assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
        spoil().await;
        let waiter = acquiring(theirs.mutex("a"));
        until("it waits", async || redis.text(&["TYPE", QUEUE]).await == "list").await;
        let guard = hand_over(guard, waiter).await;
        spoil().await;
        // Its release leaves the lock free for a moment.
        give_back(guard).await;
        assert!(!redis.has_key(KEY).await, "{spoiler:?}: a lock of nobody");

        let guard = soon(ours.mutex("a").acquire()).await.unwrap();
        spoil().await;
        give_back(guard).await;
        assert!(!redis.has_key(KEY).await, "{spoiler:?}: a lock of nobody");
        let guard = take(&ours, "a").await;
        spoil().await;
        assert!(ours.break_lock("a").await.unwrap());
        assert!(!redis.has_key(KEY).await, "{spoiler:?}: not broken");
        drop(guard);

        let mut writer = ours.rw("a").write().await.unwrap();
        spoil().await;
        writer.downgrade().await.unwrap();
        spoil().await;
        let reader = theirs.rw("a").read().await.unwrap();
        spoil().await;
        give_back(writer).await;
        spoil().await;
        give_back(reader).await;
        assert!(!redis.has_key(KEY).await, "{spoiler:?}: a share of nobody");
    }
}

/// Each of them would have all waiters of all processes ask.
#[tokio::test(flavor = "multi_thread")]
async fn messages_on_the_channel_of_a_lock_are_answered_once_in_a_while() {
    let site = Site::new().await;
    let holder = client(&site.redis, "ttl=60s&wait=notify").await;
    let other = client(&site.redis, "ttl=60s&wait=notify").await;
    let guard = take(&holder, "a").await;
    let waiter = acquiring(other.mutex("a"));
    until("it waits", async || holder.inspect("a").await.unwrap().waiters == 1).await;
    let (before, began) = (site.redis.calls_of("evalsha").await, Instant::now());
    for _ in 0..2_000 {
        site.publish("polylock:free:{lock:a}", "").await;
    }
    let (asked, took) = (site.redis.calls_of("evalsha").await - before, began.elapsed());
    assert!(asked <= 20 + 110 * took.as_millis() as u64 / 1000, "{asked} requests in {took:?}");
    give_back(hand_over(guard, waiter).await).await;
}
