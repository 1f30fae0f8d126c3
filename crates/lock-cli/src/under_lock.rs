//! Programs under a lock: its acquisition, their processes, and their signals.

#[cfg(target_os = "linux")]
pub(crate) mod acquire;
#[cfg(target_os = "linux")]
pub(crate) mod hold;
#[cfg(target_os = "linux")]
pub(crate) mod job_control;
#[cfg(target_os = "linux")]
pub(crate) mod run;
pub(crate) mod session;
#[cfg(target_os = "linux")]
pub(crate) mod signals;
pub(crate) mod threads;
#[cfg(target_os = "linux")]
pub(crate) mod tree;
