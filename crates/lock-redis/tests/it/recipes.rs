//! The recipes on a real server, and what they leave there.

mod scripts;
mod setnx;
mod token_ttl;
