//! Takes back the node of an acquisition that nobody polls any more, or whose connection is closed.
//!
//! A node keeps other clients out whether its acquisition goes on or not. A future that is kept and not polled, in a `select!`
//! loop for instance, would hold them up until the end of the session. So a task of each session looks at the acquisitions:
//! one that was woken and has not been polled for a second since is rolled back. Once it is polled again, it starts over.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::background::Background;
use tokio::time::timeout;

use crate::error::Stop;
use crate::nodes::own_node::OwnNode;
use crate::recipes::acquisitions::{Acquisitions, Entry};
use crate::sessions::session::Session;

/// Checks the acquisitions of a session until its end.
pub(crate) fn start(session: &Arc<Session>) {
    let (checked, ended) = (Arc::downgrade(session), session.ended.clone());
    drop(session.runtime.spawn(async move {
        while timeout(CHECK_INTERVAL, ended.cancelled()).await.is_err() {
            let Some(session) = checked.upgrade() else { return };
            session.acquisitions.check(&session);
        }
    }));
}

/// The result of acquiring; [`Stop::StartOver`] if it was rolled back meanwhile, as nobody polled it or its connection was closed.
pub(crate) async fn unless_taken_back<T>(
    own: &OwnNode,
    acquiring: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    let (entry, mut acquiring) = (Entry::new(&own.session.acquisitions, &own.rollback), pin!(acquiring));
    poll_fn(|context| entry.acquisition.poll(acquiring.as_mut(), context)).await
}

impl Acquisitions {
    fn check(&self, session: &Arc<Session>) {
        for acquisition in self.all().iter().filter(|acquisition| acquisition.is_to_be_taken_back()) {
            let rollback = &acquisition.rollback;
            tracing::debug!(path = rollback.path(), "an acquisition is rolled back, as nobody polls it");
            drop(rollback.begin(session));
        }
    }

    /// Takes back those of the connection that has this clean-up, as it is closed, whether they are polled or not.
    pub(crate) fn close(&self, session: &Arc<Session>, cleanup: &Background) {
        for acquisition in self.all().iter().filter(|acquisition| acquisition.rollback.is_of(cleanup)) {
            if acquisition.is_closed_unpolled() {
                drop(acquisition.rollback.begin(session));
            }
            acquisition.caller.wake();
        }
    }
}

/// How often the acquisitions are checked: one that is polled too late is taken back after one to two of these.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
