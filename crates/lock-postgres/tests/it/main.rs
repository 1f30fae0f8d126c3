//! The PostgreSQL backend on real servers: what is special about it. What all backends promise is in the conformance suite.

mod bad_input;
mod connections;
mod crowd;
mod failover;
mod fence;
mod models;
mod names;
mod neighbours;
mod observers;
mod outcomes;
mod pooler;
mod rotation;
mod shared;
mod site;
#[cfg(feature = "tls")]
mod tls;
