//! The lock clients of other libraries, as processes that do what a test says.

pub mod program;
pub mod redis;
pub mod zookeeper;
