//! How much a test tries: little while somebody waits for it, more before a commit lands, most at night.
//!
//! `cargo xtask test` sets `TEST_TIER` to `first`, `full` or `deep`; without it a test is in the first tier.

use std::env;
use std::sync::LazyLock;

/// The number for the tier that runs: of seeds, of random cases, of rounds.
///
/// # Panics
///
/// When `TEST_TIER` is no tier.
#[must_use]
pub fn by_tier<T>(first: T, full: T, deep: T) -> T {
    match TIER.as_deref() {
        None | Some("first") => first,
        Some("full") => full,
        Some("deep") => deep,
        Some(other) => panic!("TEST_TIER={other} is none of first, full, deep"),
    }
}

static TIER: LazyLock<Option<String>> = LazyLock::new(|| env::var("TEST_TIER").ok());
