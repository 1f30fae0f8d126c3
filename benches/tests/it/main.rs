//! The harness as a command: what it prints, writes and exits with.

mod compare;
mod faults;
mod soak;
mod stuck;
