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
        // Its drop deletes the node in the background, where nobody can wait for it.
        self.client.delete(held.lock_path(), None).await?;
        std::mem::forget(held);
        Ok(ReleaseOutcome::Released)
    }
}
