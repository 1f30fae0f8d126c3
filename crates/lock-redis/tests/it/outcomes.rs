//! What every script answers, tells and leaves, state by state: as tables, and as a model that random
//! operations are compared with.
//!
//! Everything runs on a real server. The notation of states and operations is described in `state.rs` and `op.rs`.

mod bench;
mod model;
mod op;
mod random;
mod setnx;
mod setnx_model;
mod state;
mod tables;
