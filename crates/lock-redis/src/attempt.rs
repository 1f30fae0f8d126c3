//! One attempt to acquire a lock: its owner id, its requests and its rollback.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AcquireRequest, BootInstant, Error, Outcome, OwnerId, Result, Token, Wait};
use redis_link::dispatch::Dispatch;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::message::Secret;
use redis_link::push::{Listener, Mailbox};

use crate::config::RedisWait;
use crate::context::Context;
use crate::error::{BACKEND, changed_nothing};
use crate::lease::RedisLease;
use crate::request::{Ask, Claimed, Entry, Extension, Hold, Moment};
use crate::rollback::RollbackGuard;

/// The shortest grace period: how long a granted lock is kept for a waiter until it confirms.
const SHORTEST_GRACE: Duration = Duration::from_secs(1);

/// What an acquisition asks for.
pub(crate) struct Acquisition<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: &'a AcquireRequest,
    info: Arc<str>,
    ttl: Duration,
}

/// An owner id and what is known of it. It is given up after the first request with an unknown outcome.
pub(crate) struct Attempt {
    pub(crate) rollback: RollbackGuard,
    /// When the first request was sent: no grant is older.
    pub(crate) since: Option<BootInstant>,
    pub(crate) queue_entry: Option<QueueEntry>,
    /// Whether a claim acquired the lock, or may have, and no script has said more since.
    untokened: bool,
}

/// The entry in the wait queue, as every request carries it.
pub(crate) struct QueueEntry {
    text: Arc<str>,
    /// How long a granted lock is kept until this waiter confirms.
    pub(crate) grace: Duration,
    pub(crate) mailbox: Mailbox,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(context: &'a Arc<Context>, request: &'a AcquireRequest) -> Result<Self> {
        let keys = Arc::new(context.keys(&request.name)?);
        let (info, ttl) = (context.owners.of(&request.owner), context.ttl_of(&request.lease));
        Ok(Self { context, keys, request, info, ttl })
    }

    /// With `wait=notify`, listens for the release of the lock, if the channel is live already.
    pub(crate) fn listener(&self) -> Option<Listener> {
        let listens = self.context.wait == RedisWait::Notify && self.request.wait != Wait::Never;
        let push = listens.then(|| self.context.push.get(&self.keys)).flatten();
        push.and_then(|push| push.listen_if_live(&self.keys.channel()))
    }

    /// A new attempt, with its own owner id.
    pub(crate) fn attempt(&self) -> Attempt {
        let rollback = RollbackGuard::new(&self.context.server, &self.keys, self.ttl);
        Attempt { rollback, since: None, queue_entry: None, untokened: false }
    }

    fn ask(&self, owner: OwnerId) -> Ask<'_> {
        let (keys, mode, ttl, info) = (&*self.keys, self.request.mode, self.ttl, &*self.info);
        Ask { keys, owner, mode, ttl, info, entry: None, is_confirmation: false }
    }

    fn entry<'e>(&'e self, owner: OwnerId, secret: &'e Secret, inbox: &'e str) -> Entry<'e> {
        Entry {
            owner,
            secret,
            mode: self.request.mode,
            grace: SHORTEST_GRACE.max(self.context.round_trip() * 4).min(self.ttl),
            ttl: self.ttl,
            token_ttl: self.context.server.token_ttl,
            inbox,
            info: &self.info,
        }
    }
}

impl Attempt {
    /// Asks for the lock, and queues up if it is busy; with `is_confirmation`, confirms a grant. One round trip.
    pub(crate) async fn ask(
        &mut self,
        what: &Acquisition<'_>,
        is_confirmation: bool,
    ) -> (Moment, Result<LockAnswer>) {
        let server = &what.context.server;
        let mut connection = server.client.generation(&what.keys);
        if connection.is_none() {
            // Before the rollback is armed: nothing can be sent without a connection. Boxed, to keep the future of an
            // acquisition small.
            if let Err(error) = Box::pin(server.client.reach(&what.keys)).await {
                return (server.moment(), Err(error));
            }
            connection = server.client.generation(&what.keys);
        }
        let dispatch = self.rollback.arm(connection);
        if self.since.is_none()
            && !is_confirmation
            && connection.is_some_and(|on| what.context.scripts_work(on))
        {
            let sent = server.moment();
            if let Some(answer) = Box::pin(self.claim(what, sent, &dispatch)).await.transpose() {
                return (server.written(sent, &dispatch), answer);
            }
        }
        if what.context.wait == RedisWait::Queue && !what.request.wait.is_expired() {
            self.queue_up(what);
        }
        if let Some(queue_entry) = &self.queue_entry {
            self.rollback.queues(&queue_entry.text, what.context.push.acquisitions());
        }
        let sent = server.moment();
        self.since.get_or_insert(sent.at);
        let entry = self.queue_entry.as_ref().map(|queue_entry| &*queue_entry.text);
        let ask = Ask { entry, is_confirmation, ..what.ask(self.rollback.owner) };
        // Boxed, to keep the future of an acquisition small.
        let answer = Box::pin(server.ask(sent, &ask, &dispatch)).await;
        let sent = server.written(sent, &dispatch);
        self.untokened &= !matches!(answer, Ok(LockAnswer::Busy { .. }));
        match answer {
            Ok(LockAnswer::Busy { .. }) => what.context.busy.note(&what.keys, what.context.clock.now()),
            Ok(LockAnswer::Granted(_)) => {
                connection.into_iter().for_each(|on| what.context.note_scripts_work(on));
            }
            _ => {}
        }
        (sent, answer)
    }

