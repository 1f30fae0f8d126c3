//! All experiments, in the order of the results. A new one is a file, and a line here.

use super::experiment::Experiment;

macro_rules! experiments {
    ($($file:ident),* $(,)?) => {
        $(use super::$file;)*

        pub(crate) const EXPERIMENTS: &[&Experiment] = &[$(&$file::THIS),*];
    };
}

experiments![
    uncontended,
    contended,
    tasks,
    throughput,
    crash,
    peers,
    herd,
    crowded,
    held,
    degraded,
    migration,
    command,
    faster,
    waiting_cost,
    one_node,
    fairness,
    client_death,
    failover,
    minority,
    paused_holder,
    naive_recipes,
    forgetful_masters,
    scale,
    moving,
    database,
    advisory_locks,
    enough,
];
