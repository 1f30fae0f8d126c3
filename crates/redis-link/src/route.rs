//! Which server a request goes to, and how it is written beside others.

pub mod client;
pub(crate) mod cluster;
pub mod commands;
pub mod dispatch;
pub(crate) mod multiplexer;
pub(crate) mod reply;
pub mod scan;
pub(crate) mod sentinel;
pub(crate) mod slot;
pub(crate) mod unwritten;
