//! What every function answers, notifies and leaves, state by state: the tables are its specification.
//!
//! Everything runs on a real server, by plain SQL. `state.rs` describes the notation of states, `bench.rs` that of calls.

mod bench;
mod fences;
mod install;
mod races;
mod record;
mod state;
mod tables;
