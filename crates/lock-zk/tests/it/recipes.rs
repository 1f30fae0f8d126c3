//! The recipes on a real server, and what stands on them.

mod ephemeral;
mod fenced;
mod lock;
pub(crate) mod modes;
mod tokens;
