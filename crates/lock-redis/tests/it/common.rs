//! What many tests begin with.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::migration::Tombstone;
use lock_core::{AcquireRequest, Acquired, Backend, Lease, LeasePolicy, LockName, Locks, OwnerInfo, Wait};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, RedisServer, until};

pub async fn connect(url: &str) -> Locks {
    RedisConfig::from_url(url).unwrap().connect().await.unwrap()
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
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    Tombstone {
        to: "zk://a:2181/app".into(),
        namespace: "shop".into(),
        lock: name.clone(),
        written: UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap()),
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
        let redis = RedisServer::start().await.unwrap();
        let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
        let locks = connect(&format!("redis://{}?{options}", proxy.addr())).await;
        Self { redis, proxy, locks }
    }

    pub async fn keys(&self) -> String {
        format!("{:?}", self.redis.call(&["KEYS", "lock:*"]).await)
    }

    pub async fn no_key_is_left(&self) {
        until("a key is left behind", async || self.keys().await == "Array([])").await;
    }

    /// The owner id of the holder of this lock, or another value.
    pub async fn holder(&self) -> String {
        holder(&self.redis).await
    }
}

/// The owner id of the holder of the lock `a`, or another value.
pub async fn holder(redis: &RedisServer) -> String {
    let value = redis.call(&["GET", "lock:a"]).await;
    value.text().and_then(|value| value.split(' ').next()).unwrap_or_default().to_owned()
}
