//! What every script of a master answers, tells and leaves, state by state: the tables are its specification. Random operations
//! keep the laws that hold of all.
//!
//! What is no matter of the backend lies with the tests of lock-redis, where the notation is described.

mod laws_hold;
mod master;
mod tables;

#[path = "../../../lock-redis/tests/it/outcomes/bench.rs"]
mod bench;
#[path = "../../../lock-redis/tests/it/outcomes/check.rs"]
mod check;
#[path = "../../../lock-redis/tests/it/outcomes/laws.rs"]
mod laws;
#[path = "../../../lock-redis/tests/it/outcomes/op.rs"]
mod op;
#[path = "../../../lock-redis/tests/it/outcomes/random.rs"]
mod random;
#[path = "../../../lock-redis/tests/it/outcomes/state.rs"]
mod state;
