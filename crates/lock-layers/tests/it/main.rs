//! The tests of lock-layers as its users see it: one program, a module per subject.

#![allow(unreachable_pub, reason = "a test program is no library")]

#[cfg(feature = "chaos")]
mod chaos;
#[allow(dead_code, reason = "the modules are chosen by features")]
mod common;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "metrics")]
mod operations;
#[cfg(feature = "prefix")]
mod prefix;
#[cfg(feature = "tracing")]
mod tracing;
