//! What a migration needs of the stores that locks move from and to.
//!
//! A backend that locks can move from is a [`MigrationSource`], one that they can move to a [`MigrationTarget`]. The protocol
//! on top of both is in `lock-migrate`.

mod source;
mod target;
mod tombstone;

pub use source::{MigrationSource, Reading, Removal, Removed, Swapped, Writer};
pub use target::{LockAge, Member, MemberState, MigrationTarget, StoredRecord};
pub use tombstone::Tombstone;
