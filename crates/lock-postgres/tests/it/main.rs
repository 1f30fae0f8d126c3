//! The PostgreSQL backend on real servers: what is special about it. What all backends promise is in the conformance suite.

mod connect;
mod fence;
mod models;
mod outcomes;
mod servers;
mod site;
mod topology;
mod waiting;
