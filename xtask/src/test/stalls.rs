//! When this machine stood still: a thread sleeps, and notes how late it wakes.
//!
//! A virtual machine that is paused, or a host with too much to do, stops all programs at once. A lease that ends meanwhile was
//! lost rightly.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Watches until it is dropped.
#[derive(Debug)]
pub(super) struct Stalls(Arc<Mutex<Duration>>);

impl Stalls {
    pub(super) fn watch() -> Self {
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let noted = Arc::downgrade(&longest);
        thread::spawn(move || watch(&noted));
        Self(longest)
    }

    /// The longest one.
    pub(super) fn longest(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch(noted: &Weak<Mutex<Duration>>) {
    let mut slept = Instant::now();
    while let Some(longest) = noted.upgrade() {
        thread::sleep(INTERVAL);
        let late = slept.elapsed().saturating_sub(INTERVAL);
        slept = Instant::now();
        let mut longest = longest.lock().unwrap_or_else(PoisonError::into_inner);
        *longest = late.max(*longest);
    }
}

/// Cheap enough not to disturb, and far shorter than any lease.
const INTERVAL: Duration = Duration::from_millis(50);
