//! What is made of locks, and the names and options that they are given.

pub(super) mod election;
pub(super) mod multi;
pub(super) mod names;
pub(super) mod options;
pub(super) mod reentrant;
pub(super) mod revocation;
