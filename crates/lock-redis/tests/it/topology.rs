//! Several servers: clusters, sentinels and replicas.

mod cluster;
mod replicas;
mod sentinel;
mod slots;
