//! The tests of lock-redlock as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

mod breaking;
mod common;
mod crowd;
mod fleet;
mod full_memory;
mod hand_over;
mod inspect;
mod migration;
mod models;
mod names;
mod neighbours;
mod outcomes;
mod replicas;
mod rights;
mod rotation;
mod scripts;
mod simulation;
mod topologies;
mod virtual_time;
