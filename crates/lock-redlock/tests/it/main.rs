//! The tests of lock-redlock as its users see it: one program, a module per subject.

mod contention;
mod fleet;
mod full_memory;
mod ghosts;
mod hand_over;
mod masks;
mod masters;
mod migration;
mod models;
mod observe;
mod rotation;
mod simulation;
mod topologies;
mod virtual_time;
