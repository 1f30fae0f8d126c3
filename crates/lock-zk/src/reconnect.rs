//! Moves a session to another server when its connection breaks, and gives it up when no server grants its whole timeout.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::{Instant, timeout};
use zookeeper_client::{SessionInfo, SessionState};

use crate::connection::{Attempt, Connection, Dialer};
use crate::driver_task::TaskGate;
use crate::link::Link;

/// Keeps a session connected until it ends.
pub(crate) struct Reconnection {
    dialer: Dialer,
    session: SessionInfo,
    link: Arc<Link>,
}

impl Reconnection {
    /// Starts the task that keeps the session of this connection, and returns its link.
    pub(crate) fn start(dialer: Dialer, connection: Connection) -> Arc<Link> {
        let (session, gate) = (connection.client.session().clone(), Arc::clone(&connection.gate));
        let link = Arc::new(Link::new(connection));
        let task = Self { dialer, session, link: Arc::clone(&link) };
        drop(tokio::spawn(task.run(gate)));
        link
    }

    async fn run(self, mut gate: Arc<TaskGate>) {
        loop {
            let state = gate.closed().await;
            if state.is_terminated() {
                return self.link.end(state);
            }
            self.link.down();
            match self.reconnect().await {
                Ok(connection) => {
                    gate = Arc::clone(&connection.gate);
                    self.link.up(connection);
                }
                Err(state) => return self.link.end(state),
            }
        }
    }

    /// The next connection, or how the session ended. The servers have ended it after seven fifths of its timeout.
    async fn reconnect(&self) -> Result<Connection, SessionState> {
        let until = Instant::now() + self.dialer.session_timeout * 7 / 5;
        while Instant::now() < until && !self.link.unused.is_cancelled() {
            match self.dialer.try_move(&self.session).await {
                Attempt::Moved(connection) => return self.check(connection).await,
                Attempt::Ended(state) => return Err(state),
                Attempt::Shorter(granted) => self.give_up(granted).await,
                Attempt::Unreachable => self.pause().await,
            }
        }
        while Instant::now() < until && !self.dialer.try_close(&self.session).await {
            self.pause().await;
        }
        Err(if self.link.unused.is_cancelled() { SessionState::Closed } else { SessionState::Expired })
    }

    /// This connection, unless its server was restarted with a lower limit in the milliseconds since it was asked.
    async fn check(&self, connection: Connection) -> Result<Connection, SessionState> {
        let granted = connection.client.session_timeout();
        if granted >= self.dialer.session_timeout {
            return Ok(connection);
        }
        self.give_up(granted).await;
        Err(SessionState::Expired)
    }

    /// Reports the end of the session, and waits until nobody relies on it any more, so that it may be closed.
    async fn give_up(&self, granted: Duration) {
        tracing::warn!(
            session = %self.session.id(),
            timeout = ?self.dialer.session_timeout,
            ?granted,
            "the ZooKeeper servers grant a shorter session timeout than before, so the session ends and its locks are lost; \
             compare maxSessionTimeout and tickTime of the servers"
        );
        self.link.end(SessionState::Expired);
        self.link.unused.cancelled().await;
    }

    async fn pause(&self) {
        let longest = (self.dialer.session_timeout / 20).min(LONGEST_PAUSE);
        let pause = longest.mul_f64(lock_core::random::rng().random_range(0.5..1.0));
        drop(timeout(pause, self.link.unused.cancelled()).await);
    }
}

/// The runtime shut down, or the session has ended.
impl Drop for Reconnection {
    fn drop(&mut self) {
        self.link.end(SessionState::Closed);
    }
}

/// The longest pause before all servers are tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
