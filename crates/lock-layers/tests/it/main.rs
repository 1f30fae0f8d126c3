//! The tests of lock-layers as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

#[allow(dead_code, reason = "the modules are chosen by features")]
mod common;
#[cfg(feature = "chaos")]
mod contention;
mod virtual_time;
