//! The store that locks move from.

use std::any::Any;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::migration::{MigrationSource, Reading, Removal, Removed, Swapped, Tombstone, Writer};
use lock_core::{Error, ErrorKind, Finding, Lease, LockName, Result, Token};

use crate::backend::Redis;
use crate::error::BACKEND;
use crate::lease::RedisLease;

#[async_trait]
impl MigrationSource for Redis {
    fn identity(&self) -> String {
        self.context().identity.clone()
    }

    async fn claimed(&self) -> Result<Option<String>> {
        self.context().server.client.claimed_keys(&self.context().prefix).await
    }

    async fn claim(&self, migration: &str) -> Result<String> {
        self.context().server.client.claim_keys(&self.context().prefix, migration).await
    }

    async fn unclaim(&self, migration: &str) -> Result<()> {
        self.context().server.client.unclaim_keys(&self.context().prefix, migration).await
    }

    async fn examine(&self, migration: &str) -> Result<Vec<Finding>> {
        self.context().preflight(migration).await
    }

    async fn writers(&self) -> Result<Vec<Writer>> {
        self.context().server.client.writers(&self.context().prefix).await
    }

    async fn longest_lease(&self) -> Result<Option<Duration>> {
        self.context().longest_lease().await
    }

    async fn largest_token(&self) -> Result<Option<Token>> {
        self.context().server.client.largest_token(&self.context().prefix).await
    }

    async fn swap(&self, lease: &mut dyn Lease, tombstone: &Tombstone) -> Result<Swapped> {
        let lease: &mut dyn Any = lease;
        lease.downcast_mut::<RedisLease>().ok_or_else(not_ours)?.swap(tombstone).await
    }

    async fn read_tombstone(&self, name: &LockName) -> Result<Option<Reading>> {
        self.context().read_tombstone(name).await
    }

    fn is_current(&self, reading: &Reading, name: &LockName) -> bool {
        let generation = self.context().keys(name).map(|keys| self.context().server.client.generation(&keys));
        generation.is_ok_and(|generation| generation.is_none_or(|present| present == reading.connection))
    }

    async fn remove_tombstone(&self, removal: &Removal<'_>) -> Result<Removed> {
        self.context().remove_tombstone(&self.context().keys(removal.name)?, removal).await
    }

    async fn tombstones(&self, prefix: &str) -> Result<Vec<Reading>> {
        self.context().tombstones(prefix).await
    }

    async fn time(&self, name: &LockName) -> Result<u64> {
        // No script: an operator who finishes the migration may not write.
        let time = self.context().server.client.time_of(&self.context().keys(name)?).await?;
        Ok(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }
}

fn not_ours() -> Error {
    Error::new(ErrorKind::Unexpected, BACKEND).with_message("the lease is not one of this backend")
}
