//! What is said of locks: names, owners, tokens, errors.

pub mod error;
pub mod name;
pub(crate) mod one_line;
pub mod owner;
pub mod token;
pub(crate) mod token_block;
pub(crate) mod token_reads;
