//! What experiments are made of: how clients contend, wait, die and take turns.

pub(crate) mod contention;
pub(crate) mod crowd;
pub(crate) mod death;
pub(crate) mod fight;
pub(crate) mod hand_over;
pub(crate) mod ladder;
pub(crate) mod request_count;
pub(crate) mod side_by_side;
pub(crate) mod task_crowd;
pub(crate) mod teams;
pub(crate) mod trials;
