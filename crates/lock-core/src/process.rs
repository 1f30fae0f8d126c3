//! What all locks of a process share: its queue, clocks, validity, runtimes, waits.

pub(crate) mod connection;
pub(crate) mod events;
pub(crate) mod local_queue;
pub(crate) mod patience;
pub(crate) mod persistence;
pub mod poison;
pub mod random;
pub(crate) mod readers;
pub(crate) mod tasks;
pub(crate) mod time;
pub mod waiting;
