//! The tests of lock-migrate as its users see it: one program, a module per subject.

mod common;
mod contention;
mod faults;
mod kills;
mod load;
mod models;
mod operator;
mod rungs;
mod seal;
mod shadow;
