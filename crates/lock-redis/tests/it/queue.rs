//! The queue on a real server, through the public API: clients, processes, lost messages, and what others do.

use std::env;
use std::io::BufRead;
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Clock, ErrorKind, Guard, GuardState, LockOptions, Locks, LossReason, Mutex, Released, Token,
};
use lock_redis::redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use lock_redis::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult,
};
use lock_redis::{Connection, Dial, RedisConfig};
use lock_testkit::proxy::{Direction, Protocol, Then, redis_command};
use lock_testkit::redis::Reply;
use lock_testkit::{
    FaultProxy, RedisServer, Worker, cancel_after, come, for_each_poll_count, give_back, now_ns, until,
};
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{connect, holder};

const PATIENCE: Duration = Duration::from_secs(20);
/// What happens at once: before a queue ends by itself, and long before a lock does.
const SOON: Duration = Duration::from_secs(8);
/// No sleep of a waiter is longer.
const CAP: Duration = Duration::from_secs(2);
/// Sleeps are this long at least; what comes well before is pushed.
const PUSHED: Duration = Duration::from_millis(600);
/// Of a busy machine. A lock that nobody passes on would stay for its ttl.
const NOISE: Duration = Duration::from_secs(4);
/// How long a lock is kept for one who got it in the queue.
const GRACE: Duration = Duration::from_secs(1);
const KEY: &str = "lock:a";
const QUEUE: &str = "polylock:queue:{lock:a}";

struct Site {
    redis: RedisServer,
}

impl Site {
    async fn new() -> Self {
        Self { redis: RedisServer::start().await.unwrap() }
    }

    async fn client(&self) -> Locks {
        connect(&format!("{}?ttl=60s", self.redis.url())).await
    }

    /// A user without some rights.
    async fn client_without(&self, rights: &[&str]) -> Locks {
        let all = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all"];
        self.redis.command(&[&all[..], rights].concat()).await.unwrap();
        connect(&format!("redis://worker:pw@{}?ttl=60s", self.redis.addr())).await
    }

    async fn redis(&self, words: &[&str]) -> Reply {
        let reply = self.redis.command(words).await.unwrap();
        assert!(!reply.is_error(), "{words:?}: {reply:?}");
        reply
    }

    /// The owner id of the holder, or another value.
    async fn holder(&self) -> String {
        holder(&self.redis).await
    }

    async fn queued(&self) -> i64 {
        self.redis(&["LLEN", QUEUE]).await.int().unwrap()
    }

    /// Waits until this many waiters are in the queue.
    async fn queue_is(&self, wanted: i64) {
        let deadline = Instant::now() + SOON;
        while self.queued().await != wanted {
            assert!(Instant::now() < deadline, "{} stand in the queue, not {wanted}", self.queued().await);
            sleep(Duration::from_millis(3)).await;
        }
    }

    /// Lets a client wait for the lock, and returns when it is in the queue. The result is when it came.
    async fn waits(&self, locks: &Locks) -> JoinHandle<(Guard, Instant)> {
        self.waits_for(locks.mutex("a")).await
    }

    async fn waits_for(&self, mutex: Mutex) -> JoinHandle<(Guard, Instant)> {
        let before = self.queued().await;
        let waiter = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
        self.queue_is(before + 1).await;
        waiter
    }

