//! What a guard is worth: its term, its token, its release.

pub(super) mod holding;
pub(super) mod lifetime;
pub(super) mod release;
pub(super) mod tokens;
