//! The tests of lock-migrate as its users see it: one program, a module per subject.

mod faults;
mod load;
mod models;
mod operator;
mod rungs;
