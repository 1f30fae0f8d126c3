//! Taking back what an acquisition may have left on the server.

use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use redis_link::acquisitions::{Acquisitions, Registration};
use redis_link::keys::Keys;
use redis_link::take_back::{Sent, TakeBack};
use tokio::runtime::Handle;

use crate::server::Server;

/// One acquisition, which is taken back when this is dropped: the lock, or the place in the queue.
#[derive(Debug)]
pub(crate) struct RollbackGuard {
    server: Arc<Server>,
    keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    /// What may stand in the queue.
    entry: Option<Arc<str>>,
    /// From before it may stand there.
    registration: Option<Registration>,
    ttl: Duration,
    /// `None` when nothing can be left.
    sent: Option<Sent>,
    runtime: Option<Handle>,
}

impl RollbackGuard {
    /// For an acquisition with an identity of its own, of which nothing has been sent yet.
    pub(crate) fn new(server: &Arc<Server>, keys: &Arc<Keys>, ttl: Duration) -> Self {
        Self {
            server: Arc::clone(server),
            keys: Arc::clone(keys),
            owner: OwnerId::random(),
            entry: None,
            registration: None,
            ttl,
            sent: None,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Notes that a request is about to leave.
    pub(crate) fn arm(&mut self) {
        self.sent = Some(Sent::InDoubt { connection: self.server.generation(&self.keys) });
    }

    /// Notes that the request that is about to leave may put this into the queue: what is granted to it there is wanted.
    pub(crate) fn queues(&mut self, entry: &Arc<str>, acquisitions: &Arc<Acquisitions>) {
        self.entry = Some(Arc::clone(entry));
        self.registration.get_or_insert_with(|| acquisitions.register(self.owner));
    }

    /// Notes that the request was answered: nothing is left but a place in the queue.
    pub(crate) fn answered(&mut self) {
        self.sent = self.entry.is_some().then_some(Sent::Answered);
    }

    /// Notes that the request was refused, perhaps when a part of it was done.
    pub(crate) fn refused(&mut self) {
        self.sent = self.sent.map(|_| Sent::Answered);
    }

    /// Gives the acquisition to a holder, which has its registration from now on.
    pub(crate) fn disarm(mut self) -> Option<Registration> {
        self.sent = None;
        self.registration.take()
    }

    /// Takes it back at once, as far as one request can; the rest goes on in the background.
    pub(crate) async fn now(mut self) {
        let released = self.server.release(&self.keys, self.owner, self.entry.as_deref()).await;
        let may_be_more = |sent| may_be_more(&self.server, &self.keys, self.entry.as_deref(), sent);
        if matches!(released, Ok(Some(true))) && !self.sent.is_some_and(may_be_more) {
            self.sent = None;
        }
    }
}

impl Drop for RollbackGuard {
    fn drop(&mut self) {
        let (Some(sent), Some(runtime)) = (self.sent.take(), self.runtime.take()) else { return };
        let (server, keys, owner) = (Arc::clone(&self.server), Arc::clone(&self.keys), self.owner);
        let (entry, ttl) = (self.entry.take(), self.ttl);
        let registration = self.registration.take();
        if let Some(registration) = &registration {
            registration.ends(sent);
        }
        // From now on, as the task may not have begun when the locks are closed.
        let mut counted = Some(server.cleanup().count());
        drop(runtime.spawn(async move {
            let _registration = registration;
            let entry = entry.as_deref();
            let release = || server.release(&keys, owner, entry);
            loop {
                let terms = TakeBack::new(&keys, ttl, sent).over_an_outage(server.cleanup());
                let removed = server.take_back(terms.counted(counted.take()), release).await;
                if removed != Some(true) || !may_be_more(&server, &keys, entry, sent) {
                    break;
                }
            }
        }));
    }
}

/// Whether what was found just now may not be all: who stands in the queue may have got the lock there, while a claim of
/// the same owner is on its way yet.
fn may_be_more(server: &Server, keys: &Keys, entry: Option<&str>, sent: Sent) -> bool {
    entry.is_some() && !sent.is_settled_on(server.generation(keys))
}
