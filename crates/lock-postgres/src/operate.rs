//! What is done to locks beside holding them: inspection, examination, the fence, the sweep.

pub(crate) mod doctor;
pub(crate) mod fence;
pub(crate) mod inspect;
pub(crate) mod sweep;
