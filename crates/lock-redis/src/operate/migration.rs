//! The store that locks move from.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::engine::OnEngine;
use lock_core::migration::{MigrationSource, Reading, Removal, Removed, Swapped, Tombstone, Writer};
use lock_core::{Finding, Lease, LockName, Result, Token};
use redis_link::keys::Keys;

use crate::backend::Redis;
use crate::operate::tombstone::lives_until;

#[async_trait]
impl MigrationSource for Redis {
    fn identity(&self) -> String {
        self.store().identity.clone()
    }

    async fn claimed(&self) -> Result<Option<String>> {
        self.store().server.client.claimed_keys(&self.store().prefix).await
    }

    async fn claim(&self, migration: &str) -> Result<String> {
        self.store().server.client.claim_keys(&self.store().prefix, migration).await
    }

    async fn unclaim(&self, migration: &str) -> Result<()> {
        self.store().server.client.unclaim_keys(&self.store().prefix, migration).await
    }

    async fn examine(&self, migration: &str) -> Result<Vec<Finding>> {
        self.store().preflight(migration).await
    }

    async fn servers(&self) -> Result<Vec<String>> {
        self.store().server.client.servers().await
    }

    async fn writers(&self) -> Result<Vec<Writer>> {
        self.store().server.client.writers(&self.store().prefix).await
    }

    async fn longest_lease(&self) -> Result<Option<Duration>> {
        self.store().longest_lease().await
    }

    async fn largest_token(&self) -> Result<Option<Token>> {
        self.store().server.client.largest_token(&self.store().prefix).await
    }

    async fn swap(&self, lease: &mut dyn Lease, tombstone: &Tombstone) -> Result<Swapped> {
        let swap = |keys: Arc<Keys>, owner| async move {
            let sent = self.store().now();
            let is_there = self.store().swap(&keys, owner, tombstone).await?;
            Ok(is_there.then(|| lives_until(sent, tombstone)))
        };
        let until = self.engine().end(lease, swap).await?;
        Ok(until.map_or(Swapped::NotHeld, |until| Swapped::Done { until }))
    }

    async fn read_tombstone(&self, name: &LockName) -> Result<Option<Reading>> {
        self.store().read_tombstone(name).await
    }

    fn is_current(&self, reading: &Reading, name: &LockName) -> bool {
        let generation = self.store().keys(name).map(|keys| self.store().server.client.generation(&keys));
        generation.is_ok_and(|generation| generation.is_none_or(|present| present == reading.connection))
    }

    async fn remove_tombstone(&self, removal: &Removal<'_>) -> Result<Removed> {
        self.store().remove_tombstone(&self.store().keys(removal.name)?, removal).await
    }

    async fn tombstones(&self, prefix: &str) -> Result<Vec<Reading>> {
        self.store().tombstones(prefix).await
    }

    async fn time(&self, name: &LockName) -> Result<u64> {
        // No script: an operator who finishes the migration may not write.
        let time = self.store().server.client.time_of(&self.store().keys(name)?).await?;
        Ok(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }
}
