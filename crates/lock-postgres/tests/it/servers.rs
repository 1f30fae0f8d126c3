//! Servers that refuse something, and their other users.

mod bad_input;
mod neighbours;
pub(crate) mod shared;
