//! etcd's own lock, which the server keeps (`v3lock`), as the client of etcd for Rust, etcd-client, asks for it.

use lock_testkit::history::ReleaseOutcome;

use super::Library;
use crate::data::Outcome;
use crate::rig::backends::etcd::Etcd;
use crate::rig::measured_lock::MeasuredLock;

/// A lock of one lease. etcd-client itself needs `protoc` to build: this is its requests by the client of ours.
#[derive(Debug)]
pub(crate) struct EtcdLock {
    etcd: Etcd,
    lease: i64,
    name: String,
}

impl Library for EtcdLock {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        let etcd = Etcd::connect(url).await?;
        Ok(Self { lease: etcd.lease(LEASE_S).await?, etcd, name: name.to_owned() })
    }
}

impl MeasuredLock for EtcdLock {
    type Held = Vec<u8>;

    async fn acquire(&self) -> Outcome<Vec<u8>> {
        self.etcd.lock(&self.name, self.lease).await
    }

    async fn release(&self, key: Vec<u8>) -> Outcome<ReleaseOutcome> {
        self.etcd.unlock(key).await?;
        Ok(ReleaseOutcome::Unknown)
    }
}

/// Longer than any measurement: it is the caller's to keep alive, and there is no default.
const LEASE_S: i64 = 600;
