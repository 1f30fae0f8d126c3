//! The tokio runtimes on which locks are used.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{Error, ErrorKind, Outcome, Result};

const SEVERAL_RUNTIMES: &str = "these locks are used on several tokio runtimes, and a connection does not answer while its runtime \
                                is outside block_on: connect once on each runtime, or use one that keeps running";

/// The runtime of the caller.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) outside a runtime, where a driver would panic.
pub fn current(backend: &'static str) -> Result<Handle> {
    Handle::try_current().map_err(|error| {
        Error::new(ErrorKind::Unsupported, backend)
            .with_message("there is no tokio runtime")
            .with_hint("call it inside a tokio runtime: #[tokio::main], or Runtime::block_on")
            .caused_by(error)
    })
}

/// The runtimes on which one `Locks` is used.
#[derive(Debug)]
pub(crate) struct Runtimes {
    backend: &'static str,
    /// The process that connected.
    process: u32,
    /// The first one.
    home: OnceLock<Handle>,
    /// Whether there are several, one of them with a single thread.
    may_pause: AtomicBool,
}

impl Runtimes {
    pub(crate) fn new(backend: &'static str) -> Self {
        let home = Handle::try_current().map_or_else(|_| OnceLock::new(), OnceLock::from);
        Self { backend, process: process::id(), home, may_pause: AtomicBool::new(false) }
    }

    /// Notes the runtime of the caller, and returns it as [`current`] does.
    ///
    /// # Errors
    ///
    /// As for [`current`], and [`Unsupported`](ErrorKind::Unsupported) in a child of the process that connected: it has the
    /// sockets of its parent, but none of the threads that read them.
    pub(crate) fn enter(&self) -> Result<Handle> {
        if self.process != process::id() {
            return Err(Error::new(ErrorKind::Unsupported, self.backend)
                .with_message(
                    "these locks were connected before a fork, and the connection stayed with the parent",
                )
                .with_hint("connect in the child, after the fork"));
        }
        let here = current(self.backend)?;
        let home = self.home.get_or_init(|| here.clone());
        let has_one_thread = |runtime: &Handle| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        if here.id() != home.id() && (has_one_thread(&here) || has_one_thread(home)) {
            self.may_pause.store(true, Ordering::Relaxed);
        }
        Ok(here)
    }

    /// Adds a hint to an error if a paused runtime may be the cause: if there are several runtimes, one of them runs only
    /// inside its `block_on`, and the error has no other explanation.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let is_silence = error.kind() == ErrorKind::Unavailable
            && error.outcome() == Outcome::Unknown
            && matches!(error.code(), "timeout" | "unavailable" | "no_quorum");
        if !is_silence || !self.may_pause.load(Ordering::Relaxed) {
            return error;
        }
        let hint = match error.hint() {
            Some(hint) => format!("{hint}; {SEVERAL_RUNTIMES}"),
            None => SEVERAL_RUNTIMES.to_owned(),
        };
        error.with_hint(hint)
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.backend
    }
}
