//! zookeeper-client's own `LockClient`: the lock of the driver that ours is built on.

use std::time::Duration;

use lock_testkit::history::ReleaseOutcome;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::Library;
use crate::data::Outcome;
use crate::rig::backends::zk as zk_servers;
use crate::rig::measured_lock::MeasuredLock;

/// A session of the driver, and the directory of the lock.
#[derive(Debug)]
pub(crate) struct DriverLock {
    client: Client,
    directory: String,
}

impl Library for DriverLock {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Ok(Self { client: zk_servers::connect(url, SESSION).await?, directory: format!("/{name}") })
    }

    fn with_name(&self, name: &str) -> Outcome<Self> {
        Ok(Self { client: self.client.clone(), directory: format!("/{name}") })
    }
}

impl MeasuredLock for DriverLock {
    type Held = OwnedLockClient;

    async fn acquire(&self) -> Outcome<OwnedLockClient> {
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        let prefix = LockPrefix::new_curator(&self.directory, "lock-")?;
        Ok(self.client.lock(prefix, b"", options).await?.into_owned())
    }

    async fn release(&self, held: OwnedLockClient) -> Outcome<ReleaseOutcome> {
        // Its drop deletes the node in the background, which cannot be awaited.
        self.client.delete(held.lock_path(), None).await?;
        std::mem::forget(held);
        Ok(ReleaseOutcome::Released)
    }
}

/// The driver has no default.
const SESSION: Duration = Duration::from_secs(10);
