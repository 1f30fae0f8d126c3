//! The formats of the key of a lock: their requests, scripts and calls.

pub(crate) mod recipe;
pub mod request;
pub(crate) mod set_nx_px;
pub(crate) mod setnx_timestamp;
