//! What operators and the doctor ask: who holds, who may write.

pub mod break_lock;
pub(crate) mod examination;
pub mod inspection;
pub(crate) mod servers;
pub(crate) mod writers;
