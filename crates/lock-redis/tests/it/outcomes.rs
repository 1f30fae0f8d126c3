//! What every script answers, tells and leaves, state by state: the tables are its specification. Random operations keep the
//! laws that hold of all.
//!
//! Everything runs on a real server. The notation of states and operations is described in `state.rs` and `op.rs`.

mod bench;
mod laws;
mod op;
mod random;
mod setnx;
mod setnx_state;
mod state;
mod tables;
