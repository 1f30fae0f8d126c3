//! What experiments are made of: how clients contend, wait, die and take turns, and what befalls servers meanwhile.

pub(crate) mod advisory;
pub(crate) mod contention;
pub(crate) mod crowd;
pub(crate) mod death;
pub(crate) mod durable;
pub(crate) mod fight;
pub(crate) mod hand_over;
pub(crate) mod ladder;
pub(crate) mod naive;
pub(crate) mod replica;
pub(crate) mod request_count;
pub(crate) mod side_by_side;
pub(crate) mod task_crowd;
pub(crate) mod teams;
pub(crate) mod trials;
pub(crate) mod trouble;
