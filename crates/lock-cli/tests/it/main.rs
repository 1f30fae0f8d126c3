//! The tests of lock-cli as its users see it: one program, a module per subject.

mod command;
mod common;
mod hold;
mod holders;
mod loss;
mod messages;
mod migrate;
mod postgres;
mod restart;
mod signals;
mod terminal;
mod users;
