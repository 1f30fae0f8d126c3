//! Ctrl-C while a child works.
//!
//! The terminal sends SIGINT to the whole process group. The child must be left to clean up, so this process does
//! not die of the signal: it notes it, waits for the child as always, and then stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::SIGINT;

use crate::failure::Failure;

/// From here on Ctrl-C is noted and not obeyed at once.
///
/// A handler, unlike an ignored signal, is not inherited: children keep their own reaction to Ctrl-C.
pub(crate) fn defer() -> Result<(), Failure> {
    signal_hook::flag::register(SIGINT, Arc::clone(&SEEN))
        .map(drop)
        .map_err(|error| Failure::new(format!("cannot listen for Ctrl-C: {error}")))
}

/// Fails once Ctrl-C was pressed.
pub(crate) fn check() -> Result<(), Failure> {
    if SEEN.load(Ordering::SeqCst) { Err(Failure::interrupted()) } else { Ok(()) }
}

static SEEN: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
