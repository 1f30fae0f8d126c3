//! LockClient: the lock of the driver that ours is built on.

use lock_testkit::history::ReleaseOutcome;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::SESSION;
use crate::contender::Contender;
use crate::failure::Outcome;
use crate::floor::zk_session;

/// A session of the driver, and the directory of the lock.
#[derive(Debug)]
pub(crate) struct DriverLock {
    client: Client,
    directory: String,
}

impl DriverLock {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When the servers do not let us in.
    pub(crate) async fn connect(url: &str, directory: &str) -> Outcome<Self> {
        Ok(Self { client: zk_session(url, SESSION).await?, directory: directory.to_owned() })
    }
}

impl Contender for DriverLock {
    type Held = OwnedLockClient;

    async fn acquire(&self) -> Outcome<OwnedLockClient> {
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        let prefix = LockPrefix::new_curator(&self.directory, "lock-")?;
        Ok(self.client.lock(prefix, b"", options).await?.into_owned())
    }

    async fn release(&self, held: OwnedLockClient) -> Outcome<ReleaseOutcome> {
        // There is no other way, and nothing to wait for: the node is deleted in the background.
        drop(held);
        Ok(ReleaseOutcome::Unknown)
    }
}
