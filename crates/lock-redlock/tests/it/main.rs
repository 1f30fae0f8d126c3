//! The tests of lock-redlock as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

mod common;
mod connect;
mod models;
mod operate;
mod outcomes;
mod scripts;
mod servers;
mod simulation;
mod topology;
mod virtual_time;
mod waiting;
