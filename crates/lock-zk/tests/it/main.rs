//! The tests of lock-zk as its users see it: one program, a module per subject.

mod abort;
mod answers;
mod bad_input;
mod bugs;
mod common;
mod crowd;
mod doctor;
mod ephemeral;
mod fake_zookeeper;
mod faults;
mod fenced;
mod ghost;
mod lock;
mod many;
mod migration;
mod model;
mod modes;
mod names;
mod observe;
mod renegotiation;
mod rotation;
mod security;
mod sessions;
mod simulation;
mod tokens;
