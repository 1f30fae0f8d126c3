//! The tests of lock-redis as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

mod breaking;
mod bugs;
mod common;
mod connection;
mod crowd;
mod fake_redis;
mod full_memory;
mod gates;
mod ghosts;
mod inspect;
mod logs;
mod model;
mod moved;
mod names;
mod neighbours;
mod observe;
mod outcomes;
mod queue;
mod restricted;
mod rotation;
mod script_text;
mod scripts;
mod setnx;
mod simulation;
mod token_ttl;
mod topologies;
