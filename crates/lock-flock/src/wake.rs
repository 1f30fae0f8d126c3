//! What wakes a waiter: the kernel, where it notifies of closed files, and a timer.

use std::time::Duration;

use tokio::time::sleep;

use crate::file_name::Paths;
use crate::watches::{Watch, Watches};

/// The first pause after a sign that the lock may be free. A crashed holder's file is closed a moment before it is unlocked.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Where closed files are reported: for what is not reported, such as files that other hosts close.
const LAST_PAUSE_WATCHED: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Wakes one waiter.
///
/// # Drop
///
/// Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Wake {
    watch: Option<Watch>,
    pause: Duration,
}

impl Wake {
    /// From now on no close of these files is missed. They must exist.
    pub(crate) fn new(watches: &Watches, paths: &Paths) -> Self {
        // Without a watch, as beyond the limits of a user, it polls.
        Self { watch: watches.watch(paths).ok(), pause: FIRST_PAUSE }
    }

    /// Waits for the next sign, and no longer than a pause that doubles each time.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn wait(&mut self) {
        let Some(watch) = &self.watch else {
            sleep(self.pause).await;
            self.pause = LAST_PAUSE.min(2 * self.pause);
            return;
        };
        let notified = tokio::select! {
            () = watch.notified() => true,
            () = sleep(self.pause) => false,
        };
        self.pause = if notified { FIRST_PAUSE } else { LAST_PAUSE_WATCHED.min(2 * self.pause) };
    }
}