    async fn nothing_is_left(&self) {
        let deadline = Instant::now() + SOON;
        loop {
            let left = self.redis(&["EXISTS", KEY, QUEUE, "polylock:holders:{lock:a}"]).await.int();
            if left == Some(0) {
                return;
            }
            assert!(Instant::now() < deadline, "left: {:?}", self.redis(&["KEYS", "*"]).await);
            sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn take(locks: &Locks) -> Guard {
    timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap()
}

// Order.

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_without_the_right_to_publish_leaves_the_queue_unchanged() {
    let site = Site::new().await;
    let holder = take(&site.client_without(&["-publish"]).await).await;
    let (first, second) = (site.client().await, site.client().await);
    let (first, second) = (site.waits(&first).await, site.waits(&second).await);
    give_back(holder).await;
    let (guard, _) = come(first).await;
    assert_eq!(site.queued().await, 1, "the second keeps its place");
    give_back(guard).await;
    give_back(come(second).await.0).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_left_as_it_is_ends_by_itself() {
    let site = Site::new().await;
    let holder = take(&site.client_without(&["-publish"]).await).await;
    let (waiter, dial) = site.client_by_proxy(What::Commands, "").await;
    let waiter = site.waits(&waiter).await;
    // It does not learn that the lock is free.
    dial.proxy.black_hole(Direction::ToServer, true);
    give_back(holder).await;
    let left = site.redis(&["PTTL", QUEUE]).await.int().unwrap();
    assert!((1..=5_000).contains(&left), "{left}");
    waiter.abort();
    dial.proxy.heal();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_was_granted_by_half_is_taken_back() {
    let site = Site::new().await;
    let reader = site.client_without(&["-pexpireat"]).await;
    let error = timeout(PATIENCE, reader.rw("a").try_read()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_of_one_process_share_fairly() {
    const ROUNDS: usize = 20;
    let site = Arc::new(Site::new().await);
    let holder = take(&site.client().await).await;
    let (sender, mut order) = mpsc::unbounded_channel();
    for client in 0..2 {
        let (site, locks, sender) = (Arc::clone(&site), site.client().await, sender.clone());
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let guard = take(&locks).await;
                sender.send((client, guard.token())).unwrap();
                // The other one wants it as well, until its last round.
                if round + 1 < ROUNDS {
                    site.queue_is(1).await;
                }
                give_back(guard).await;
            }
        });
    }
    site.queue_is(2).await;
    drop(sender);
    give_back(holder).await;
    let (mut turns, mut last) = (Vec::new(), Token::new(0));
    while let Some((client, token)) = timeout(PATIENCE, order.recv()).await.unwrap() {
        assert!(token > last);
        last = token;
        turns.push(client);
    }
    assert_eq!(turns.len(), 2 * ROUNDS);
    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "they do not alternate: {turns:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_comes_back_wakes_one_and_disturbs_one_more() {
    const PERMITS: u32 = 8;
    let site = Site::new().await;
    let mut held = Vec::new();
    for _ in 0..PERMITS {
        held.push(site.client().await.semaphore("a", PERMITS).acquire().await.unwrap());
    }
    let (sender, mut order) = mpsc::unbounded_channel();
    for number in 0..2 * PERMITS {
        let (semaphore, sender) = (site.client().await.semaphore("a", PERMITS), sender.clone());
        tokio::spawn(async move { sender.send((number, semaphore.acquire().await.unwrap())) });
        site.queue_is(i64::from(number) + 1).await;
    }
    // Until the first has the key watched.
    sleep(Duration::from_millis(100)).await;
    let asked = async || site.redis.calls_of("evalsha").await + site.redis.calls_of("exists").await;
    let (messages_before, asked_before) = (site.redis.calls_of("publish").await, asked().await);
    let (started, mut granted) = (Instant::now(), Vec::new());
    for expected in 0..PERMITS {
        // Not in the order in which they were taken.
        give_back(held.remove(held.len() / 2)).await;
        let (number, guard) = timeout(PATIENCE, order.recv()).await.unwrap().unwrap();
        assert_eq!(number, expected);
        granted.push(guard);
        sleep(Duration::from_millis(20)).await;
    }
    let messages = site.redis.calls_of("publish").await - messages_before;
    let asked = asked().await - asked_before;
    println!(
        "{PERMITS} permits came back: {messages} messages, {asked} requests, in {:?}",
        started.elapsed()
    );
    assert!(messages <= u64::from(3 * PERMITS), "{messages} messages");
    // A release, a confirmation and a look at the key; and all ask every second or two whatever happens.
    let cap = u64::from(2 * PERMITS) * started.elapsed().as_secs();
    assert!(asked <= u64::from(4 * PERMITS) + u64::from(2 * PERMITS) + cap, "{asked} requests");
    for guard in granted {
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_a_shared_lock_do_not_keep_the_first_waiter_awake() {
    const SPAN: u64 = 3;
    let site = Site::new().await;
    let mut held = Vec::new();
    for _ in 0..8 {
        let locks = connect(&format!("{}?ttl=600ms", site.redis.url())).await;
        held.push(locks.rw("a").read().await.unwrap());
    }
    let proxy = FaultProxy::start(site.redis.addr(), Protocol::Redis).unwrap();
    let writer = connect(&format!("redis://{}?ttl=60s", proxy.addr())).await;
    let waiter = site.waits(&writer).await;
    proxy.reset_counters();
    let renewed = site.redis.calls_of("evalsha").await;
    sleep(Duration::from_secs(SPAN)).await;
    let (renewed, requests) = (site.redis.calls_of("evalsha").await - renewed, proxy.requests());
    println!("{renewed} renewals and the like, and {requests} requests of the waiter");
    assert!(requests <= 15 * SPAN, "{requests} requests");
    // And yet it notices at once what no notification reports.
    let deleted = Instant::now();
    site.redis(&["DEL", KEY]).await;
    let (guard, came) = come(waiter).await;
    assert!(came - deleted < CAP + NOISE, "{:?}", came - deleted);
    give_back(guard).await;
    for guard in held {
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
}

/// Waiters of a live process for one permit.
async fn old_waiters(site: &Site, numbers: Range<i64>) -> PubSub {
    let mut ears = Client::open(site.redis.url()).unwrap().get_async_pubsub().await.unwrap();
    ears.subscribe("polylock:inbox:old").await.unwrap();
    let entry = |number| format!("{number:032x}:{number:032x} 1 1000 604800000 18 polylock:inbox:old {{}}");
    let entries: Vec<_> = numbers.map(entry).collect();
    let push = ["RPUSH", QUEUE].into_iter().chain(entries.iter().map(String::as_str));
    site.redis(&push.collect::<Vec<_>>()).await;
    ears
}

/// As while a deployment raises the number.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_goes_past_many_waiters_for_a_smaller_number() {
    const OLD: i64 = 40;
    let site = Site::new().await;
    let first = site.client().await.semaphore("a", 1).acquire().await.unwrap();
    let _ahead = old_waiters(&site, 0..OLD).await;
    let (second, third) = (site.client().await.semaphore("a", 2), site.client().await.semaphore("a", 2));
    let second = second.try_acquire().await.unwrap().expect("one of two is out");
    let waiter = tokio::spawn(async move { (third.acquire().await.unwrap(), Instant::now()) });
    site.queue_is(OLD + 1).await;
    let _behind = old_waiters(&site, OLD..9 * OLD).await;
    give_back(second).await;
    // A release does not look so far back: the waiter asks by itself.
    let (guard, _) = come(waiter).await;
    assert!(first.is_valid() && guard.is_valid());
    assert_eq!(site.queued().await, 9 * OLD);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_for_a_permit_reads_little_of_a_long_queue() {
    let site = Site::new().await;
    let locks = site.client().await;
    let _first = locks.semaphore("a", 1).acquire().await.unwrap();
    let reads = async || site.redis.calls_of("lindex").await + site.redis.calls_of("lrange").await;
    let (mut waiters, mut old) = (Vec::new(), 0);
    for (more, passes, most) in [(250, true, 20), (750, false, 1)] {
        waiters.push(old_waiters(&site, old..old + more).await);
        old += more;
        let before = reads().await;
        let permit = locks.semaphore("a", 2).try_acquire().await.unwrap();
        let reads = reads().await - before;
        assert!(reads <= most, "{reads} reads of a queue of {old}");
        assert_eq!(permit.is_some(), passes, "behind {old}");
        if let Some(permit) = permit {
            give_back(permit).await;
        }
    }
    assert_eq!(site.queued().await, old);
}

// Processes that die or stop.

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_waiter_at_the_head_costs_nothing() {
    let site = Site::new().await;
    let (holder, next) = (site.client().await, site.client().await);
    let healthy = best(5, async || {
        let guard = take(&holder).await;
        hand_over(guard, site.waits(&next).await).await
    });
    let healthy = healthy.await;
    let killed = best(5, async || {
        let guard = take(&holder).await;
        let worker = waiting_process(&site).await;
        let waiter = site.waits(&next).await;
        worker.kill();
        hand_over(guard, waiter).await
    });
    let killed = killed.await;
    println!("hand-over: {healthy:?} to a healthy waiter, {killed:?} over a killed one");
    assert!(killed < healthy + PUSHED, "{killed:?} over a dead waiter, {healthy:?} without");
    site.nothing_is_left().await;
}

/// Subscribers to a pattern count among the receivers of a message.
#[tokio::test]
async fn dead_waiters_are_skipped_even_with_a_subscriber_to_all_channels() {
    let site = Site::new().await;
    let mut ears = Client::open(site.redis.url()).unwrap().get_async_pubsub().await.unwrap();
    ears.psubscribe("*").await.unwrap();
    let guard = take(&site.client().await).await;
    for number in 0..10 {
        let entry = format!("{number:032x}:{number:032x} x 1000 604800000 19 polylock:inbox:dead {{}}");
        site.redis(&["RPUSH", QUEUE, &entry]).await;
    }
    let waiter = site.waits(&site.client().await).await;
    // Within less than the grace of each of the dead.
    hand_over(guard, waiter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_waiter_at_the_head_costs_its_grace() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let site = Site::new().await;
    let (holder, next) = (site.client().await, site.client().await);
    // One that sees the grace end, and one that has to know when it does.
    for next in [next, site.client_without(&["-client|tracking"]).await] {
        let stopped = best(5, async || {
            let guard = take(&holder).await;
            let worker = waiting_process(&site).await;
            let waiter = site.waits(&next).await;
            worker.stop();
            let took = hand_over(guard, waiter).await;
            worker.kill();
            took
        });
        let stopped = stopped.await;
        println!("hand-over: {stopped:?} over a stopped waiter, whose grace is {GRACE:?}");
        assert!(stopped >= GRACE - Duration::from_millis(20), "{stopped:?}: it was not waited for");
        assert!(stopped < GRACE + PUSHED, "{stopped:?}");
    }
    site.nothing_is_left().await;
}

/// A waiter that slept too long takes back nothing that is not its own, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_waiter_that_goes_on_waits_again() {
    let site = Site::new().await;
    let (holder, next) = (site.client().await, site.client().await);
    let guard = take(&holder).await;
    let worker = waiting_process(&site).await;
    let waiter = site.waits(&next).await;
    worker.stop();
    give_back(guard).await;
    let (guard, _) = come(waiter).await;
    worker.cont();
    site.queue_is(1).await;
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    let token = guard.token();
    give_back(guard).await;
    let held = worker.recv_deadline(PATIENCE).await.unwrap();
    assert!(held["held"].as_u64().unwrap() > token.get());
    worker.send(&json!("release")).await.unwrap();
    worker.recv_deadline(PATIENCE).await.unwrap();
    site.nothing_is_left().await;
}

/// The shortest of some runs: noise only makes them longer.
async fn best(runs: usize, mut run: impl AsyncFnMut() -> Duration) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..runs {
        best = best.min(run().await);
    }
    best
}

/// How long it takes from a release until a waiter has the lock.
async fn hand_over(guard: Guard, waiter: JoinHandle<(Guard, Instant)>) -> Duration {
    // Until its key is watched.
    sleep(Duration::from_millis(30)).await;
    let released = Instant::now();
    give_back(guard).await;
    let (next, came) = come(waiter).await;
    give_back(next).await;
    came.saturating_duration_since(released)
}

/// Another process that is in the queue.
async fn waiting_process(site: &Site) -> Worker {
    let before = site.queued().await;
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "queue::worker", "--nocapture"]);
    command.env("QUEUE_WORKER", format!("{}?ttl=60s", site.redis.url()));
    let worker = Worker::spawn(&command).unwrap();
    worker.recv_deadline(PATIENCE).await.unwrap();
    worker.send(&json!("acquire")).await.unwrap();
    site.queue_is(before + 1).await;
    worker
}

/// The far end: takes the lock for every line that it reads, and releases it with the next.
#[tokio::test(flavor = "multi_thread")]
async fn worker() {
    let Ok(url) = env::var("QUEUE_WORKER") else { return };
    let locks = connect(&url).await;
    let (sender, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lock().lines().for_each(|line| drop(sender.send(line))));
    let mut held = None;
    // The harness has begun a line.
    println!("\n{}", json!("ready"));
    while lines.recv().await.is_some() {
        match held.take() {
            None => {
                let guard = locks.mutex("a").acquire().await.unwrap();
                println!("{}", json!({ "held": guard.token().get(), "at": now_ns() }));
                held = Some(guard);
            }
            Some(guard) => println!("{}", json!({ "released": guard.release().await.is_ok() })),
        }
    }
}

// What clients of other libraries do.

/// What happens to a lock that a client of another library holds, and how much later it is free by that.
const FOREIGN: &[(&[&str], u64)] = &[
    (&["DEL", KEY], 0),
    (&["UNLINK", KEY], 0),
    (&["FLUSHALL"], 0),
    (&["EXPIRE", KEY, "0"], 0),
    (&["RENAME", KEY, "elsewhere"], 0),
    (&["SET", KEY, "other", "XX", "PX", "150"], 150),
    (&["SET", KEY, "other", "PX", "150"], 150),
    (&["PEXPIRE", KEY, "150"], 150),
    (&["EVAL", "return redis.call('DEL', KEYS[1])", "1", KEY], 0),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_head_learns_by_push_what_clients_of_other_make_do() {
    let site = Site::new().await;
    let locks = site.client().await;
    for ttl in [&[][..], &["PX", "60000"]] {
        for (action, later) in FOREIGN {
            let took = foreign(&site, &locks, ttl, action).await;
            let limit = PUSHED + Duration::from_millis(*later);
            assert!(took < limit, "{action:?} was found out after {took:?}");
        }
    }
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_learns_by_push_once_it_is_the_first() {
    let site = Site::new().await;
    let (first, second) = (site.client().await, site.client().await);
    site.redis(&["SET", KEY, "theirs"]).await;
    let leaver = site.waits(&first).await;
    let waiter = site.waits(&second).await;
    leaver.abort();
    site.queue_is(1).await;
    // Until it was notified, and watches its key.
    sleep(Duration::from_millis(100)).await;
    let deleted = Instant::now();
    site.redis(&["DEL", KEY]).await;
    let (guard, came) = come(waiter).await;
    assert!(came - deleted < PUSHED, "{:?}", came - deleted);
    give_back(guard).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tracking_a_foreign_release_is_found_within_the_cap() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let site = Site::new().await;
    let locks = site.client_without(&["-client|tracking"]).await;
    let took = foreign(&site, &locks, &[], &["DEL", KEY]).await;
    assert!(took < CAP + NOISE, "{took:?}");
    releases_are_pushed(&site, &locks).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_resp3_a_foreign_release_is_found_within_the_cap() {
    // No ACL forbids HELLO.
    let site = Site { redis: RedisServer::builder().without_commands(&["HELLO"]).start().await.unwrap() };
    let locks = site.client().await;
    let took = foreign(&site, &locks, &[], &["DEL", KEY]).await;
    assert!(took < CAP + NOISE, "{took:?}");
    assert_eq!(site.redis(&["INFO", "clients"]).await.text().map(tracking), Some("0".into()));
    releases_are_pushed(&site, &locks).await;
    site.nothing_is_left().await;
}

fn tracking(info: &str) -> String {
    info.lines().find_map(|line| line.strip_prefix("tracking_clients:")).unwrap_or_default().to_owned()
}

/// How long after this the lock of another client takes until a waiter has it.
async fn foreign(site: &Site, locks: &Locks, ttl: &[&str], action: &[&str]) -> Duration {
    site.redis(&[&["SET", KEY, "theirs"], ttl].concat()).await;
    let waiter = site.waits(locks).await;
    sleep(Duration::from_millis(60)).await;
    let done = Instant::now();
    site.redis(action).await;
    let (guard, came) = come(waiter).await;
    give_back(guard).await;
    came.saturating_duration_since(done)
}

async fn releases_are_pushed(site: &Site, next: &Locks) {
    let holder = site.client().await;
    let took = best(3, async || {
        let guard = take(&holder).await;
        hand_over(guard, site.waits(next).await).await
    });
    let took = took.await;
    assert!(took < PUSHED, "a release was found out after {took:?}");
}

// Lost messages.

/// Pushes, or commands, over a proxy, and everything else not.
#[derive(Debug)]
struct ByProxy {
    proxy: FaultProxy,
    what: What,
    /// Whether new connections go past the proxy.
    passes_by: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Commands,
    Pushes,
}

impl ByProxy {
    fn way(&self, what: What, to: &ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if self.what != what || self.passes_by.load(Ordering::SeqCst) {
            return Ok(to.clone());
        }
        let info = format!("redis://{}", self.proxy.addr()).into_connection_info()?;
        Ok(info.set_redis_settings(to.redis_settings().clone()))
    }
}

#[async_trait]
impl Dial for ByProxy {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        Ok(Client::open(self.way(What::Commands, to)?)?.get_multiplexed_async_connection().await?.into())
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        sender: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(self.way(What::Pushes, to)?.set_redis_settings(settings))?;
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        Client::open(to.clone())?.get_async_pubsub().await
    }
}

impl Site {
    async fn client_by_proxy(&self, what: What, options: &str) -> (Locks, Arc<ByProxy>) {
        let proxy = FaultProxy::start(self.redis.addr(), Protocol::Redis).unwrap();
        let dial = Arc::new(ByProxy { proxy, what, passes_by: AtomicBool::new(false) });
        let config = RedisConfig::from_url(&format!("{}?ttl=60s{options}", self.redis.url())).unwrap();
        (config.dial(Arc::<ByProxy>::clone(&dial)).connect().await.unwrap(), dial)
    }

    /// Hands the lock over to a client whose requests no longer arrive, this long after it joined the queue.
    async fn passed_on(&self, mutex: Mutex, dial: &ByProxy, after: Duration) -> JoinHandle<(Guard, Instant)> {
        let holder = take(&self.client().await).await;
        let waiter = self.waits_for(mutex).await;
        dial.proxy.hold(Direction::ToServer);
        sleep(after).await;
        give_back(holder).await;
        waiter
    }
}

/// Passes the lock on, so many times, to a client whose confirmation is held up, and demands that mostly it comes with the
/// message: a busy host may take so long that the answer is waited for after all. `then` lets requests through again, and
/// gives the lock back.
async fn comes_with_the_message(tries: u32, mut then: impl AsyncFnMut(&Site, &ByProxy, Guard)) {
    let site = Site::new().await;
    let (locks, dial) = site.client_by_proxy(What::Commands, "").await;
    let mut came = 0;
    for _ in 0..tries {
        let mut waiter = site.passed_on(locks.mutex("a"), &dial, Duration::ZERO).await;
        if let Ok(waited) = timeout(GRACE, &mut waiter).await {
            came += 1;
            then(&site, &dial, waited.unwrap().0).await;
        } else {
            dial.proxy.deliver();
            give_back(come(waiter).await.0).await;
        }
        site.nothing_is_left().await;
    }
    assert!(came * 4 >= tries * 3, "it came with the message {came} times out of {tries}");
}

fn left(guard: &Guard) -> Duration {
    guard.valid_until().saturating_duration_since(Clock::boot().now())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_handed_over_soon_is_held_before_it_is_confirmed() {
    comes_with_the_message(20, async |_, dial, guard| {
        assert!(left(&guard) < GRACE, "{:?}", left(&guard));
        dial.proxy.deliver();
        until("it is not confirmed", async || !(left(&guard) < Duration::from_secs(50) && guard.is_valid()))
            .await;
        // Unless the host has stood still in between.
        match guard.is_valid() {
            true => give_back(guard).await,
            false => drop(guard),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_never_confirmed_is_lost_in_time() {
    comes_with_the_message(4, async |site, dial, guard| {
        assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LossReason::DeadlinePassed);
        dial.proxy.deliver();
        drop(guard);
        give_back(take(&site.client().await).await).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_before_the_confirmation_leaves_nothing() {
    comes_with_the_message(20, async |site, dial, guard| {
        let releasing = tokio::spawn(guard.release());
        sleep(Duration::from_millis(10)).await;
        dial.proxy.deliver();
        assert_eq!(releasing.await.unwrap().unwrap(), Released::Released);
        assert_eq!(site.redis(&["EXISTS", KEY]).await.int(), Some(0), "it was not released");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_before_the_confirmation_leaves_nothing() {
    let mut soonest = Duration::MAX;
    comes_with_the_message(20, async |site, dial, guard| {
        let dropped = Instant::now();
        drop(guard);
        sleep(Duration::from_millis(10)).await;
        dial.proxy.deliver();
        site.nothing_is_left().await;
        soonest = soonest.min(dropped.elapsed());
    })
    .await;
    assert!(soonest < GRACE / 2, "it ended by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_before_the_confirmation_counts() {
    let longer = Duration::from_secs(90);
    comes_with_the_message(20, async |site, dial, guard| {
        let asked = Clock::boot().now();
        let extending = tokio::spawn(async move { (guard.extend(longer).await, guard) });
        sleep(Duration::from_millis(10)).await;
        dial.proxy.deliver();
        let (extended, guard) = extending.await.unwrap();
        let until = extended.unwrap();
        assert!(until >= asked + longer.mul_f64(0.98), "{:?}", until.saturating_duration_since(asked));
        assert_eq!(guard.valid_until(), until);
        let left = site.redis(&["PTTL", KEY]).await.int().unwrap();
        assert!(until <= Clock::boot().now() + Duration::from_millis(left.try_into().unwrap()), "{left}");
        give_back(guard).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_is_never_answered_says_so_and_keeps_nothing() {
    comes_with_the_message(4, async |site, dial, guard| {
        let extended = timeout(SOON, guard.extend(Duration::from_secs(90))).await.unwrap();
        let error = extended.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{error}");
        assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LossReason::DeadlinePassed);
        dial.proxy.deliver();
        drop(guard);
        give_back(take(&site.client().await).await).await;
    })
    .await;
}

/// Its time to live is its own, and a renewal would begin it anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_renewed_is_not_held_before_it_is_confirmed() {
    let site = Site::new().await;
    let (locks, dial) = site.client_by_proxy(What::Commands, "").await;
    let fixed = LockOptions::new().fixed_ttl(Duration::from_secs(60));
    let mut waiter = site.passed_on(locks.mutex_with("a", fixed).unwrap(), &dial, Duration::ZERO).await;
    assert!(timeout(GRACE * 2, &mut waiter).await.is_err(), "it was not asked for");
    dial.proxy.deliver();
    give_back(come(waiter).await.0).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_replicas_are_to_have_is_not_held_by_the_message_alone() {
    let site = Site::new().await;
    let holder = take(&site.client().await).await;
    let locks = connect(&format!("{}?ttl=60s&wait_replicas=1", site.redis.url())).await;
    let mut waiter = site.waits(&locks).await;
    give_back(holder).await;
    assert!(timeout(GRACE * 2, &mut waiter).await.is_err(), "no replica has it");
    waiter.abort();
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_that_is_lost_is_sent_again() {
    let site = Site::new().await;
    let (locks, dial) = site.client_by_proxy(What::Commands, "").await;
    for _ in 0..3 {
        let holder = take(&site.client().await).await;
        let waiter = site.waits(&locks).await;
        dial.proxy.cut_when(redis_command("EVALSHA"));
        give_back(holder).await;
        let (guard, _) = come(waiter).await;
        sleep(GRACE * 2).await;
        assert!(guard.is_valid(), "it is lost");
        give_back(guard).await;
    }
    site.nothing_is_left().await;
}

/// Some do so in asynchronous code, and their lock must not end for that reason.
async fn a_holder_that_keeps_its_thread_busy() {
    let site = Site::new().await;
    let holder = take(&site.client().await).await;
    let mutex = site.client().await.mutex("a");
    let waiter = tokio::spawn(async move {
        let guard = mutex.acquire().await.unwrap();
        std::thread::sleep(GRACE + Duration::from_millis(300));
        guard
    });
    site.queue_is(1).await;
    give_back(holder).await;
    let guard = waiter.await.unwrap();
    let left = site.redis(&["PTTL", KEY]).await.int().unwrap();
    assert!(left > 50_000, "{left} ms are left");
    guard.release().await.unwrap();
    site.nothing_is_left().await;
}

#[tokio::test]
async fn a_holder_that_blocks_its_thread_keeps_a_lock_that_was_handed_over() {
    a_holder_that_keeps_its_thread_busy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_blocks_one_of_two_workers_keeps_a_lock_that_was_handed_over() {
    a_holder_that_keeps_its_thread_busy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_holder_that_blocks_its_worker_keeps_a_lock_that_was_handed_over() {
    a_holder_that_keeps_its_thread_busy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_handed_over_late_is_not_held_before_it_is_confirmed() {
    let site = Site::new().await;
    let (locks, dial) = site.client_by_proxy(What::Commands, "").await;
    let mut waiter = site.passed_on(locks.mutex("a"), &dial, GRACE / 2).await;
    assert!(timeout(GRACE * 2, &mut waiter).await.is_err(), "the time of the hand-over is unknown");
    dial.proxy.deliver();
    give_back(come(waiter).await.0).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_message_costs_no_more_than_the_cap() {
    let site = Site::new().await;
    let (deaf, dial) = site.client_by_proxy(What::Pushes, "").await;
    let (holder, behind) = (site.client().await, site.client().await);
    let guard = take(&holder).await;
    let mut first = site.waits(&deaf).await;
    let mut second = site.waits(&behind).await;
    dial.proxy.black_hole(Direction::ToClient, true);
    let released = Instant::now();
    give_back(guard).await;
    // The next waiter waits for the grace period of the deaf one, and no longer. The deaf one may happen to ask meanwhile.
    let either = async {
        tokio::select! {
            held = &mut second => (held.unwrap(), GRACE, first),
            held = &mut first => (held.unwrap(), CAP, second),
        }
    };
    let ((guard, came), most, other) = timeout(SOON, either).await.expect("the lock does not come");
    let passed = came - released;
    println!("over a waiter that does not hear: {passed:?}");
    assert!(passed < most + NOISE, "{passed:?}");
    give_back(guard).await;
    let (guard, came) = come(other).await;
    assert!(came - released < CAP + NOISE, "{:?}", came - released);
    give_back(guard).await;
    dial.proxy.heal();
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_keep_their_places_when_the_push_connection_is_cut() {
    let site = Site::new().await;
    let guard = take(&site.client().await).await;
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(site.waits(&site.client().await).await);
    }
    for _ in 0..3 {
        assert_eq!(site.redis(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.int(), Some(3));
        until("they do not subscribe again", async || {
            site.redis(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.text().unwrap().lines().count() >= 3
        })
        .await;
        // Until the subscription is confirmed.
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(site.queued().await, 3);
    let released = Instant::now();
    give_back(guard).await;
    let mut last = Token::new(0);
    for waiter in waiters {
        let (guard, came) = come(waiter).await;
        assert!(guard.token() > last, "out of order");
        assert!(came - released < PUSHED, "not pushed: {:?}", came - released);
        last = guard.token();
        give_back(guard).await;
    }
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_while_the_push_connection_is_cut_is_found_out() {
    let site = Site::new().await;
    let (cut, dial) = site.client_by_proxy(What::Pushes, "").await;
    let (holder, stays) = (site.client().await, site.client().await);
    let guard = take(&holder).await;
    let first = site.waits(&cut).await;
    let second = site.waits(&stays).await;
    dial.proxy.refuse(true);
    dial.proxy.rst();
    sleep(Duration::from_millis(50)).await;
    let released = Instant::now();
    give_back(guard).await;
    let (guard, came) = come(second).await;
    assert!(came - released < PUSHED, "a waiter waits for one that left: {:?}", came - released);
    // A waiter without notifications polls.
    let released = Instant::now();
    give_back(guard).await;
    let (guard, came) = come(first).await;
    assert!(came - released < PUSHED, "{:?}", came - released);
    dial.proxy.refuse(false);
    give_back(guard).await;
    site.nothing_is_left().await;
}

/// One who stood in the queue may have got the lock there, and a claim of the same owner may arrive after that was taken
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_arrives_after_the_hand_over_is_undone() {
    let site = Site::new().await;
    let holder = take(&site.client().await).await;
    let (locks, dial) = site.client_by_proxy(What::Commands, "&command_timeout=300ms").await;
    let waiter = site.waits(&locks).await;
    let entry = site.redis(&["LINDEX", QUEUE, "0"]).await.text().unwrap().to_owned();
    let owner = entry.split(':').next().unwrap();
    dial.passes_by.store(true, Ordering::SeqCst);
    dial.proxy.hold(Direction::ToServer);
    until("it does not ask again", async || dial.proxy.queued(Direction::ToServer) != 0).await;
    give_back(holder).await;
    assert_eq!(site.holder().await, owner, "it was not handed over");
    // The claim is given up, and what it found in the queue is taken back.
    let passed = Instant::now();
    while site.holder().await == owner {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(passed.elapsed() < GRACE - Duration::from_millis(100), "it ended by itself");
    // It may have the lock by now, over another connection.
    waiter.abort();
    drop(waiter.await);
    site.nothing_is_left().await;
    let last =
        async || site.redis(&["ZSCORE", "polylock:tokens:{lock:a}", "last"]).await.text().unwrap().to_owned();
    let before = last().await;
    dial.proxy.deliver();
    until("the claim does not arrive", async || last().await != before).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_keep_their_places_while_the_server_refuses_writes() {
    if RedisServer::lacks("refusal of the writes of scripts while replicas are missing", (7, 0)) {
        return;
    }
    let site = Site::new().await;
    let guard = take(&site.client().await).await;
    let first = site.waits(&site.client().await).await;
    let second = site.waits(&site.client().await).await;
    let owners = async || {
        let entries = site.redis(&["LRANGE", QUEUE, "0", "-1"]).await;
        let owner = |entry: &Reply| entry.text().unwrap().split(':').next().unwrap().to_owned();
        entries.array().unwrap().iter().map(owner).collect::<Vec<_>>()
    };
    let places = owners().await;
    let refused = async || {
        let stats = site.redis(&["INFO", "errorstats"]).await.text().unwrap().to_owned();
        stats.contains("errorstat_NOREPLICAS")
    };
    site.redis(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    until("nothing was refused", async || refused().await).await;
    site.redis(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    // Until both have asked again.
    sleep(CAP + Duration::from_millis(500)).await;
    assert_eq!(owners().await, places, "a place was given up");
    give_back(guard).await;
    let (guard, _) = come(first).await;
    assert!(!second.is_finished());
    give_back(guard).await;
    give_back(come(second).await.0).await;
    site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_goes_on_over_a_restart_of_the_server() {
    let redis = RedisServer::builder().appendonly(true).start().await.unwrap();
    let site = Site { redis };
    let guard = take(&site.client().await).await;
    let first = site.waits(&site.client().await).await;
    site.redis.restart().await.unwrap();
    let second = site.client().await;
    assert!(second.mutex("a").try_acquire().await.unwrap().is_none());
    sleep(Duration::from_millis(500)).await;
    assert!(!first.is_finished());
    assert!(guard.is_valid());
    let (token, released) = (guard.token(), Instant::now());
    give_back(guard).await;
    let (guard, came) = come(first).await;
    assert!(came - released < CAP + NOISE, "{:?}", came - released);
    assert!(guard.token() > token);
    give_back(guard).await;
    site.nothing_is_left().await;
}

// Giving up.

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_cancelled_at_any_poll_leaves_nothing_and_delays_no_waiter() {
    let site = Site::new().await;
    let (holder, leaves, next) = (site.client().await, site.client().await, site.client().await);
    // Its push connection is there, so that every round is alike.
    let guard = take(&holder).await;
    leaves.mutex("a").try_acquire_for(Duration::from_millis(300)).await.unwrap();
    site.queue_is(0).await;
    give_back(guard).await;

    let mut slowest = Duration::ZERO;
    let polls = for_each_poll_count(async |k| {
        let guard = take(&holder).await;
        let mutex = leaves.mutex("a");
        let leaver = tokio::spawn(take_and_give_back(k, mutex));
        sleep(Duration::from_millis(30)).await;
        let mutex = next.mutex("a");
        let waiter = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
        sleep(Duration::from_millis(30)).await;
        let released = Instant::now();
        give_back(guard).await;
        let (guard, came) = come(waiter).await;
        slowest = slowest.max(came - released);
        give_back(guard).await;
        let left = leaver.await.unwrap();
        site.nothing_is_left().await;
        left
    });
    let polls = polls.await;
    println!("{polls} polls, and at most {slowest:?} to the next");
    assert!(polls >= 4, "{polls} polls: nothing was cancelled while it waited");
    assert!(slowest < PUSHED, "the next waited {slowest:?}");
}

/// Leaves after so many polls, or takes its turn.
async fn take_and_give_back(k: usize, mutex: Mutex) -> Option<()> {
    let guard = cancel_after(k, mutex.acquire()).await?;
    give_back(guard.unwrap()).await;
    Some(())
}

// All at once.

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_and_cancelled_waits_stop_nobody_for_long() {
    const SPAN: Duration = Duration::from_secs(4);
    let site = Site::new().await;
    let last = Arc::new(std::sync::Mutex::new(Token::new(0)));
    let end = Instant::now() + SPAN;
    let mut tasks = Vec::new();
    for number in 0..12 {
        // Three tasks on each of four clients.
        let locks = if number % 3 == 0 { site.client().await } else { tasks_client(&tasks) };
        let last = Arc::clone(&last);
        let task = tokio::spawn(contend(locks.clone(), number, last, end));
        tasks.push((locks, task));
    }
    while Instant::now() < end {
        for kind in ["pubsub", "normal"] {
            sleep(Duration::from_millis(35)).await;
            site.redis(&["CLIENT", "KILL", "TYPE", kind]).await;
        }
        site.redis(&["SCRIPT", "FLUSH"]).await;
    }
    let (mut turns, mut slowest) = (0, Duration::ZERO);
    for (_, task) in tasks {
        let (of_task, waited) = timeout(PATIENCE, task).await.unwrap().unwrap();
        (turns, slowest) = (turns + of_task, slowest.max(waited));
    }
    println!("{turns} turns, and nobody waited longer than {slowest:?}");
    assert!(turns > 50, "{turns} turns");
    assert!(slowest < CAP + NOISE, "somebody waited for {slowest:?}");
    site.nothing_is_left().await;
}

fn tasks_client<T>(tasks: &[(Locks, T)]) -> Locks {
    tasks.last().unwrap().0.clone()
}

/// Takes turns until the end, and leaves every third wait early; gives how many there were and the longest wait.
async fn contend(
    locks: Locks,
    number: usize,
    last: Arc<std::sync::Mutex<Token>>,
    end: Instant,
) -> (usize, Duration) {
    let (mutex, mut turns, mut slowest) = (locks.mutex("a"), 0, Duration::ZERO);
    for round in number.. {
        let started = Instant::now();
        if started >= end {
            break;
        }
        let patience = if round % 3 == 0 { Duration::from_millis(round as u64 % 10) } else { PATIENCE };
        // The server may have been cut off as soon as it was asked.
        let Ok(Some(guard)) = mutex.try_acquire_for(patience).await else { continue };
        (turns, slowest) = (turns + 1, slowest.max(started.elapsed()));
        let before = std::mem::replace(&mut *last.lock().unwrap(), guard.token());
        assert!(guard.token() > before, "{} after {before}", guard.token());
        assert!(guard.is_valid());
        sleep(Duration::from_millis(round as u64 % 3)).await;
        assert_eq!(*last.lock().unwrap(), guard.token(), "two hold the lock");
        match round % 2 {
            0 => drop(guard),
            _ => drop(guard.release().await),
        }
    }
    (turns, slowest)
}

// From task to task of one process.

struct Crew {
    site: Site,
    proxy: FaultProxy,
    locks: Locks,
}

impl Crew {
    async fn new() -> Self {
        let site = Site::new().await;
        let proxy = FaultProxy::start(site.redis.addr(), Protocol::Redis).unwrap();
        let locks = connect(&format!("redis://{}?ttl=60s&command_timeout=400ms", proxy.addr())).await;
        Self { site, proxy, locks }
    }

    /// Tasks that want the lock, in this order, and say when they have it: on the same terms, or each with a label of its own.
    async fn tasks(&self, count: usize, labelled: bool, sender: &UnboundedSender<(usize, Token)>) {
        for number in 0..count {
            let options = if labelled { heir_of_its_own(number) } else { LockOptions::new() };
            let (mutex, sender) = (self.locks.mutex_with("a", options).unwrap(), sender.clone());
            tokio::spawn(async move {
                let guard = mutex.acquire().await.unwrap();
                sender.send((number, guard.token())).unwrap();
                give_back(guard).await;
            });
            self.waiters_are(number + 1).await;
        }
    }

    /// Waits until so many tasks of this process wait; costs no request.
    async fn waiters_are(&self, wanted: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.locks.inspect("a").await.unwrap().waiters < wanted {
            assert!(Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
    }

    /// A task that waits behind the holder.
    async fn heir(&self, options: LockOptions) -> JoinHandle<(Guard, Instant)> {
        let mutex = self.locks.mutex_with("a", options).unwrap();
        let heir = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
        self.waiters_are(1).await;
        heir
    }

    async fn pttl(&self) -> i64 {
        self.site.redis(&["PTTL", KEY]).await.int().unwrap()
    }

    /// The owner id of the holder, or another value.
    async fn holder(&self) -> String {
        self.site.holder().await
    }
}

/// The options of a task to which only the server hands over.
fn heir_of_its_own(number: usize) -> LockOptions {
    LockOptions::new().label(format!("heir {number}"))
}

/// Sixteen tasks have the lock in a row, without a request or for one each. A busy machine may end a series by its time.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_take_turns_at_one_request_each_or_none() {
    const TASKS: usize = 40;
    for (labelled, each) in [(false, 0), (true, TASKS - TASKS / 16)] {
        // A release, a claim of three commands in one write, and the time every 50 ms.
        let wanted = (each + 1 + 5 * (TASKS / 16) + TASKS / 4) as u64;
        let mut least = u64::MAX;
        for _ in 0..20 {
            least = least.min(requests_for_tasks(TASKS, labelled).await);
            if least <= wanted {
                break;
            }
        }
        assert!(least <= wanted, "labelled {labelled}: {least} requests, and not {wanted}");
        assert!(least > each as u64, "labelled {labelled}: only {least}: a series never ended");
    }
}

async fn requests_for_tasks(count: usize, labelled: bool) -> u64 {
    let crew = Crew::new().await;
    let guard = take(&crew.locks).await;
    let (sender, mut turns) = mpsc::unbounded_channel();
    crew.tasks(count, labelled, &sender).await;
    crew.proxy.reset_counters();
    let mut last = guard.token();
    give_back(guard).await;
    for expected in 0..count {
        let (number, token) = timeout(PATIENCE, turns.recv()).await.unwrap().unwrap();
        assert_eq!(number, expected);
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    crew.site.nothing_is_left().await;
    crew.proxy.requests()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_waits_for_sixteen_tasks_at_most() {
    for labelled in [false, true] {
        let crew = Crew::new().await;
        let other = crew.site.client().await;
        let guard = take(&crew.locks).await;
        let (sender, mut turns) = mpsc::unbounded_channel();
        crew.tasks(50, labelled, &sender).await;
        let waiter = tokio::spawn({
            let (mutex, sender) = (other.mutex("a"), sender.clone());
            async move {
                for _ in 0..2 {
                    let guard = mutex.acquire().await.unwrap();
                    sender.send((usize::MAX, guard.token())).unwrap();
                    give_back(guard).await;
                }
            }
        });
        crew.site.queue_is(1).await;
        drop(sender);
        give_back(guard).await;
        let (mut rows, mut row, mut last) = (Vec::new(), 1, Token::new(0));
        while let Some((number, token)) = timeout(PATIENCE, turns.recv()).await.unwrap() {
            assert!(token > last, "{token} after {last}");
            last = token;
            if number == usize::MAX {
                rows.push(row);
                row = 0;
            } else {
                row += 1;
            }
        }
        waiter.await.unwrap();
        println!("tasks in a row while another process waited: {rows:?}, and {row} after that");
        // The second time, it may come late: the tasks that it found done do not count.
        assert!((2..=16).contains(&rows[0]) && rows.len() == 2, "{rows:?}");
        crew.site.nothing_is_left().await;
    }
}

/// What the store keeps while the lock goes from task to task: one lease, and the token of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_passed_on_is_the_same_lock_for_the_server() {
    let crew = Crew::new().await;
    let guard = take(&crew.locks).await;
    let (token, owner) = (guard.token(), guard.owner());
    let heir = crew.heir(LockOptions::new()).await;
    crew.proxy.reset_counters();
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert_eq!(crew.proxy.requests(), 0);
    assert_eq!((guard.token().get(), guard.owner()), (token.get() + 1, owner));
    assert_eq!(crew.locks.inspect("a").await.unwrap().holders[0].token, Some(token));
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);

    // A holder that changes the lease, or the tokens, keeps it to itself.
    let heir = crew.heir(LockOptions::new()).await;
    guard.extend(Duration::from_secs(50)).await.unwrap();
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert_ne!(guard.owner(), owner);
    let (heir, owner, floor) = (crew.heir(LockOptions::new()).await, guard.owner(), guard.token().get() + 9);
    guard.raise_token(Token::new(floor)).await.unwrap();
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert_ne!(guard.owner(), owner);
    assert!(guard.token().get() > floor);

    // Who breaks it breaks the lease of them all. A series ends by its time, too, so this is the first hand-over of one.
    give_back(guard).await;
    let guard = take(&crew.locks).await;
    let heir = crew.heir(LockOptions::new()).await;
    let shown = crew.locks.inspect("a").await.unwrap().holders[0].token.unwrap();
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert!(crew.locks.break_lock_if("a", shown).await.unwrap());
    assert_eq!(guard.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    crew.site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_local_hand_overs_every_task_asks_the_server() {
    let mut crew = Crew::new().await;
    crew.locks = connect(&format!("redis://{}?ttl=60s&local_handovers=0", crew.proxy.addr())).await;
    let guard = take(&crew.locks).await;
    let heir = crew.heir(LockOptions::new()).await;
    crew.proxy.reset_counters();
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    // A claim is three commands in one write, and asks for the clock now and then.
    assert!((2..=5).contains(&crew.proxy.requests()), "a release and an acquisition");

    let heir = crew.heir(LockOptions::new()).await;
    let other = crew.site.waits(&crew.site.client().await).await;
    give_back(guard).await;
    let (guard, _) = come(other).await;
    assert!(!heir.is_finished());
    give_back(guard).await;
    give_back(come(heir).await.0).await;
    crew.site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_is_handed_over_as_well() {
    for (options, requests) in [(LockOptions::new(), 0), (heir_of_its_own(0), 1)] {
        let crew = Crew::new().await;
        let guard = take(&crew.locks).await;
        let heir = crew.heir(options).await;
        crew.proxy.reset_counters();
        drop(guard);
        let (guard, _) = come(heir).await;
        assert_eq!(crew.proxy.requests(), requests);
        assert_eq!(crew.holder().await, guard.owner().to_string());
        give_back(guard).await;
        crew.site.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_heir_cancelled_at_any_poll_does_not_lose_the_lock() {
    let crew = Crew::new().await;
    let other = crew.site.client().await;
    for more in [true, false] {
        let polls = for_each_poll_count(async |k| {
            let guard = take(&crew.locks).await;
            let mutex = crew.locks.mutex("a");
            let heir = tokio::spawn(take_and_give_back(k, mutex));
            if k > 0 {
                tokio::task::yield_now().await;
            }
            // The next is another task of this process, or another client.
            let mutex = if more { crew.locks.mutex("a") } else { other.mutex("a") };
            let next = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
            sleep(Duration::from_millis(20)).await;
            let released = Instant::now();
            give_back(guard).await;
            let (guard, came) = come(next).await;
            assert!(came - released < PUSHED, "the next waited {:?}", came - released);
            give_back(guard).await;
            let left = heir.await.unwrap();
            crew.site.nothing_is_left().await;
            left
        });
        assert!(polls.await >= 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_without_an_answer_ends_right() {
    for fault in ["hang", "reset", "cut"] {
        let crew = Crew::new().await;
        let guard = take(&crew.locks).await;
        let heir = crew.heir(heir_of_its_own(0)).await;
        let token = guard.token();
        match fault {
            "hang" => crew.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang),
            "reset" => crew.proxy.swallow_when(redis_command("EVALSHA"), Then::Reset),
            _ => crew.proxy.cut_when(redis_command("EVALSHA")),
        }
        // Whether it is known at once or in the background, it has been released.
        let _ = guard.release().await;
        assert_eq!(crew.proxy.fired(), 1, "{fault}");
        let (guard, _) = come(heir).await;
        assert!(guard.token() > token, "{fault}");
        assert_eq!(crew.holder().await, guard.owner().to_string(), "{fault}: two hold the lock");
        // What cleans up does not hit the holder.
        sleep(Duration::from_millis(600)).await;
        assert_eq!(crew.holder().await, guard.owner().to_string(), "{fault}");
        assert_eq!(guard.release().await.unwrap(), Released::Released, "{fault}");
        crew.site.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_is_not_handed_over() {
    let crew = Crew::new().await;
    let guard = take(&crew.locks).await;
    let heir = crew.heir(heir_of_its_own(0)).await;
    crew.site.redis(&["SET", KEY, "theirs", "PX", "60000"]).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    crew.site.queue_is(1).await;
    assert!(!heir.is_finished());
    assert_eq!(crew.holder().await, "theirs");
    crew.site.redis(&["DEL", KEY]).await;
    give_back(come(heir).await.0).await;
    crew.site.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_options_of_the_heir_count() {
    let crew = Crew::new().await;
    let short = Duration::from_millis(700);

    let guard = take(&crew.locks).await;
    let heir = crew.heir(LockOptions::new().fixed_ttl(short)).await;
    crew.proxy.reset_counters();
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert!((1..=700).contains(&crew.pttl().await));
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), LossReason::DeadlinePassed);
    assert_eq!(crew.proxy.requests(), 1, "handed over, and never renewed");
    drop(guard);
    crew.site.nothing_is_left().await;

    let guard = take(&crew.locks).await;
    let (heir, started) = (crew.heir(LockOptions::new().max_hold(short)).await, Instant::now());
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), LossReason::MaxHold);
    assert!(started.elapsed() < short + NOISE, "{:?}", started.elapsed());
    drop(guard);
    crew.site.nothing_is_left().await;

    // And those of the holder do not.
    let guard = crew.locks.mutex_with("a", LockOptions::new().fixed_ttl(short)).unwrap();
    let guard = guard.acquire().await.unwrap();
    let heir = crew.heir(LockOptions::new().ttl(Duration::from_secs(60)).label("heir")).await;
    give_back(guard).await;
    let (guard, _) = come(heir).await;
    assert!((50_000..=60_000).contains(&crew.pttl().await));
    let state = crew.locks.inspect("a").await.unwrap();
    assert!(state.holder().unwrap().to_string().contains("heir"));
    give_back(guard).await;
}

/// The release waits for a renewal that is under way, and is given up then.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_after_a_release_that_was_dropped_during_a_renewal_is_renewed() {
    let ttl = Duration::from_secs(3);
    let mut crew = Crew::new().await;
    crew.locks = connect(&format!("redis://{}?ttl=3s", crew.proxy.addr())).await;
    let guard = take(&crew.locks).await;
    crew.proxy.hold(Direction::ToClient);
    // A third of the ttl, and a part of it.
    sleep(ttl / 2).await;
    let mutex = crew.locks.mutex("a");
    let next = tokio::spawn(async move {
        sleep(Duration::from_millis(20)).await;
        mutex.acquire().await.unwrap()
    });
    timeout(Duration::from_millis(100), guard.release()).await.unwrap_err();
    crew.proxy.heal();
    let guard = come(next).await;
    assert!(guard.extend(ttl).await.is_ok(), "its renewal had been stopped");
    sleep(ttl * 2).await;
    assert!(guard.is_valid(), "nobody renews it");
    give_back(guard).await;
    crew.site.nothing_is_left().await;
}
