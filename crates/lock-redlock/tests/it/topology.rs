//! Which masters there are: fleets, clusters, sentinels and replicas.

mod fleet;
mod replicas;
mod topologies;
