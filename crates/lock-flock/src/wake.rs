//! What wakes a waiter: the kernel, where it notifies of closed files, and a timer.

use std::time::Duration;

use tokio::time::sleep;

use crate::file_name::Paths;

/// The first pause after a sign that the lock may be free. A crashed holder's file is closed a moment before it is unlocked.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Where closed files are reported: for what is not reported, such as files that other hosts close.
#[cfg(target_os = "linux")]
const LAST_PAUSE_WATCHED: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Wakes one waiter.
///
/// # Drop
///
/// Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Wake {
    #[cfg(target_os = "linux")]
    watch: Option<watch::Watch>,
    pause: Duration,
}

impl Wake {
    /// From now on no close of these files is missed. They must exist.
    pub(crate) fn new(paths: &Paths) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = paths;
        Self {
            // Without one, as beyond the limit of watches of a user, it polls.
            #[cfg(target_os = "linux")]
            watch: watch::Watch::new(paths).ok(),
            pause: FIRST_PAUSE,
        }
    }

    /// Waits for the next sign, and no longer than a pause that doubles each time.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn wait(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(watch) = &self.watch {
            let notified = tokio::select! {
                () = watch.notified() => true,
                () = sleep(self.pause) => false,
            };
            self.pause = if notified { FIRST_PAUSE } else { LAST_PAUSE_WATCHED.min(2 * self.pause) };
            return;
        }
        sleep(self.pause).await;
        self.pause = LAST_PAUSE.min(2 * self.pause);
    }
}

#[cfg(target_os = "linux")]
mod watch {
    use std::future::pending;
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use crate::file_name::Paths;

    /// Notifies when one of the files of a lock is closed, changed or deleted.
    #[derive(Debug)]
    pub(super) struct Watch(AsyncFd<OwnedFd>);

    impl Watch {
        pub(super) fn new(paths: &Paths) -> io::Result<Self> {
            let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            // A closed file is an unlocked one. A downgrade changes its times.
            let events = WatchFlags::CLOSE_WRITE
                | WatchFlags::CLOSE_NOWRITE
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF;
            for path in [&paths.lock, &paths.turn] {
                add_watch(&inotify, path, events)?;
            }
            #[allow(
                deprecated,
                reason = "its successor is only in the newest tokio, and an owned file is what it asks for"
            )]
            AsyncFd::with_interest(inotify, Interest::READABLE).map(Self)
        }

        /// Waits for an event, and takes all that there are.
        pub(super) async fn notified(&self) {
            let Ok(mut ready) = self.0.readable().await else { return pending().await };
            let mut events = [0; 4096];
            while rustix::io::read(self.0.get_ref(), &mut events).is_ok_and(|read| read > 0) {}
            ready.clear_ready();
        }
    }
}
