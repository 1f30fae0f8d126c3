//! Tests of the protocol, without a server.

mod bad_input;
#[cfg(feature = "etcd")]
mod etcd;
mod models;
mod settled;
mod simulation;
#[cfg(feature = "sqlite")]
mod sqlite;
mod virtual_time;
