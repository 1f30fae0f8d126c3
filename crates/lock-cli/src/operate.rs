//! What operators ask and do.

pub(crate) mod breaking;
pub(crate) mod doctor;
pub(crate) mod findings;
pub(crate) mod holders;
pub(crate) mod install;
pub(crate) mod migrate;
