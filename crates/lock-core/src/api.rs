//! What users hold: locks, guards, elections, and the same for code without a runtime.

#[cfg(feature = "blocking")]
pub mod blocking;
pub(crate) mod election;
pub mod guard;
pub(crate) mod guard_view;
pub(crate) mod handle;
pub(crate) mod lock_spec;
pub mod locks;
pub(crate) mod multi;
pub mod mutex;
pub mod options;
pub(crate) mod reentrant;
pub(crate) mod run;
pub(crate) mod run_error;
pub mod rw;
pub mod semaphore;
