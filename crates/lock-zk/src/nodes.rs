//! The nodes of locks: their paths, names, data, watches, and the tokens that their transactions give.

pub(crate) mod acl;
pub(crate) mod held_node;
pub(crate) mod holders_watch;
pub(crate) mod lock_path;
pub(crate) mod node;
pub(crate) mod node_content;
pub(crate) mod node_data;
pub(crate) mod node_name;
pub(crate) mod node_owners;
pub(crate) mod own_node;
pub(crate) mod token;
pub(crate) mod token_base;
pub(crate) mod token_ranges;
pub(crate) mod watched_node;
pub(crate) mod watches;
