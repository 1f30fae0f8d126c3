//! What many tests begin with.

use std::sync::Arc;

use lock_core::{Locks, Result};
use lock_redlock::{Redlock, RedlockConfig};
use lock_testkit::proxy::Protocol;
use lock_testkit::redis::Reply;
use lock_testkit::{FaultProxy, RedisFive, RedisServer, until};

/// Options for a busy machine: a master that is slow is not given up.
pub const PATIENT: &str = "master_timeout=10s&connect_timeout=20s";

pub async fn connect(url: &str) -> Result<Locks> {
    RedlockConfig::from_url(url)?.connect().await
}

/// So many masters, and a client.
pub async fn start(masters: usize, options: &str) -> (RedisFive, Locks) {
    let masters = RedisFive::start_n(masters).await.unwrap();
    let locks = client(&masters, options).await;
    (masters, locks)
}

pub async fn client(masters: &RedisFive, options: &str) -> Locks {
    connect(&format!("{}?{options}", masters.url())).await.unwrap()
}

/// The backend as well, for what locks do not show.
pub async fn backend(url: &str) -> (Arc<Redlock>, Locks) {
    let backend = Arc::new(Redlock::connect(RedlockConfig::from_url(url).unwrap()).await.unwrap());
    (Arc::clone(&backend), Locks::from_dyn(backend))
}

/// Executes a command on a master.
pub async fn run(master: &RedisServer, line: &str) -> Reply {
    master.call(&line.split(' ').collect::<Vec<_>>()).await
}

/// Who has the lock `a` on a master: the value begins with that.
pub async fn holder(master: &RedisServer) -> Option<String> {
    run(master, "GET lock:a").await.text().and_then(|value| value.split(' ').next()).map(str::to_owned)
}

/// Waits until each of these masters has the lock `a`: only a quorum has it when it is granted.
pub async fn all_have_it(masters: &RedisFive) {
    for master in masters.servers() {
        until("a master grants it", async || holder(master).await.is_some()).await;
    }
}

/// Waits until no master has the lock `a`.
pub async fn is_free(masters: &RedisFive) {
    for master in masters.servers() {
        until("a key is left", async || holder(master).await.is_none()).await;
    }
}

/// Waits until the queue of each master for a lock is as long.
pub async fn lined_up(masters: &RedisFive, lock: &str, wanted: i64) {
    for master in masters.servers() {
        let line = format!("ZCARD polylock:line:{{lock:{lock}}}");
        until("the queue is not as long", async || run(master, &line).await.int() == Some(wanted)).await;
    }
}

/// A proxy before each master, and their URL without options.
pub fn proxied(masters: &RedisFive) -> (Vec<FaultProxy>, String) {
    let start = |server: &RedisServer| FaultProxy::start(server.addr(), Protocol::Redis).unwrap();
    let proxies: Vec<_> = masters.servers().iter().map(start).collect();
    let addrs: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    (proxies, format!("redlock://{}", addrs.join(",")))
}

/// Three masters that speak TLS, and their URL without options.
#[cfg(feature = "tls")]
pub async fn secure(certificates: &Arc<lock_testkit::Certificates>) -> (RedisFive, String) {
    let masters = RedisServer::builder().tls(certificates, false).start_n(3).await.unwrap();
    let addrs: Vec<_> = masters.servers().iter().map(|master| master.tls_addr().to_string()).collect();
    (masters, format!("redlocks://{}", addrs.join(",")))
}
