//! How a server is reached, and what becomes of a connection.

mod connection;
mod names;
mod rotation;
#[cfg(feature = "tls")]
mod tls;
mod urls;
