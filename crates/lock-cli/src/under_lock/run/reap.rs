//! The children that this process has inherited, and that have ended.

use std::convert::Infallible;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use tokio::time::sleep;

use crate::under_lock::tree;

/// Removes them now and then, while no other child is there.
pub(super) async fn now_and_then() -> Infallible {
    loop {
        all_but(None);
        sleep(PAUSE).await;
    }
}

/// Removes all but this one.
pub(super) fn all_but(kept: Option<Pid>) {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    let is_kept = |pid: i32| kept.is_some_and(|kept| kept.as_raw_nonzero().get() == pid);
    loop {
        let ended = waitid(Id::All, look | WaitPidFlag::WNOWAIT);
        match ended.as_ref().map(WaitStatus::pid) {
            Ok(Some(pid)) if !is_kept(pid.as_raw()) => drop(waitid(Id::Pid(pid), look)),
            // The kept one hides others behind it; and one that a real-time signal has ended cannot be told by this function.
            Ok(Some(_)) | Err(Errno::EINVAL) => return one_by_one(is_kept),
            Ok(None) | Err(_) => return,
        }
    }
}

fn one_by_one(is_kept: impl Fn(i32) -> bool) {
    for pid in tree::zombies().into_iter().filter(|pid| !is_kept(pid.as_raw_nonzero().get())) {
        let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

const PAUSE: Duration = Duration::from_secs(1);
