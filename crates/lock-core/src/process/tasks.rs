//! The tasks of a process: their runtimes, and what they share or leave to others.

pub mod background;
pub mod runtime;
pub mod single_flight;
pub mod unpolled;
