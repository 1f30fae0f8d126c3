//! One attempt to acquire a lock: its owner id, its requests and its roll-back.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AcquireRequest, BootInstant, Error, Outcome, Result, Token};

use crate::context::Context;
use crate::error::BACKEND;
use crate::inbox::{Listening, Mailbox};
use crate::lease::PostgresLease;
use crate::rollback::RollbackGuard;
use crate::server::{Ask, Asked, QueueUp, ToInbox};

/// How long a lock that was granted to a waiter is kept until that confirms. After a shorter wait it may rely on the grant at
/// once.
const GRACE: Duration = Duration::from_millis(2_500);

/// What an acquisition asks for.
pub(crate) struct Acquisition<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) name: Arc<str>,
    pub(crate) request: &'a AcquireRequest,
    info: String,
    pub(crate) ttl: Duration,
}

/// An owner id and what is known of it. It is given up after the first request with an unknown outcome.
pub(crate) struct Attempt {
    pub(crate) rollback: RollbackGuard,
    /// When the first request was sent: no grant is older.
    pub(crate) since: Option<BootInstant>,
    pub(crate) mailbox: Option<Mailbox>,
    is_queued: bool,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(context: &'a Arc<Context>, request: &'a AcquireRequest) -> Self {
        let info = serde_json::to_string(&*request.owner).unwrap_or_default();
        Self {
            context,
            name: Context::stored(&request.name),
            request,
            info,
            ttl: context.ttl_of(&request.lease),
        }
    }

    /// A new attempt, with its own owner id.
    pub(crate) fn attempt(&self) -> Attempt {
        let rollback = RollbackGuard::new(&self.context.server, &self.name, self.ttl);
        Attempt { rollback, since: None, mailbox: None, is_queued: false }
    }

    pub(crate) fn grace(&self) -> Duration {
        GRACE.min(self.ttl)
    }
}

impl Attempt {
    /// Asks for the lock, and queues up if it is busy, or confirms a grant.
    pub(crate) async fn ask(&mut self, what: &Acquisition<'_>) -> (BootInstant, Result<Asked>) {
        let Acquisition { context, name, request, info, ttl } = what;
        // Before the roll-back is armed: nothing can be sent without a connection.
        let on = match context.server.connection().await {
            Ok(on) => on,
            Err(error) => return (context.clock.now(), Err(error)),
        };
        let (waits, listener) = match context.inbox.listening() {
            _ if request.wait.is_expired() => (false, None),
            Listening::By(listener) => (true, Some(listener)),
            Listening::Soon | Listening::Not => (true, None),
        };
        if listener.is_some() && self.mailbox.is_none() {
            self.mailbox = Some(context.inbox.register());
        }
        self.is_queued |= waits;
        self.rollback.arm(&on);
        let sent = context.clock.now();
        self.since.get_or_insert(sent);
        let inbox = listener.zip(self.mailbox.as_ref()).map(|(listener, mailbox)| ToInbox {
            id: context.inbox.id(),
            listener,
            key: mailbox.key,
            secret: mailbox.secret,
        });
        let queue = waits.then(|| QueueUp { grace: what.grace(), inbox });
        let ask = Ask { name, owner: self.rollback.owner, mode: request.mode, ttl: *ttl, info, queue };
        // Boxed, to keep the future of an acquisition small.
        let answer = Box::pin(context.server.ask(&on, &ask)).await;
        match answer {
            Ok(Asked::Busy { .. } | Asked::Locked) => self.rollback.answered(self.is_queued),
            Ok(Asked::Granted(_)) | Err(_) => {}
        }
        (sent, answer)
    }

    /// The lease of a lock that was granted to a request sent at this moment.
    pub(crate) fn granted(
        self,
        what: &Acquisition<'_>,
        sent: BootInstant,
        token: Token,
    ) -> Result<PostgresLease> {
        let until = Context::valid_until(sent, what.ttl);
        if what.context.clock.now() >= until {
            return Err(Error::too_late(BACKEND, what.ttl));
        }
        let lease = PostgresLease::begin(
            what.context,
            &what.name,
            what.request,
            (self.rollback.owner, token),
            (sent, until),
        );
        self.rollback.disarm();
        Ok(lease)
    }

    /// Notes that a request failed, and reports whether the attempt can continue.
    pub(crate) fn failed(&mut self, error: &Error) -> bool {
        let is_known = error.outcome() == Outcome::NotApplied;
        if is_known {
            // An entry of an earlier request may remain.
            self.rollback.answered(self.is_queued);
        }
        is_known
    }
}
