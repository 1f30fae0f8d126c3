//! Locks in a store of one's own, which can compare and swap: `cargo run --example own_registers --features kv`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use polylock::kv::{About, Registers, Version, Versioned};
use polylock::{Locks, Result};

/// A map of this process; it might as well be a table, or a service behind HTTP.
#[derive(Clone, Debug, Default)]
pub struct Map(pub Arc<Mutex<Values>>);

/// The number of the last write, and the values, each with that of its own: no version comes back, also after a removal.
pub type Values = (u64, BTreeMap<String, (u64, Vec<u8>)>);

impl Map {
    fn with<T>(&self, change: impl FnOnce(&mut Values) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Registers for Map {
    fn about(&self) -> About {
        let mut about = About::new("map", Duration::from_millis(5));
        about.cross_process = false;
        about
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let found = self.with(|(_, map)| map.get(key).cloned());
        Ok(found.map(|(version, value)| Versioned::new(version.into(), value)))
    }

    /// Over a network, one that got no answer is an error with the [outcome](polylock::Error::with_outcome) `Unknown`, and is not sent again.
    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        self.with(|(writes, map)| {
            let present = map.get(key).map(|(version, _)| *version);
            if present.map(Version::from).as_ref() != expected {
                return Ok(None);
            }
            *writes += 1;
            map.insert(key.to_owned(), (*writes, value.to_vec()));
            Ok(Some((*writes).into()))
        })
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let is_next = |key: &&String| key.starts_with(prefix) && key.as_str() > after;
        Ok(self.with(|(_, map)| map.keys().filter(is_next).take(1_000).cloned().collect()))
    }
}

/// Acquires a lock in a map.
#[tokio::main]
pub async fn main() -> Result<()> {
    let locks = Locks::on(Map::default()).await?;
    let guard = locks.mutex("orders/42").acquire().await?;
    println!("held with the token {}:\n{}", guard.token(), locks.inspect("orders/42").await?);
    guard.release().await?;
    locks.close().await
}
