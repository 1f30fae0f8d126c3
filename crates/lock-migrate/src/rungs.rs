//! The record of a migration, its rungs, the processes that take part, and what operators do.

pub(crate) mod glob;
pub(crate) mod lasting;
pub(crate) mod member;
pub(crate) mod operator;
pub(crate) mod process;
pub(crate) mod record;
pub(crate) mod rung;
pub(crate) mod rungs_by_name;
pub(crate) mod source_watch;
pub(crate) mod time;
