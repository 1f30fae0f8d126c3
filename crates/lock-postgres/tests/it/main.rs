//! The PostgreSQL backend on real servers: what is special about it. What all backends promise is in the conformance suite.

mod bad_input;
mod connections;
mod failover;
mod fence;
mod load;
mod models;
mod outcomes;
mod pooler;
mod runtimes;
mod site;
