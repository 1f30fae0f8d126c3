//! Whether a store refuses a swap on an old version: some gateways accept conditions, and ignore them.

use std::time::Duration;

use lock_core::{Outcome, Result, random};
use rand::Rng;
use tokio::time::timeout;

use crate::error::{silent, swaps_on_old_versions};
use crate::registers::{Registers, Version};

/// No lock has it.
pub(crate) const KEY: &str = "polylock-probe";
/// Others may try it at the same time.
const TRIES: u32 = 20;

/// Tries it on a key that no lock has, which stays.
///
/// # Errors
///
/// [`Unsupported`](lock_core::ErrorKind::Unsupported) if the store lets one through; those of the store.
pub(crate) async fn refuses_old_versions(registers: &impl Registers, limit: Duration) -> Result<()> {
    let probed = timeout(limit, probe(registers)).await;
    probed.map_err(|_| silent(registers.about().name, limit, Outcome::NotApplied))?
}

async fn probe(registers: &impl Registers) -> Result<()> {
    let name = registers.about().name;
    let swap = async |expected: Option<&Version>| {
        // Each value differs: some versions are hashes.
        let value = format!("{{\"probe\":\"{:032x}\"}}", random::rng().random::<u128>());
        registers.swap(KEY, expected, value.as_bytes()).await
    };
    for _ in 0..TRIES {
        let old = match registers.read(KEY).await? {
            Some(found) => found.version,
            None => match swap(None).await? {
                Some(created) => created,
                None => continue,
            },
        };
        if swap(Some(&old)).await?.is_none() {
            continue;
        }
        if swap(Some(&old)).await?.is_some() {
            return Err(swaps_on_old_versions(name, "executes a swap on an old version"));
        }
        if swap(None).await?.is_some() {
            return Err(swaps_on_old_versions(name, "creates a key that exists"));
        }
        return Ok(());
    }
    // So many others tried it, each on a version of its own: it refuses.
    Ok(())
}
