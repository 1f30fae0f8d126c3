//! Sessions with the ensemble: their life, their requests, and until when they are valid.

pub(crate) mod connection;
pub(crate) mod ensemble;
pub(crate) mod link;
pub(crate) mod owned_change;
pub(crate) mod owned_requests;
pub(crate) mod paused_runtime;
pub(crate) mod pool_share;
pub(crate) mod proof;
pub(crate) mod reconnect;
pub(crate) mod renew;
pub(crate) mod session;
pub(crate) mod session_open;
pub(crate) mod session_pool;
pub(crate) mod shared_task;
