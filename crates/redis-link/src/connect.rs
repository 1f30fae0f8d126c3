//! Connections to one server: addresses, which servers there are, TLS, the greeting, and what a client knows of the clock there.

pub mod connection;
pub mod credentials;
pub mod dial;
pub mod greeting;
#[cfg(feature = "tls")]
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod server_clock;
pub(crate) mod stream;
pub mod tls;
pub mod topology;
