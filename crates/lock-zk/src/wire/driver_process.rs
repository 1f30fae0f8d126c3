//! Refuses the driver in a process where it cannot work: a child of one that has used it, after a fork.
//!
//! The driver reads and writes by the crate `async-io`, which has one reactor per process: an epoll instance, and a thread that
//! waits for its events, and holds their mutex meanwhile. A child has a copy of that mutex, locked for ever, none of the threads,
//! and the epoll instance of its parent. All of it is private to that crate, so the child would wait for every answer in vain.

use std::process;
use std::sync::OnceLock;

use lock_core::{Error, ErrorKind, Result};

use crate::error::error;

/// The process that used the driver first.
static USED_BY: OnceLock<u32> = OnceLock::new();
pub(crate) const FORKED: &str =
    "a parent of this process used ZooKeeper before a fork, and the thread of the driver stayed there";

/// Notes that this process uses the driver, and reports whether it can.
pub(crate) fn may_use_driver() -> bool {
    may_use(&USED_BY, process::id())
}

fn may_use(used_by: &OnceLock<u32>, process: u32) -> bool {
    *used_by.get_or_init(|| process) == process
}

/// Fails in a process that cannot use the driver, which it would notice by its patience only.
pub(crate) fn check() -> Result<()> {
    if may_use_driver() { Ok(()) } else { Err(forked()) }
}

fn forked() -> Error {
    let hint = "use ZooKeeper in a child only if no parent has used it before the fork, or start a program (exec) in the child";
    error(ErrorKind::Unsupported, FORKED, hint).with_can_pass(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_uses_the_driver_only_if_its_parent_has_not() {
        let (parent, child, grandchild) = (7, 8, 9);
        let used_by = OnceLock::new();
        assert!(may_use(&used_by, child) && may_use(&used_by, child));
        assert!(!may_use(&used_by, grandchild));
        let used_by = OnceLock::from(parent);
        assert!(!may_use(&used_by, child) && may_use(&used_by, parent));
    }
}
