//! What was measured, and what it is called. Nothing here starts or measures anything.

pub(crate) mod events;
pub(crate) mod exclusion;
pub(crate) mod failure;
pub(crate) mod figures;
pub(crate) mod growth;
pub(crate) mod history_gaps;
pub(crate) mod latency;
pub(crate) mod median;
pub(crate) mod names;
pub(crate) mod plan;
pub(crate) mod promises;
pub(crate) mod results;
pub(crate) mod timeline;
pub(crate) mod window;
