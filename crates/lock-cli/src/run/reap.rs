//! The children that this process has inherited.

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::process::Pid;

/// Removes the children that have ended, until it comes to this one: then returns true and leaves it.
pub(super) fn ended_before(kept: Pid) -> bool {
    loop {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        let ended = waitid(Id::All, look | WaitPidFlag::WNOWAIT).ok().and_then(|status| status.pid());
        match ended {
            None => return false,
            Some(pid) if pid.as_raw() == kept.as_raw_nonzero().get() => return true,
            Some(pid) => drop(waitid(Id::Pid(pid), look)),
        }
    }
}

/// Removes all children that have ended.
pub(super) fn all() {
    while waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG)
        .is_ok_and(|status| status.pid().is_some())
    {}
}
