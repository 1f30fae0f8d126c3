//! From a URL to a connected socket: options, addresses, secrets, certificates.

pub mod dial;
pub mod lookup;
pub mod secret;
pub mod timeouts;
pub mod tls;
pub mod url;
