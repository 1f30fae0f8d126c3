//! What is done to locks beside holding them: inspection, examination, migration.

pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod migration;
