//! What is asked of a server: scripts, keys, values, answers, and what is taken back.

pub(crate) mod claim;
pub mod keys;
pub(crate) mod last_tokens;
pub mod lock_answer;
pub mod owner_cache;
pub mod script;
pub mod take_back;
pub mod wire;
