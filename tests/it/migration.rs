//! Locks move from one store to another.

mod bad_input;
mod failover;
mod sources;
