//! The tests of lock-redis as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

mod bugs;
mod common;
mod connect;
mod fake_redis;
mod operate;
mod outcomes;
mod recipes;
mod servers;
mod simulation;
mod topology;
mod waiting;
