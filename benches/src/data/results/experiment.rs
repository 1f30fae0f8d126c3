//! What an experiment and its metrics are, so that a reader of the results needs nothing else.

use serde::{Deserialize, Serialize};

/// What an experiment is. Its rows have its name as their scenario.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct ExperimentResult {
    pub(crate) name: String,
    pub(crate) about: String,
    /// Whether clients want the same lock, so that there is a verdict on mutual exclusion.
    pub(crate) has_rivals: bool,
    pub(crate) metrics: Vec<MetricResult>,
}

/// What a metric is called, and what its floor is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct MetricResult {
    pub(crate) name: String,
    pub(crate) title: String,
    /// How to read it, where that is not obvious.
    pub(crate) meaning: String,
    pub(crate) floor_name: String,
    pub(crate) floor_meaning: String,
}
