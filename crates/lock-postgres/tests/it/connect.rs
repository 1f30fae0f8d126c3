//! How a server is reached, and what becomes of a connection.

mod connections;
mod groups;
mod names;
mod pooler;
mod statements;
#[cfg(feature = "tls")]
mod tls;
