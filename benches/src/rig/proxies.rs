//! Proxies between clients and servers: they count what both send, and faults of the network happen in them.

use lock_testkit::FaultProxy;
use lock_testkit::proxy::Protocol;

use crate::data::{BackendName, Outcome};
use crate::rig::url;

#[derive(Debug, Default)]
pub(crate) struct Proxies(Vec<FaultProxy>);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    /// Pushes and watch events.
    pub(crate) notifications: u64,
    /// Both ways, heartbeats included.
    pub(crate) bytes: u64,
}

impl Proxies {
    pub(crate) async fn start(backend: BackendName, url: &str) -> Outcome<Self> {
        let protocol = match backend {
            BackendName::Zk => Protocol::ZooKeeper,
            BackendName::Postgres => Protocol::Postgres,
            BackendName::Mysql => Protocol::Mysql,
            _ => Protocol::Redis,
        };
        Self::start_with(protocol, url).await
    }

    /// As [`start`](Self::start), with another protocol than that of the backend: what TLS hides cannot be counted.
    pub(crate) async fn start_with(protocol: Protocol, url: &str) -> Outcome<Self> {
        let scheme = url.split("://").next().unwrap_or_default();
        let mut proxies = Vec::new();
        for host in url::hosts(url) {
            proxies.push(FaultProxy::start(url::resolve(host, scheme).await?, protocol)?);
        }
        Ok(Self(proxies))
    }

    /// The proxies, in the order of the servers.
    pub(crate) fn all(&self) -> &[FaultProxy] {
        &self.0
    }

    pub(crate) fn url(&self, url: &str) -> String {
        if self.0.is_empty() {
            return url.to_owned();
        }
        let addresses: Vec<_> = self.0.iter().map(FaultProxy::addr).collect();
        url::with_hosts(url, &addresses)
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |count: fn(&FaultProxy) -> u64| self.0.iter().map(count).sum();
        Counts {
            requests: of(FaultProxy::requests),
            notifications: of(FaultProxy::pushes),
            bytes: of(FaultProxy::bytes),
        }
    }
}

impl Counts {
    /// The difference to earlier totals.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            notifications: self.notifications - before.notifications,
            bytes: self.bytes - before.bytes,
        }
    }
}
