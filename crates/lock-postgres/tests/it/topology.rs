//! Several servers.

mod failover;
