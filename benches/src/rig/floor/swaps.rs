//! The floor of stores that compare and swap: a swap that acquires, and one that releases.

use polylock::OwnerId;

use super::Floor;
use crate::data::{Failure, Outcome};
use crate::rig::backends::etcd::Etcd;
use crate::rig::backends::mysql::Mysql;
use crate::rig::backends::s3::{Bucket, Tag};
use crate::rig::backends::sqlite::Sqlite;

/// Connections that many locks share.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Etcd(Etcd),
    Mysql(Mysql),
    Sqlite(Sqlite),
    S3(Bucket),
}

/// A value of its own, so that its version is known without a read.
#[derive(Debug)]
pub(crate) struct BareSwaps {
    store: Store,
    key: String,
    /// What is written: as long as the name of an owner.
    owner: String,
    swaps: u64,
    /// The version, where it is no number of ours.
    tag: Option<Tag>,
}

impl Store {
    /// Connects to the store of a URL with this scheme; nothing for other schemes.
    pub(super) async fn open(scheme: &str, url: &str) -> Outcome<Option<Self>> {
        Ok(Some(match scheme {
            "etcd" => Self::Etcd(Etcd::connect(url).await?),
            "mysql" => Self::Mysql(Mysql::connect(url).await?),
            "sqlite" => Self::Sqlite(Sqlite::connect(url).await?),
            "s3" => Self::S3(Bucket::connect(url)?),
            _ => return Ok(None),
        }))
    }
}

impl BareSwaps {
    pub(super) fn on(store: &Store, key: &str, owner: OwnerId) -> Self {
        let (store, owner) = (store.clone(), owner.to_string());
        Self { store, key: format!("{key}/{owner}"), owner, swaps: 0, tag: None }
    }

    /// Fails unless the value was written: otherwise its time is no floor.
    async fn swap(&mut self) -> Outcome<()> {
        let (key, swaps) = (self.key.as_str(), self.swaps);
        let value = format!("{} {swaps}", self.owner);
        let is_written = match &self.store {
            Store::Etcd(etcd) => etcd.swap(key, swaps, value.as_bytes()).await?,
            Store::Mysql(mysql) => mysql.swap(key, swaps, value.as_bytes()).await?,
            Store::Sqlite(sqlite) => sqlite.swap(key, swaps, value.as_bytes()).await?,
            Store::S3(bucket) => {
                self.tag = Some(bucket.swap(key, self.tag.take(), value.as_bytes()).await?);
                true
            }
        };
        self.swaps += 1;
        if is_written { Ok(()) } else { Err(Failure::new("a bare swap was refused")) }
    }
}

impl Floor for BareSwaps {
    async fn acquire(&mut self) -> Outcome<()> {
        self.swap().await
    }

    async fn release(&mut self) -> Outcome<()> {
        self.swap().await
    }
}

#[cfg(all(test, feature = "stores"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_value_that_others_have_changed_is_no_floor() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/locks.db", dir.path().display());
        let (store, owner) = (Store::open("sqlite", &url).await.unwrap().unwrap(), OwnerId::random());
        let mut floor = BareSwaps::on(&store, "unit", owner);
        for _ in 0..3 {
            floor.acquire().await.unwrap();
            floor.release().await.unwrap();
        }
        assert!(BareSwaps::on(&store, "unit", owner).acquire().await.is_err());
    }
}
