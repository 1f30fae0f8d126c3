//! What all locks of a process share: its queue, clocks, validity, runtimes, waits.

pub mod background;
pub mod clock;
pub(crate) mod connection;
pub mod drift;
pub(crate) mod events;
pub(crate) mod expiry;
pub(crate) mod local_queue;
pub(crate) mod patience;
pub mod pending_release;
pub(crate) mod persistence;
pub mod poison;
pub mod random;
pub(crate) mod readers;
pub mod runtime;
pub mod single_flight;
pub mod unpolled;
pub(crate) mod validity;
pub mod waiting;
