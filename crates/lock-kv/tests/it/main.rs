//! Tests of the protocol, without a server.

mod bad_input;
mod models;
mod repeats;
mod simulation;
#[cfg(feature = "sqlite")]
mod sqlite;
mod virtual_time;
