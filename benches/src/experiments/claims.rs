//! The experiments that measure figures, and what people say about them.

pub(super) mod advisory_locks;
pub(super) mod client_death;
pub(super) mod database;
pub(super) mod enough;
pub(super) mod failover;
pub(super) mod fairness;
pub(super) mod faster;
pub(super) mod forgetful_masters;
pub(super) mod minority;
pub(super) mod moving;
pub(super) mod naive_recipes;
pub(super) mod one_node;
pub(super) mod paused_holder;
pub(super) mod scale;
pub(super) mod waiting_cost;
