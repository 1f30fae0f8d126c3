//! Connections to a server: hosts, certificates, the options of libpq.

pub(crate) mod connection;
pub(crate) mod hosts;
pub(crate) mod libpq;
pub(crate) mod link;
mod statements;
pub(crate) mod tls;
pub(crate) mod turns;
