//! What is done to locks beside holding them: inspection, breaking, examination, fenced writes, migration.

pub(crate) mod break_lock;
pub(crate) mod doctor;
pub(crate) mod empty_directories;
pub(crate) mod fenced;
pub(crate) mod fenced_writes;
pub(crate) mod inspect;
pub(crate) mod membership;
pub(crate) mod migration;
pub(crate) mod moved_names;
pub(crate) mod observers;
