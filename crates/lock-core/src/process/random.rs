//! The source of random numbers, which tests can seed.

use rand::rngs::OsRng;
use rand::{RngCore, TryRngCore};

/// The random numbers of this thread, for pauses: seeded by the operating system, unless a test has [seeded](seed) them.
pub fn rng() -> impl RngCore {
    Source
}

/// Fills an identity from the operating system itself, unless a test has [seeded](seed) this thread: a generator in memory goes on
/// alike in the children of a fork, and in a virtual machine that is resumed twice.
///
/// # Panics
///
/// If the operating system has no random numbers.
pub(crate) fn fill_identity(bytes: &mut [u8]) {
    #[cfg(feature = "test-util")]
    if SEEDED.with_borrow(Option::is_some) {
        rng().fill_bytes(bytes);
        return;
    }
    OsRng.try_fill_bytes(bytes).expect("the operating system has random numbers");
}

/// Seeds the random numbers of this thread, so that a test can be replayed. For tests only: owner ids can be guessed.
#[cfg(feature = "test-util")]
pub fn seed(seed: u64) {
    use rand::SeedableRng;
    SEEDED.set(Some(rand::rngs::StdRng::seed_from_u64(seed)));
}

#[cfg(feature = "test-util")]
thread_local! {
    static SEEDED: std::cell::RefCell<Option<rand::rngs::StdRng>> = const { std::cell::RefCell::new(None) };
}

struct Source;

impl RngCore for Source {
    fn next_u32(&mut self) -> u32 {
        with(|source| source.next_u32())
    }

    fn next_u64(&mut self) -> u64 {
        with(|source| source.next_u64())
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        with(|source| source.fill_bytes(bytes));
    }
}

#[cfg(feature = "test-util")]
fn with<T>(take: impl FnOnce(&mut dyn RngCore) -> T) -> T {
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(seeded) => take(seeded),
        None => take(&mut rand::rng()),
    })
}

#[cfg(not(feature = "test-util"))]
fn with<T>(take: impl FnOnce(&mut dyn RngCore) -> T) -> T {
    take(&mut rand::rng())
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same() {
        let numbers = |from| {
            seed(from);
            [rng().next_u64(), rng().next_u64()]
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }
}
