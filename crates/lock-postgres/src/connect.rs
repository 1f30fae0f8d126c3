//! Connections to a server: hosts, certificates, the options of libpq.

pub(crate) mod connection;
pub(crate) mod hosts;
pub(crate) mod libpq;
pub(crate) mod link;
pub(crate) mod tls;
pub(crate) mod turns;
