//! Whether a store refuses a swap on an old version: some gateways accept conditions, and ignore them.

use std::time::Duration;

use lock_core::{Outcome, Result, random};
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::error::{silent, swaps_on_old_versions};
use crate::registers::{Registers, Version};

/// No lock has it.
pub(crate) const KEY: &str = "polylock-probe";
/// Others may try it at the same time.
const TRIES: u32 = 20;

/// The value of the key.
#[derive(Debug, Serialize, Deserialize)]
struct Probe<'a> {
    /// Each value differs: some versions are hashes.
    probe: &'a str,
    /// A version that the key has had, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<String>,
}

/// Tries it on a key that no lock has, which stays. A store that refuses is written twice in all: clients that connect together do not
/// wait for each other.
///
/// # Errors
///
/// [`Unsupported`](lock_core::ErrorKind::Unsupported) if the store lets one through; those of the store.
pub(crate) async fn refuses_old_versions(registers: &impl Registers, limit: Duration) -> Result<()> {
    let probed = timeout(limit, probe(registers)).await;
    let probed = probed.unwrap_or_else(|_| Err(silent(registers.about().name, limit, Outcome::Unknown)));
    // Whatever became of the probe, no lock has changed.
    probed.map_err(|error| error.with_outcome(Outcome::NotApplied))
}

async fn probe(registers: &impl Registers) -> Result<()> {
    let name = registers.about().name;
    // The next value has an old version: the present one.
    let swap = async |expected: Option<&Version>, present: Option<&Version>| {
        let probe = format!("{:032x}", random::rng().random::<u128>());
        let value = Probe { probe: &probe, old: present.map(|version| version.as_str().to_owned()) };
        let value = serde_json::to_vec(&value).expect("texts are JSON");
        registers.swap(KEY, expected, &value).await
    };
    for _ in 0..TRIES {
        let Some(found) = registers.read(KEY).await? else {
            swap(None, None).await?;
            continue;
        };
        let present = Some(&found.version);
        let Some(old) = serde_json::from_slice::<Probe<'_>>(&found.value).ok().and_then(|probe| probe.old)
        else {
            swap(present, present).await?;
            continue;
        };
        if swap(Some(&Version::new(old)), present).await?.is_some() {
            return Err(swaps_on_old_versions(name, "executes a swap on an old version"));
        }
        if swap(None, present).await?.is_some() {
            return Err(swaps_on_old_versions(name, "creates a key that exists"));
        }
        return Ok(());
    }
    // So many others tried it, each on a version of its own: it refuses.
    Ok(())
}
