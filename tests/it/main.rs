//! The library as its users see it: one program, a module per subject.

mod bad_input;
mod blocking;
mod common;
mod examples;
mod failover;
mod fencing;
mod fork;
mod migration;
mod pages;
mod refusals;
mod runtimes;
mod simulation;
mod third_party;
