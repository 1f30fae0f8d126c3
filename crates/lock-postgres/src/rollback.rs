//! Rolls back an acquisition: removes what it may have left on the server.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use lock_core::background::Counted;
use lock_core::{ErrorKind, OwnerId};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::server::{Changed, Connection, Server};

/// How long a roll-back waits for a server that does not answer.
const MAX_OUTAGE: Duration = Duration::from_secs(600);
/// How many roll-backs may wait out an outage; more than these are tried for a shorter time.
const MAX_OVER_AN_OUTAGE: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Rolls back one acquisition when it is dropped: removes its lock and its queue entry.
#[derive(Debug)]
pub(crate) struct RollbackGuard {
    server: Arc<Server>,
    name: Arc<str>,
    pub(crate) owner: OwnerId,
    ttl: Duration,
    /// `None` if there is nothing to remove.
    sent: Option<Sent>,
    /// How many requests may have left something.
    requests: u32,
    runtime: Option<Handle>,
}

/// What is known of the last request.
#[derive(Debug)]
enum Sent {
    /// It was answered: at most an entry in the queue remains.
    Answered,
    /// It was sent on this connection, and not answered. What follows it there is run after it.
    InDoubt(Connection),
    /// The same, and the connection has ended: its place in the pool is given back.
    Lost,
}

impl RollbackGuard {
    /// A guard with a fresh owner id, before its first request.
    pub(crate) fn new(server: &Arc<Server>, name: &Arc<str>, ttl: Duration) -> Self {
        Self {
            server: Arc::clone(server),
            name: Arc::clone(name),
            owner: OwnerId::random(),
            ttl,
            sent: None,
            requests: 0,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Notes that a request is about to be sent on this connection.
    pub(crate) fn arm(&mut self, on: &Connection) {
        self.sent = Some(Sent::InDoubt(on.clone()));
        self.requests += 1;
    }

    /// Notes that the last request was answered, and whether something of this owner may remain.
    pub(crate) fn answered(&mut self, may_remain: bool) {
        self.sent = may_remain.then_some(Sent::Answered);
    }

    /// Ends the guard without a roll-back.
    pub(crate) fn disarm(mut self) {
        self.sent = None;
    }

    /// Rolls back now with one request; if that is not enough, the rest runs in the background.
    pub(crate) async fn now(mut self) {
        let (is_settled, on) = match self.sent.take() {
            None => return,
            Some(Sent::Answered) => (true, None),
            Some(Sent::InDoubt(on)) if on.is_open() => (true, Some(on)),
            // Given back before another one is waited for: there may be no more.
            Some(Sent::InDoubt(_) | Sent::Lost) => (false, None),
        };
        self.sent = Some(match &on {
            Some(on) => Sent::InDoubt(on.clone()),
            None if is_settled => Sent::Answered,
            None => Sent::Lost,
        });
        let on = match on {
            Some(on) => on,
            None => match self.server.connection().await {
                Ok(on) => on,
                Err(_) => return,
            },
        };
        match self.server.release(&on, &self.name, self.owner).await {
            Ok(Changed::Done(())) if self.requests == 1 => self.sent = None,
            Ok(Changed::Done(()) | Changed::NotHeld) if is_settled => self.sent = None,
            _ => {}
        }
    }
}

impl Drop for RollbackGuard {
    fn drop(&mut self) {
        let (Some(sent), Some(runtime)) = (self.sent.take(), self.runtime.take()) else { return };
        let rollback = Rollback {
            server: Arc::clone(&self.server),
            name: Arc::clone(&self.name),
            owner: self.owner,
            ttl: self.ttl,
            is_alone: self.requests == 1,
        };
        // Counted before the task starts, as the locks may be closed first.
        let counted = self.server.cleanup.count();
        drop(runtime.spawn(rollback.run(sent, counted)));
    }
}

struct Rollback {
    server: Arc<Server>,
    name: Arc<str>,
    owner: OwnerId,
    ttl: Duration,
    /// Whether the acquisition sent one request only: what was found once does not come again.
    is_alone: bool,
}

impl Rollback {
    /// On the connection of a request in doubt, one removal is enough. If that connection has ended, the request may still be
    /// in flight: the removal is repeated for the ttl and one command timeout. A request that the server runs even later leaves a
    /// lock that expires. It counts as under way until the server has answered once.
    async fn run(self, sent: Sent, counted: Counted) {
        let (server, lasting) = (&self.server, self.ttl + self.server.command_timeout());
        let mut counted = Some(counted);
        let mut is_settled = matches!(sent, Sent::Answered);
        let mut on = match sent {
            Sent::InDoubt(connection) => Some(connection),
            Sent::Answered | Sent::Lost => None,
        };
        let outage =
            if server.cleanup.under_way() <= MAX_OVER_AN_OUTAGE { MAX_OUTAGE } else { Duration::ZERO };
        let (mut until, mut has_answered) = (server.clock.now() + lasting + outage, false);
        let mut pause = FIRST_PAUSE;
        loop {
            // One that has ended is given back first: there may be no more.
            let open = on.take().filter(|connection| connection.is_open());
            let is_in_order = open.is_some();
            let connection = match open {
                Some(connection) => Ok(connection),
                None => server.connection().await,
            };
            let removed = match &connection {
                Ok(connection) => server.release(connection, &self.name, self.owner).await,
                Err(error) => Err(error.clone()),
            };
            drop(connection);
            let is_answer = match removed {
                Ok(Changed::Done(())) if self.is_alone => return,
                Ok(Changed::Done(()) | Changed::NotHeld) if is_settled || is_in_order => return,
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(error) => error.kind() != ErrorKind::Unavailable,
                Ok(Changed::Locked) => {
                    // Nothing was removed, for as long as another transaction has the row. But what came before it is over.
                    is_settled |= is_in_order;
                    false
                }
                Ok(_) => true,
            };
            if is_answer {
                is_settled |= is_in_order;
                drop(counted.take());
                if !mem::replace(&mut has_answered, true) {
                    until = until.min(server.clock.now() + lasting);
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            if server.clock.now() >= until {
                return;
            }
        }
    }
}
