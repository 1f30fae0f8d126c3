//! The tests of lock-redis as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

mod breaking;
mod bugs;
mod cluster;
mod common;
mod confirmation;
mod connection;
mod crowd;
mod dial;
mod doctor;
mod fake_redis;
mod full_memory;
mod gates;
mod ghosts;
mod hand_over;
mod inspect;
mod logs;
mod moved;
mod names;
mod neighbours;
mod observe;
mod outcomes;
mod pretend;
mod pushes;
mod queue;
mod replicas;
mod restricted;
mod rotation;
mod script_text;
mod scripts;
mod sentinel;
mod setnx;
mod simulation;
mod slots;
#[cfg(feature = "tls")]
mod tls;
mod token_ttl;
mod urls;
