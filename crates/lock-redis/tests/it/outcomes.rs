//! What every script answers, tells and leaves, state by state: the tables are its specification. Random operations keep the
//! laws that hold of all.
//!
//! Everything runs on a real server. The notation of states and operations is described in `state.rs` and `op.rs`; the tests of
//! lock-redlock have their own tables, and include what both need.

mod bench;
mod check;
mod laws;
mod laws_hold;
mod op;
mod random;
mod record;
mod setnx;
mod setnx_state;
mod single;
mod state;
mod tables;
