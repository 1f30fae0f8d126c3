//! The library as its users see it: one program, a module per subject.

mod bad_input;
mod bad_migrations;
mod blocking;
mod common;
mod examples;
mod failover;
mod fencing;
mod fork;
mod migration_failover;
mod migration_sources;
mod pages;
mod refusals;
mod runtimes;
mod simulation;
mod third_party;
