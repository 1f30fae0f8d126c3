//! All experiments, in the order of the results. A new one is a file, its line in the room, and a name here.

use super::experiment::Experiment;

macro_rules! experiments {
    ($($room:ident: $($file:ident),*;)*) => {
        pub(crate) const EXPERIMENTS: &[&Experiment] = &[$($(&super::$room::$file::THIS,)*)*];
    };
}

experiments! {
    scenarios: uncontended, contended, tasks, throughput, crash, peers, herd, crowded, held, degraded, migration, command;
    claims: faster, waiting_cost, one_node, fairness, client_death, failover, minority, paused_holder, naive_recipes,
        forgetful_masters, scale, moving, database, advisory_locks, enough;
}