    /// Claims the lock by plain commands, if it is probably free; `None` if the script has to follow.
    async fn claim(
        &mut self,
        what: &Acquisition<'_>,
        sent: Moment,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Option<LockAnswer>> {
        let Acquisition { context, keys, .. } = what;
        if context.busy.has(keys, sent.at) {
            return Ok(None);
        }
        let keeps = !context.kept.has(keys, sent.at);
        if keeps && !context.server.claims_keep() {
            return Ok(None);
        }
        match context.server.claim(&what.ask(self.rollback.owner), keeps, dispatch).await? {
            Claimed::Granted(token) => Ok(Some(LockAnswer::Granted(token))),
            Claimed::Broken => Ok(Some(LockAnswer::Broken)),
            Claimed::NotGranted => Ok(None),
            Claimed::Untokened => {
                self.untokened = true;
                self.rollback.asks_again();
                Ok(None)
            }
            Claimed::OutOfTurn => {
                // As after a broken connection: the lock is taken back, which passes it on, and another owner asks, by the
                // script. A late copy of that release must not find this owner with the lock again.
                context.busy.note(keys, sent.at);
                Ok(Some(LockAnswer::Broken))
            }
        }
    }

    /// Waits until the configured number of replicas have the granted lock; takes it back if they do not.
    pub(crate) async fn replicated(self, what: &Acquisition<'_>) -> Result<Self> {
        let Acquisition { context, keys, request, ttl, .. } = what;
        let lease = Extension {
            keys,
            owner: self.rollback.owner,
            hold: Hold::of(request.mode),
            ttl: *ttl,
            shortens: false,
        };
        match context.server.await_replicas(&lease).await {
            Ok(()) => Ok(self),
            Err(error) => {
                // At once, so that it does not block a retry.
                self.rollback.now().await;
                Err(error)
            }
        }
    }

    /// The lease of a lock that was granted to a request sent at this moment.
    pub(crate) fn granted(self, what: &Acquisition<'_>, sent: Moment, token: Token) -> Result<RedisLease> {
        let Acquisition { context, keys, request, ttl, .. } = what;
        let until = context.server.valid_until(sent, *ttl);
        if context.clock.now() >= until {
            return Err(Error::too_late(BACKEND, *ttl));
        }
        let lease = RedisLease::begin(context, keys, request, (self.rollback.owner, token), (sent.at, until));
        Ok(lease.registered(self.rollback.disarm()))
    }

    /// Notes that a request failed, and reports whether the attempt can continue.
    pub(crate) fn failed(&mut self, error: &Error) -> bool {
        if error.outcome() != Outcome::NotApplied {
            return false;
        }
        if changed_nothing(error) && !self.untokened {
            // A queue entry of an earlier request may remain.
            self.rollback.answered();
        } else {
            self.rollback.refused();
        }
        true
    }

    /// Adds the queue entry to the request, if the inbox is live: the server takes waiters without a listener for dead.
    fn queue_up(&mut self, what: &Acquisition<'_>) {
        let Some(push) = what.context.push.get(&what.keys) else { return };
        let inbox = push.inbox(&what.keys);
        match &mut self.queue_entry {
            // Notifications from here on are new: the answer may not reflect them.
            Some(queue_entry) if queue_entry.mailbox.is_of(&push, &inbox) => queue_entry.mailbox.mark_seen(),
            // Another node of the cluster has the lock now.
            Some(queue_entry) => {
                if let Some(mailbox) = push.mailbox(&inbox, self.rollback.owner) {
                    queue_entry.mailbox = mailbox;
                }
            }
            None => {
                let mailbox = push.mailbox(&inbox, self.rollback.owner);
                self.queue_entry = mailbox.map(|mailbox| {
                    let secret = push.secret(self.rollback.owner);
                    let entry = what.entry(self.rollback.owner, &secret, &inbox);
                    QueueEntry { text: entry.to_string().into(), grace: entry.grace, mailbox }
                });
            }
        }
    }
}
