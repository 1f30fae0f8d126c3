//! Tests of the protocol, without a server.

mod bad_input;
#[cfg(feature = "etcd")]
mod etcd;
mod models;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "s3")]
mod s3;
mod settled;
mod simulation;
#[cfg(feature = "sqlite")]
mod sqlite;
mod virtual_time;
