//! The tokio runtimes on which locks are used.

use std::cell::Cell;
use std::future::pending;
use std::panic::catch_unwind;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::time::sleep;

use crate::{Error, ErrorKind, Outcome, Result};

const SEVERAL_RUNTIMES: &str = "these locks are used on several tokio runtimes, and a connection does not answer while its runtime \
                                is outside block_on: connect once on each runtime, or use one that keeps running";

/// The runtime of the caller.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) outside a runtime, and in one without timers, where a driver would panic.
pub fn current(backend: &'static str) -> Result<Handle> {
    let here = Handle::try_current().map_err(|error| {
        Error::new(ErrorKind::Unsupported, backend)
            .with_message("there is no tokio runtime")
            .with_hint("call it inside a tokio runtime: #[tokio::main], or Runtime::block_on")
            .caused_by(error)
    })?;
    if !has_timers(&here) {
        return Err(Error::new(ErrorKind::Unsupported, backend)
            .with_message("the tokio runtime has no timers")
            .with_hint("build it with enable_all(), or with enable_io() and enable_time()"));
    }
    Ok(here)
}

/// Whether the runtime of the caller has timers. Tokio tells that by a panic only, which its hook reports once for each thread.
fn has_timers(here: &Handle) -> bool {
    let here = here.id();
    if LAST.get().is_none_or(|(runtime, _)| runtime != here) {
        let has_timers = catch_unwind(|| drop(sleep(Duration::ZERO))).is_ok();
        LAST.set(Some((here, has_timers)));
    }
    LAST.get().is_some_and(|(_, has_timers)| has_timers)
}

thread_local! {
    /// The runtime that was looked at last on this thread, and whether it has timers.
    static LAST: Cell<Option<(Id, bool)>> = const { Cell::new(None) };
}

/// The runtime that drives the connections of a client, on whatever runtime they are opened.
///
/// A connection that is opened again by a task of another runtime would be answered by that runtime from then on: a thread of
/// it that computes would silence the connection for all.
#[derive(Debug, Clone, Default)]
pub struct Home(Arc<OnceLock<Handle>>);

impl Home {
    /// The runtime of the caller; without one, that of the first call of [`driver`](Self::driver).
    #[must_use]
    pub fn here() -> Self {
        Self(Arc::new(Handle::try_current().map_or_else(|_| OnceLock::new(), OnceLock::from)))
    }

    /// The runtime that shall drive a connection which the caller opens. It is the caller's if the home has ended, or may be
    /// paused, as one of a single thread is outside of `block_on`.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    #[must_use]
    pub fn driver(&self) -> Handle {
        let here = Handle::current();
        let home = self.or_here(&here);
        if home.id() == here.id() || has_one_thread(home) || has_ended(home) { here } else { home.clone() }
    }

    fn or_here(&self, here: &Handle) -> &Handle {
        self.0.get_or_init(|| here.clone())
    }
}

fn has_one_thread(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Whether it was shut down: it drops a task at once.
fn has_ended(runtime: &Handle) -> bool {
    let task = runtime.spawn(pending::<()>());
    let has_ended = task.is_finished();
    task.abort();
    has_ended
}

/// The runtimes on which one `Locks` is used.
#[derive(Debug)]
pub(crate) struct Runtimes {
    backend: &'static str,
    /// The process that connected.
    process: u32,
    /// The first one.
    home: Home,
    /// Whether there are several, one of them with a single thread.
    may_pause: AtomicBool,
}

impl Runtimes {
    pub(crate) fn new(backend: &'static str) -> Self {
        Self { backend, process: process::id(), home: Home::here(), may_pause: AtomicBool::new(false) }
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
        let home = self.home.or_here(&here);
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

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn several_threads() -> Runtime {
        Builder::new_multi_thread().worker_threads(2).build().unwrap()
    }

    fn one_thread() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn a_runtime_without_timers_is_refused() {
        let (without, with) = (one_thread(), Builder::new_current_thread().enable_time().build().unwrap());
        for _ in 0..2 {
            let refused = without.block_on(async { current("test").unwrap_err() });
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("enable_time"), "{refused}");
            assert!(with.block_on(async { current("test") }).is_ok());
        }
        assert!(current("test").unwrap_err().to_string().contains("no tokio runtime"));
    }

    #[test]
    fn a_home_that_runs_drives_what_other_runtimes_open() {
        let (home, others) = (several_threads(), [several_threads(), one_thread()]);
        let at = home.block_on(async { Home::here() });
        for other in others {
            assert_eq!(other.block_on(async { at.driver() }).id(), home.handle().id());
        }
    }

    #[test]
    fn a_home_that_may_be_paused_or_has_ended_drives_only_its_own() {
        let (paused, other) = (one_thread(), several_threads());
        let at = paused.block_on(async { Home::here() });
        assert_eq!(other.block_on(async { at.driver() }).id(), other.handle().id());
        assert_eq!(paused.block_on(async { at.driver() }).id(), paused.handle().id());
        let ends = several_threads();
        let at = ends.block_on(async { Home::here() });
        drop(ends);
        assert_eq!(other.block_on(async { at.driver() }).id(), other.handle().id());
    }
}
