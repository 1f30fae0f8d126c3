//! One identity that asks for a lock: what it sends, what it gets, and what it takes back.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AcquireRequest, BootInstant, Error, Outcome, OwnerId, Result, Token, Wait};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::push::{Listener, Mailbox};

use crate::config::RedisWait;
use crate::context::Context;
use crate::error::{surely_not_begun, too_late};
use crate::lease::RedisLease;
use crate::request::{Ask, Entry, Extension, Hold, Moment};
use crate::rollback::RollbackGuard;

/// A lock that is granted to one who waits is kept for it for this long at least, until it confirms.
const SHORTEST_GRACE: Duration = Duration::from_secs(1);

/// What is asked for, and by whom.
pub(crate) struct Acquisition<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: &'a AcquireRequest,
    info: Arc<str>,
    ttl: Duration,
}

/// One identity on the server. It is given up with the first request whose outcome is unknown.
pub(crate) struct Attempt {
    pub(crate) rollback: RollbackGuard,
    /// When its first request was sent: nothing was granted to it before.
    pub(crate) since: Option<BootInstant>,
    pub(crate) queued: Option<Queued>,
}

/// A place in the queue, or the wish for one.
pub(crate) struct Queued {
    entry: Arc<str>,
    /// How long a lock is kept for us until we confirm.
    pub(crate) grace: Duration,
    pub(crate) mailbox: Mailbox,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(context: &'a Arc<Context>, keys: Arc<Keys>, request: &'a AcquireRequest) -> Self {
        let (info, ttl) = (context.owners.of(&request.owner), context.ttl_of(&request.lease));
        Self { context, keys, request, info, ttl }
    }

    /// Hears that the lock becomes free, of one who waits in no queue, if there is a connection for that.
    pub(crate) fn listener(&self) -> Option<Listener> {
        let listens = self.context.wait == RedisWait::Notify && self.request.wait != Wait::Never;
        let push = listens.then(|| self.context.push.get(&self.keys)).flatten();
        push.and_then(|push| push.listen_if_live(self.keys.channel()))
    }

    /// A new identity, of which nothing has been sent yet.
    pub(crate) fn attempt(&self) -> Attempt {
        let rollback = RollbackGuard::new(&self.context.server, &self.keys, self.ttl);
        Attempt { rollback, since: None, queued: None }
    }

    fn entry<'e>(&'e self, owner: OwnerId, inbox: &'e str) -> Entry<'e> {
        Entry {
            owner,
            mode: self.request.mode,
            grace: SHORTEST_GRACE.max(self.context.round_trip() * 4).min(self.ttl),
            ttl: self.ttl,
            inbox,
            info: &self.info,
        }
    }
}

impl Attempt {
    /// Asks for the lock, and for a place in the queue if it is busy; or confirms what it `is_confirmation` that it has. One
    /// round trip.
    pub(crate) async fn ask(
        &mut self,
        what: &Acquisition<'_>,
        is_confirmation: bool,
    ) -> (Moment, Result<LockAnswer>) {
        let server = &what.context.server;
        if server.generation(&what.keys).is_none() {
            // Nothing is to be undone before there is a connection. Boxed, as what is rare here would make each
            // acquisition large.
            if let Err(error) = Box::pin(server.reach(&what.keys)).await {
                return (server.moment(), Err(error));
            }
        }
        self.rollback.arm();
        if what.context.wait == RedisWait::Queue && !what.request.wait.is_expired() {
            self.queue_up(what);
        }
        if let Some(queued) = &self.queued {
            self.rollback.queues(&queued.entry, what.context.push.acquisitions());
        }
        let sent = server.moment();
        self.since.get_or_insert(sent.at);
        let ask = Ask {
            keys: &what.keys,
            owner: self.rollback.owner,
            mode: what.request.mode,
            ttl: what.ttl,
            info: &what.info,
            entry: self.queued.as_ref().map(|queued| &*queued.entry),
            is_confirmation,
        };
        (sent, server.ask(sent, &ask).await)
    }

    /// Waits until the replicas that are asked for have the lock that was granted. It is taken back when they do not.
    pub(crate) async fn replicated(self, what: &Acquisition<'_>) -> Result<Self> {
        let Acquisition { context, keys, request, ttl, .. } = what;
        let lease = Extension { keys, owner: self.rollback.owner, hold: Hold::of(request.mode), ttl: *ttl };
        match context.server.await_replicas(&lease).await {
            Ok(()) => Ok(self),
            Err(error) => {
                // At once, so that who asks again does not meet it.
                self.rollback.now().await;
                Err(error)
            }
        }
    }

    /// The lock that was granted to a request sent at this moment.
    pub(crate) fn granted(self, what: &Acquisition<'_>, sent: Moment, token: Token) -> Result<RedisLease> {
        let Acquisition { context, keys, request, ttl, .. } = what;
        let until = context.server.valid_until(sent, *ttl);
        if context.clock.now() >= until {
            return Err(too_late(*ttl));
        }
        let lease = RedisLease::begin(context, keys, request, (self.rollback.owner, token), (sent.at, until));
        Ok(lease.registered(self.rollback.disarm()))
    }

    /// Notes that a request failed, and says whether the attempt can go on.
    pub(crate) fn failed(&mut self, error: &Error) -> bool {
        if error.outcome() != Outcome::NotApplied {
            return false;
        }
        if surely_not_begun(error) {
            // With the place in the queue, if there is one.
            self.rollback.answered();
        } else {
            self.rollback.refused();
        }
        true
    }

    /// Has the request put us into the queue, if we hear what is told to us there: whoever does not is
    /// taken for dead.
    fn queue_up(&mut self, what: &Acquisition<'_>) {
        let Some(push) = what.context.push.get(&what.keys) else { return };
        let inbox = push.inbox(&what.keys);
        match &mut self.queued {
            // What is told from here on is news: the answer may not know of it yet.
            Some(queued) if queued.mailbox.is_of(&push, &inbox) => queued.mailbox.mark_seen(),
            // Another node of the cluster has the lock now.
            Some(queued) => {
                if let Some(mailbox) = push.mailbox(&inbox, self.rollback.owner) {
                    queued.mailbox = mailbox;
                }
            }
            None => {
                let mailbox = push.mailbox(&inbox, self.rollback.owner);
                self.queued = mailbox.map(|mailbox| {
                    let entry = what.entry(self.rollback.owner, &inbox);
                    Queued { entry: entry.to_string().into(), grace: entry.grace, mailbox }
                });
            }
        }
    }
}
