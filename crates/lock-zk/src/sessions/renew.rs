//! Renews a session by heartbeats, and ends it when its validity has passed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lock_core::{BootInstant, Clock, LossReason, Validity};
use tokio_util::sync::CancellationToken;
use zookeeper_client::SessionState;

use crate::error::Fault;
use crate::sessions::ensemble::{SessionClient, States};
use crate::sessions::proof::pass_quorum;
use crate::sessions::session::Session;

/// Starts the renewal task of a session on its runtime.
pub(crate) fn start(session: &Arc<Session>) {
    let Ok(states) = session.states() else { return };
    let renewal = Renewal {
        session: Arc::downgrade(session),
        states,
        end: session.ended.clone(),
        validity: session.validity.clone(),
        clock: session.clock.clone(),
        interval: session.timeout / 6,
    };
    drop(session.runtime.spawn(renewal.run()));
}

struct Renewal {
    session: Weak<Session>,
    states: Box<dyn States>,
    end: CancellationToken,
    validity: Validity,
    clock: Clock,
    interval: Duration,
}

/// The runtime shut down if the task is dropped before its end, and with it the driver's task and the session.
impl Drop for Renewal {
    fn drop(&mut self) {
        self.with_session(|session| session.end(LossReason::SessionEnded));
    }
}

impl Renewal {
    async fn run(mut self) {
        let mut heartbeat: Option<BoxFuture<'static, ()>> = None;
        let mut not_before = BootInstant::from_boot(Duration::ZERO);
        loop {
            let Some(session) = self.session.upgrade() else { return };
            let due = session.next_heartbeat().max(not_before);
            drop(session);
            tokio::select! {
                biased;
                () = self.end.cancelled() => return,
                state = self.states.changed() => {
                    if state.is_terminated() {
                        tracing::debug!(%state, "the ZooKeeper session ended; its locks are lost");
                        self.with_session(|session| session.end(LossReason::SessionEnded));
                        return;
                    }
                    // A short loss of the connection may show up as one change.
                    self.with_session(|session| session.cell.suspect());
                    heartbeat = (state == SessionState::SyncConnected).then(|| self.heartbeat());
                }
                reason = self.validity.lost() => {
                    tracing::debug!(%reason, "the ZooKeeper session is not valid any more; its locks are lost");
                    self.with_session(|session| session.end(reason));
                    return;
                }
                () = async { if let Some(beat) = &mut heartbeat { beat.await } }, if heartbeat.is_some() => {
                    heartbeat = None;
                    // A failed heartbeat must not be repeated at once.
                    not_before = self.clock.now() + self.interval / 4;
                }
                () = self.clock.sleep_until(due), if heartbeat.is_none() => {
                    // The answer to another request may have renewed the session by now.
                    let due = self.session.upgrade().map(|session| session.next_heartbeat());
                    if due.is_some_and(|due| due <= self.clock.now()) {
                        heartbeat = Some(self.heartbeat());
                    }
                }
            }
        }
    }

    fn with_session(&self, act: impl FnOnce(&Session)) {
        if let Some(session) = self.session.upgrade() {
            act(&session);
        }
    }

    /// One heartbeat. It does not keep a session alive that has no other users.
    fn heartbeat(&self) -> BoxFuture<'static, ()> {
        let (session, end, sent) = (Weak::clone(&self.session), self.end.clone(), self.clock.now());
        async move {
            let beat = |client: Arc<dyn SessionClient>| async move { pass_quorum(&*client, "/").await };
            let Some(Ok(request)) = session.upgrade().map(|session| session.request(beat)) else { return };
            let answer = tokio::select! {
                biased;
                () = end.cancelled() => return,
                answer = request => answer,
            };
            let Some(answer) = answer.map(|answer| answer.map_err(Fault::of)) else { return };
            let Some(session) = session.upgrade() else { return };
            match answer {
                Ok(()) => drop(session.confirm(sent)),
                Err(Fault::SessionEnded) => session.end(LossReason::SessionEnded),
                _ => session.cell.suspect(),
            }
        }
        .boxed()
    }
}
