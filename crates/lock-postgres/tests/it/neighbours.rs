//! Other roles of the same database: what they may do, and what they cannot.

mod messages;
mod poison;
mod rights;
mod takeover;
