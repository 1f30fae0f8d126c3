//! One connection of a session, and how the next one is made.
//!
//! Every connection negotiates the session timeout anew, and the server counts by the new one before its answer arrives, if it
//! arrives. So a session keeps one timeout all its life: before it moves to a server, a session that is opened there for
//! this shows what the server grants, and it never moves to a server that grants less.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::seq::SliceRandom;
use tokio::time::timeout;
use zookeeper_client::{Client, Connector, Error, SessionInfo, SessionState};

use crate::driver_task::TaskGate;
use crate::proof::is_checked;

/// A client of the driver that never reconnects. The session is closed once all clones are dropped, unless the connection broke
/// before.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) gate: Arc<TaskGate>,
}

impl Connection {
    /// Closes the session, and waits for that or for the loss of the connection.
    async fn close(self) -> SessionState {
        let Self { client, gate } = self;
        drop(client);
        gate.closed().await
    }

    /// Drops the connection, and leaves the session alone.
    fn abandon(self) {
        self.gate.abandon();
    }

    /// Waits until the quorum has committed a request over this connection: its server then has all that the session has seen at
    /// other servers, and the leader is not one that is cut off.
    async fn catch_up(&self) -> Result<(), Error> {
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version("/", -1)?;
        is_checked(writer.commit().await)
    }
}

/// Connects to one host.
pub(crate) type Connect =
    dyn Fn(Connector, String) -> BoxFuture<'static, Result<Client, Error>> + Send + Sync;

/// Connects to the servers of one session.
#[derive(Clone)]
pub(crate) struct Dialer {
    hosts: Vec<String>,
    pub(crate) session_timeout: Duration,
    connect: Arc<Connect>,
}

/// What came of one attempt to move a session to each server.
pub(crate) enum Attempt {
    Moved(Connection),
    /// The session is over.
    Ended(SessionState),
    /// Each server grants less than the session timeout: the longest that one grants.
    Shorter(Duration),
    Unreachable,
}

impl Dialer {
    pub(crate) fn new(hosts: &str, session_timeout: Duration, connect: Arc<Connect>) -> Self {
        Self { hosts: hosts.split(',').map(str::to_owned).collect(), session_timeout, connect }
    }

    /// Opens a session at any server.
    pub(crate) async fn open(&self) -> Result<Connection, Error> {
        let mut last = Error::NoHosts;
        for host in self.shuffled() {
            match self.dial(host, None).await {
                Err(error @ (Error::NoHosts | Error::Timeout | Error::ConnectionLoss)) => last = error,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// Tries to move this session to each server.
    pub(crate) async fn try_move(&self, session: &SessionInfo) -> Attempt {
        let mut shorter = Some(Duration::ZERO);
        for host in self.shuffled() {
            let granted = match self.granted_at(host).await {
                Ok(granted) => granted,
                Err(Error::AuthFailed) => return Attempt::Ended(SessionState::AuthFailed),
                Err(_) => {
                    shorter = None;
                    continue;
                }
            };
            if granted < self.session_timeout {
                shorter = shorter.map(|longest| longest.max(granted));
                continue;
            }
            shorter = None;
            match self.dial_and_catch_up(host, session).await {
                Ok(connection) => return Attempt::Moved(connection),
                Err(Error::SessionExpired) => return Attempt::Ended(SessionState::Expired),
                Err(Error::AuthFailed) => return Attempt::Ended(SessionState::AuthFailed),
                Err(_) => {}
            }
        }
        shorter.map_or(Attempt::Unreachable, Attempt::Shorter)
    }

    /// Tries to connect at each server, whatever it grants, in order to close this session. Returns whether there is nothing left
    /// to close.
    pub(crate) async fn try_close(&self, session: &SessionInfo) -> bool {
        for host in self.shuffled() {
            match self.dial(host, Some(session)).await {
                Ok(connection) => return connection.close().await.is_terminated(),
                Err(Error::SessionExpired) => return true,
                Err(_) => {}
            }
        }
        false
    }

    /// The session timeout that a server grants.
    async fn granted_at(&self, host: &str) -> Result<Duration, Error> {
        let fresh = self.dial(host, None).await?;
        let granted = fresh.client.session_timeout();
        // Servers limit the connections of one host (`maxClientCnxns`), so this one goes before the next comes.
        drop(timeout(silence(self.session_timeout), fresh.close()).await);
        Ok(granted)
    }

    async fn dial_and_catch_up(&self, host: &str, session: &SessionInfo) -> Result<Connection, Error> {
        let connection = self.dial(host, Some(session)).await?;
        match timeout(silence(self.session_timeout), connection.catch_up()).await {
            Ok(Ok(())) => Ok(connection),
            _ => {
                connection.abandon();
                Err(Error::ConnectionLoss)
            }
        }
    }

    async fn dial(&self, host: &str, session: Option<&SessionInfo>) -> Result<Connection, Error> {
        let mut connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_connection_timeout(silence(self.session_timeout))
            .with_fail_eagerly();
        if let Some(session) = session {
            connector = connector.with_session(session.clone());
        }
        let connecting = (self.connect)(connector, host.to_owned());
        let (client, gate) = TaskGate::guard(connecting).await?;
        Ok(Connection { client, gate })
    }

    fn shuffled(&self) -> Vec<&str> {
        let mut hosts: Vec<_> = self.hosts.iter().map(String::as_str).collect();
        hosts.shuffle(&mut lock_core::random::rng());
        hosts
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// How long a server may be silent, and a connection attempt take, before the next server is tried.
///
/// All servers are tried in any order, perhaps the silent one a second time. Two silences must fit into the validity of the
/// session and into the time that a caller waits, half of the session timeout. So this is a fifth and not the driver's two
/// fifths; at least a second where that fits, as a busy server may be slow.
fn silence(session_timeout: Duration) -> Duration {
    (session_timeout / 5).max((session_timeout * 2 / 5).min(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_silences_fit_into_half_of_a_timeout_that_is_long_enough() {
        let silences = [1_000, 2_500, 4_000, 5_000, 10_000, 40_000]
            .map(|millis| silence(Duration::from_millis(millis)).as_millis());
        assert_eq!(silences, [400, 1_000, 1_000, 1_000, 2_000, 8_000]);
    }
}
