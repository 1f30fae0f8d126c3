//! What many tests begin with.

use std::sync::Arc;

use lock_core::{Locks, Result};
use lock_redlock::{Redlock, RedlockConfig};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, RedisFive, RedisServer};

pub async fn connect(url: &str) -> Result<Locks> {
    RedlockConfig::from_url(url)?.connect().await
}

/// The backend as well, for what locks do not show.
pub async fn backend(url: &str) -> (Arc<Redlock>, Locks) {
    let backend = Arc::new(Redlock::connect(RedlockConfig::from_url(url).unwrap()).await.unwrap());
    let locks = Locks::from_dyn(Arc::<Redlock>::clone(&backend));
    (backend, locks)
}

/// Who has the lock `a` on a master: the value begins with that.
pub async fn holder(server: &RedisServer) -> Option<String> {
    let value = server.command(&["GET", "lock:a"]).await.unwrap();
    value.text().and_then(|value| value.split(' ').next()).map(str::to_owned)
}

/// A proxy before each master, and their URL without options.
pub fn proxied(masters: &RedisFive) -> (Vec<FaultProxy>, String) {
    let start = |server: &RedisServer| FaultProxy::start(server.addr(), Protocol::Redis).unwrap();
    let proxies: Vec<_> = masters.servers().iter().map(start).collect();
    let addrs: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    (proxies, format!("redlock://{}", addrs.join(",")))
}
