//! Rolls back an acquisition: removes what it may have left on the server.

use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use redis_link::acquisitions::{Acquisitions, Registration};
use redis_link::dispatch::Dispatch;
use redis_link::keys::Keys;
use redis_link::take_back::{Sent, TakeBack};
use tokio::runtime::Handle;

use crate::server::Server;

/// Rolls back one acquisition when it is dropped: removes its lock and its queue entry.
#[derive(Debug)]
pub(crate) struct RollbackGuard {
    server: Arc<Server>,
    keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    /// The entry that may be in the wait queue.
    entry: Option<Arc<str>>,
    /// Whether the owner sends another request that may acquire the lock, after one that has.
    asks_again: bool,
    /// Begins before the entry is sent.
    registration: Option<Registration>,
    ttl: Duration,
    /// `None` if there is nothing to remove, unless the last request was written.
    sent: Option<Sent>,
    /// The last request, as long as its outcome is unknown.
    last: Option<(Arc<Dispatch>, Sent)>,
    runtime: Option<Handle>,
}

impl RollbackGuard {
    /// A guard with a fresh owner id, before its first request.
    pub(crate) fn new(server: &Arc<Server>, keys: &Arc<Keys>, ttl: Duration) -> Self {
        Self {
            server: Arc::clone(server),
            keys: Arc::clone(keys),
            owner: OwnerId::random(),
            entry: None,
            asks_again: false,
            registration: None,
            ttl,
            sent: None,
            last: None,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Notes that a request is about to be sent, on this connection or a later one. Until it is written, nothing changes.
    pub(crate) fn arm(&mut self, connection: Option<u64>) -> Arc<Dispatch> {
        let dispatch = self.server.client.dispatch();
        self.sent = self.sent();
        self.last = Some((Arc::clone(&dispatch), Sent::InDoubt { connection }));
        dispatch
    }

    /// What may have left something; `None` if nothing did.
    fn sent(&self) -> Option<Sent> {
        let last = self.last.as_ref().filter(|(dispatch, _)| dispatch.written().is_some());
        last.map_or(self.sent, |(_, sent)| Some(*sent))
    }

    /// Notes that the next request may add this entry to the wait queue, and registers the owner for its grant.
    pub(crate) fn queues(&mut self, entry: &Arc<str>, acquisitions: &Arc<Acquisitions>) {
        self.entry = Some(Arc::clone(entry));
        self.registration.get_or_insert_with(|| acquisitions.register(self.owner));
    }

    /// Notes that the owner has the lock, and is about to ask for it again. The removal of what it has says nothing about that request.
    pub(crate) fn asks_again(&mut self) {
        self.asks_again = true;
    }

    /// Notes that the request was answered: at most the queue entry remains.
    pub(crate) fn answered(&mut self) {
        if self.last.take().is_none_or(|(dispatch, _)| dispatch.written().is_some()) {
            self.sent = self.entry.is_some().then_some(Sent::Answered);
        }
    }

    /// Notes that the request was refused, perhaps after a part of it was applied.
    pub(crate) fn refused(&mut self) {
        self.sent = self.sent().map(|_| Sent::Answered);
        self.last = None;
    }

    /// Ends the guard without a rollback, and passes the registration on to the holder.
    pub(crate) fn disarm(mut self) -> Option<Registration> {
        (self.sent, self.last) = (None, None);
        self.registration.take()
    }

    /// Rolls back now with one request; if that is not enough, the rest runs in the background.
    pub(crate) async fn now(mut self) {
        let Some(sent) = self.sent() else { return };
        let released = self.server.release(&self.keys, self.owner, self.entry.as_deref()).await;
        let may_be_more = self.has_asked_again() && is_in_flight(&self.server, &self.keys, sent);
        if matches!(released, Ok(Some(true))) && !may_be_more {
            (self.sent, self.last) = (None, None);
        }
    }

    /// Whether one request may grant the lock after the removal of what another one has left.
    fn has_asked_again(&self) -> bool {
        self.entry.is_some() || self.asks_again
    }
}

impl Drop for RollbackGuard {
    fn drop(&mut self) {
        if let Some((dispatch, _)) = &self.last {
            dispatch.withdraw();
        }
        let (Some(sent), Some(runtime)) = (self.sent(), self.runtime.take()) else { return };
        let (server, keys, owner) = (Arc::clone(&self.server), Arc::clone(&self.keys), self.owner);
        let asked_again = self.has_asked_again();
        let (entry, ttl) = (self.entry.take(), self.ttl);
        let registration = self.registration.take();
        if let Some(registration) = &registration {
            registration.ends(sent);
        }
        // Counted before the task starts, as the locks may be closed first.
        let mut counted = Some(server.client.cleanup().count());
        drop(runtime.spawn(async move {
            let _registration = registration;
            let entry = entry.as_deref();
            let release = || server.release(&keys, owner, entry);
            loop {
                let terms = TakeBack::new(&keys, ttl, sent).over_an_outage(server.client.cleanup());
                let removed = server.client.take_back(terms.counted(counted.take()), release).await;
                if removed != Some(true) || !asked_again || !is_in_flight(&server, &keys, sent) {
                    break;
                }
            }
        }));
    }
}

/// Whether a request may still arrive.
fn is_in_flight(server: &Server, keys: &Keys, sent: Sent) -> bool {
    !sent.is_settled_on(server.client.generation(keys))
}
