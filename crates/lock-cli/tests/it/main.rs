//! The tests of lock-cli as its users see it: one program, a module per subject.

mod common;
mod hold;
mod holders;
mod messages;
mod migrate;
mod postgres;
mod restart;
mod run;
