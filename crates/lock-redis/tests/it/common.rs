//! What many tests begin with.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::migration::Tombstone;
use lock_core::{
    AcquireRequest, Acquired, Backend, Guard, Lease, LeasePolicy, LockName, Locks, OwnerInfo, Wait,
};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, RedisCluster, RedisServer, acquiring, give_back, hand_over, take, until};

/// The recipes, by their options.
pub const RECIPES: [&str; 2] = ["recipe=set-nx-px", "recipe=setnx-timestamp&clock_skew=50ms"];
/// Of the lock `a`.
pub const KEY: &str = "lock:a";
pub const QUEUE: &str = "polylock:queue:{lock:a}";
pub const TOKENS: &str = "polylock:tokens:{lock:a}";

pub async fn try_connect(url: &str) -> lock_core::Result<Locks> {
    RedisConfig::from_url(url)?.connect().await
}

pub async fn connect(url: &str) -> Locks {
    try_connect(url).await.unwrap()
}

/// A client of this server, with options of its URL.
pub async fn client(redis: &RedisServer, options: &str) -> Locks {
    connect(&format!("{}?{options}", redis.url())).await
}

/// The URL of the user `worker`, who gets all rights but these.
pub async fn url_without(redis: &RedisServer, rights: &[&str]) -> String {
    let all = ["ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "&*", "+@all"];
    redis.call(&[&all[..], rights].concat()).await;
    as_worker(&redis.url())
}

/// As [`url_without`], of a cluster.
pub async fn cluster_without(cluster: &RedisCluster, rights: &[&str]) -> String {
    for master in cluster.masters() {
        url_without(master, rights).await;
    }
    as_worker(&cluster.url())
}

pub fn as_worker(url: &str) -> String {
    url.replace("//", "//worker:pw@")
}

/// Two clients exclude each other, the lock goes on to a waiter with a larger token, and nothing is left.
pub async fn works(url: &str) {
    let (ours, theirs) = (connect(url).await, connect(url).await);
    let guard = take(&ours, "a").await;
    assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    // One that polls is not counted.
    let waiter = acquiring(theirs.mutex("a"));
    let token = guard.token();
    let next = hand_over(guard, waiter).await;
    assert!(next.token() > token);
    give_back(next).await;
    assert!(!ours.inspect("a").await.unwrap().is_held());
}

/// Acquires in spite of an outage: by asking again for as long as the error says that it may help.
pub async fn acquire_in_the_end(locks: &Locks, name: &str) -> Guard {
    let mut acquired = None;
    until("the lock is acquired", async || {
        match locks.mutex(name).acquire().await {
            Ok(guard) => acquired = Some(guard),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        acquired.is_some()
    })
    .await;
    acquired.unwrap()
}

/// Waits until this many waiters are in the queue of the lock `a`.
pub async fn queue_is(redis: &RedisServer, wanted: usize) {
    until(&format!("the queue has not {wanted} waiters"), async || queued(redis).await == wanted).await;
}

pub async fn queued(redis: &RedisServer) -> usize {
    redis.call(&["LLEN", QUEUE]).await.int().unwrap().try_into().unwrap()
}

/// Waits until there is no lock, and nothing of the lock `a` but its last token.
pub async fn nothing_is_left(redis: &RedisServer) {
    until("a key is left behind", async || {
        let beside = redis.call(&["EXISTS", QUEUE, "polylock:holders:{lock:a}"]).await;
        beside.int() == Some(0) && redis.text(&["KEYS", "lock:*"]).await == "Array([])"
    })
    .await;
}

/// Waits until the server says so.
pub async fn until_info(redis: &RedisServer, section: &str, what: &str) {
    until(what, async || redis.text(&["INFO", section]).await.contains(what)).await;
}

/// The owner id of the holder of the lock `a`, or another value.
pub async fn holder(redis: &RedisServer) -> String {
    let value = redis.call(&["GET", KEY]).await;
    value.text().and_then(|value| value.split(' ').next()).unwrap_or_default().to_owned()
}

/// The backend as well, for what a migration asks of it.
pub async fn backend(url: &str) -> (Arc<Redis>, Locks) {
    let redis = Arc::new(Redis::connect(RedisConfig::from_url(url).unwrap()).await.unwrap());
    (Arc::clone(&redis), Locks::from_dyn(redis))
}

/// A request for this lock, exclusively and at once.
pub fn request(name: &LockName) -> AcquireRequest {
    let owner = Arc::new(OwnerInfo::this_process());
    AcquireRequest::exclusive(name.clone(), Wait::Never, LeasePolicy::default(), owner)
}

/// The lease of this lock, which is free.
pub async fn hold(redis: &Redis, name: &LockName) -> Box<dyn Lease> {
    match redis.acquire(request(name)).await.unwrap() {
        Acquired::Held(lease) => lease,
        busy => panic!("{busy:?}"),
    }
}

/// What is left of this lock when it has moved, for thirty days from now.
pub fn tombstone(name: &LockName) -> Tombstone {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    Tombstone {
        to: "zk://a:2181/app".into(),
        namespace: "shop".into(),
        lock: name.clone(),
        written: UNIX_EPOCH + Duration::from_secs(seconds),
        life: Duration::from_secs(30 * 86_400),
        newest: 17,
    }
}

/// A server, and a client behind a proxy.
pub struct Link {
    pub redis: RedisServer,
    pub proxy: FaultProxy,
    pub locks: Locks,
}

impl Link {
    pub async fn with(options: &str) -> Self {
        Self::configured(options, |config| config).await
    }

    pub async fn configured(options: &str, more: impl FnOnce(RedisConfig) -> RedisConfig) -> Self {
        let redis = RedisServer::start().await.unwrap();
        let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
        let config = RedisConfig::from_url(&format!("redis://{}?{options}", proxy.addr())).unwrap();
        let locks = more(config).connect().await.unwrap();
        Self { redis, proxy, locks }
    }

    /// Another client, without the proxy.
    pub async fn direct(&self) -> Locks {
        client(&self.redis, "ttl=60s").await
    }

    pub async fn nothing_is_left(&self) {
        nothing_is_left(&self.redis).await;
    }
}
