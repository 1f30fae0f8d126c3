//! Ctrl-C while a child process runs.
//!
//! The terminal sends SIGINT to the whole process group. The child cleans up; this process notes the signal, waits for the
//! child as always, and then stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::SIGINT;

static SEEN: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Defers Ctrl-C from here on, until [`check`].
///
/// Children do not inherit a handler, unlike an ignored signal: they keep their own reaction to Ctrl-C.
pub(crate) fn defer() -> Result<(), String> {
    let defer = signal_hook::flag::register(SIGINT, Arc::clone(&SEEN));
    defer.map(drop).map_err(|error| format!("cannot listen for Ctrl-C: {error}"))
}

/// Fails if Ctrl-C was pressed.
pub(crate) fn check() -> Result<(), String> {
    if SEEN.load(Ordering::SeqCst) { Err("interrupted".into()) } else { Ok(()) }
}

/// Ends what runs in other threads, as Ctrl-C does.
pub(crate) fn end_others() {
    SEEN.store(true, Ordering::SeqCst);
}
