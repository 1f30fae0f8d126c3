//! When this machine stood still: a thread sleeps, and notes how late it wakes.
//!
//! A virtual machine that is paused, or a host with too much to do, stops all programs at once. A lease that ends meanwhile was
//! lost rightly.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// In milliseconds.
static LONGEST: AtomicU64 = AtomicU64::new(0);
/// Cheap enough not to disturb, and far shorter than any lease.
const INTERVAL: Duration = Duration::from_millis(50);

/// Begins, or begins anew.
pub(super) fn watch() {
    static BEGUN: Once = Once::new();
    LONGEST.store(0, Relaxed);
    BEGUN.call_once(|| {
        thread::spawn(|| {
            loop {
                let began = Instant::now();
                thread::sleep(INTERVAL);
                let late = began.elapsed().saturating_sub(INTERVAL).as_millis();
                LONGEST.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Relaxed);
            }
        });
    });
}

/// The longest one since then.
pub(super) fn longest() -> Duration {
    Duration::from_millis(LONGEST.load(Relaxed))
}
