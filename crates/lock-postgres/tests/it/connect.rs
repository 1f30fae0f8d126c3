//! How a server is reached, and what becomes of a connection.

mod connections;
mod groups;
mod names;
mod pooler;
mod rotation;
#[cfg(feature = "tls")]
mod tls;
