//! What many tests begin with.

pub(crate) mod dial;
pub(crate) mod pretend;
pub(crate) mod script_text;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::engine::Extension;
use lock_core::migration::Tombstone;
use lock_core::{
    AcquireRequest, Acquired, Backend, Guard, Lease, LeasePolicy, LockName, Locks, OwnerInfo, Wait,
};
use lock_redis::server::Server;
use lock_redis::{Redis, RedisConfig};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, RedisCluster, RedisServer, acquiring, give_back, hand_over, take, until};
use redis_link::keys::Keys;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

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

/// Extends these leases, and returns the answer to each.
pub async fn extended(server: &Server, leases: &[Extension<'_, Arc<Keys>>]) -> Vec<lock_core::Result<bool>> {
    let answers = Mutex::new(BTreeMap::new());
    let answered = |at, answer| drop(answers.lock().unwrap().insert(at, answer));
    server.extend(server.moment(), leases, answered).await;
    answers.into_inner().unwrap().into_values().collect()
}

/// One address, behind which is another server from time to time, as behind a name or a balancer. What is open stays.
pub struct Relay {
    addr: SocketAddr,
    state: Arc<RelayState>,
}

struct RelayState {
    /// Where the next connections lead to; the last one stays.
    targets: Mutex<VecDeque<SocketAddr>>,
    /// Closes a connection on which this is sent.
    refuses: Option<&'static str>,
    accepted: AtomicUsize,
}

impl Relay {
    pub async fn start(to: SocketAddr, refuses: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let targets = Mutex::new(VecDeque::from([to]));
        let state = Arc::new(RelayState { targets, refuses, accepted: AtomicUsize::new(0) });
        let relay = Arc::downgrade(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Some(state) = relay.upgrade() else { return };
                state.accepted.fetch_add(1, Ordering::SeqCst);
                let to = state.next();
                drop(tokio::spawn(forward(stream, to, state.refuses)));
            }
        });
        Self { addr, state }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Where the next connections lead to, one after the other, and all later ones.
    pub fn leads_to(&self, targets: &[SocketAddr]) {
        *self.state.targets.lock().unwrap() = targets.iter().copied().collect();
    }

    /// How many connections were made.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

impl RelayState {
    fn next(&self) -> SocketAddr {
        let mut targets = self.targets.lock().unwrap();
        if targets.len() > 1 { targets.pop_front().unwrap() } else { targets[0] }
    }
}

async fn forward(client: TcpStream, to: SocketAddr, refuses: Option<&'static str>) {
    let Ok(server) = TcpStream::connect(to).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            let is_refused =
                |word: &str| buffer[..count].windows(word.len()).any(|part| part == word.as_bytes());
            if refuses.is_some_and(is_refused) || to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
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
