//! The tests of lock-cli as its users see it: one program, a module per subject.

mod common;
mod holders;
mod migrate;
mod run;
