//! What is done to locks beside holding them: breaking, examination, migration.

pub(crate) mod break_lock;
pub(crate) mod doctor;
pub(crate) mod migration;
pub(crate) mod preflight;
pub(crate) mod tombstone;
