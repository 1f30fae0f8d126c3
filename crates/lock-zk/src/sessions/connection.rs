//! One connection of a session, and how the next one is made.
//!
//! Every connection negotiates the session timeout anew, and the server counts by the new one before its answer arrives, if it
//! arrives. So a session keeps one timeout all its life: before it moves to a server, a session that is opened there for
//! this shows what the server grants, and it never moves to a server that grants less.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_core::dial::{Staggered, first_success};
use lock_core::lookup::addresses;
use rand::seq::SliceRandom;
use tokio::time::{Instant, timeout, timeout_at};
use zookeeper_client::{Client, Connector, Error, SessionInfo, SessionState};

use crate::sessions::proof::is_checked;
use crate::wire::driver_task::TaskGate;
use crate::wire::four_letter::name_and_port;

/// A client of the driver that never reconnects. The session is closed once all clones are dropped, unless the connection broke
/// before.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) host: Host,
    pub(crate) client: Client,
    pub(crate) gate: Arc<TaskGate>,
}

impl Connection {
    /// Closes the session, and waits for that or for the loss of the connection.
    pub(crate) async fn close(self) -> SessionState {
        let Self { client, gate, .. } = self;
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

/// `host:port`.
pub(crate) type Host = Arc<str>;

/// Connects to one host.
pub(crate) type Connect =
    dyn Fn(Connector, String) -> BoxFuture<'static, Result<Client, Error>> + Send + Sync;

/// Connects to the servers of one session.
#[derive(Clone)]
pub(crate) struct Dialer {
    hosts: Vec<Host>,
    pub(crate) session_timeout: Duration,
    connect: Arc<Connect>,
    /// Whether `connect` takes an address as well as a name. Then each address of a name is a server of its own.
    pub(crate) takes_addresses: bool,
}

/// What came of one attempt to move a session to each server.
pub(crate) enum Attempt {
    Moved(Connection),
    /// The session has moved to a server that was restarted with a lower limit since it was asked, and grants only this.
    MovedShorter(Connection, Duration),
    /// The servers have ended the session.
    Ended,
    /// Each server grants less than the session timeout: the longest that one grants.
    Shorter(Duration),
    Unreachable,
}

/// What came of one attempt to close a session.
pub(crate) enum Closing {
    Closed,
    Refused,
    /// A server did not answer. It may have heard the attempt, which keeps the session for a whole timeout more.
    Silent,
}

impl Dialer {
    pub(crate) fn new(hosts: &str, session_timeout: Duration, connect: Arc<Connect>) -> Self {
        let hosts = hosts.split(',').map(Host::from).collect();
        Self { hosts, session_timeout, connect, takes_addresses: false }
    }

    /// Opens a session at any server. One may refuse a password that the next one accepts, as while it is changed.
    pub(crate) async fn open(&self) -> Result<Connection, Error> {
        let mut last = Error::NoHosts;
        for host in &self.shuffled() {
            match self.open_at(host).await {
                Err(Error::AuthFailed) => last = Error::AuthFailed,
                Err(Error::NoHosts | Error::Timeout | Error::ConnectionLoss) if last == Error::AuthFailed => {
                }
                Err(error @ (Error::NoHosts | Error::Timeout | Error::ConnectionLoss)) => last = error,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// Opens a session at the first address of this host that answers.
    async fn open_at(&self, host: &Host) -> Result<Connection, Error> {
        let servers = self.servers_at(host).await?;
        let opening = servers.iter().map(|server| self.dial(host, server, None));
        let opened = first_success(opening, self.silence(), |error| match error {
            Error::NoHosts | Error::Timeout | Error::ConnectionLoss => 0,
            Error::AuthFailed => 1,
            _ => 2,
        });
        opened.await.map_err(|failed| failed.unwrap_or(Error::NoHosts))
    }

    /// The servers at a host, as `host:port`: one for each address of its name, in the order of the lookup. Names are looked up anew
    /// each time, as servers may move.
    async fn servers_at(&self, host: &Host) -> Result<Vec<String>, Error> {
        if !self.takes_addresses {
            return Ok(vec![host.to_string()]);
        }
        let (name, port) = name_and_port(host).ok_or(Error::BadArguments(&"invalid address"))?;
        match timeout(self.silence(), addresses(name, port)).await {
            Ok(Ok(found)) => Ok(found.iter().map(ToString::to_string).collect()),
            Ok(Err(error)) => {
                tracing::debug!(%host, %error, "the host is not found");
                Err(Error::NoHosts)
            }
            Err(_) => Err(Error::Timeout),
        }
    }

    /// Tries to move this session to each server; last to the one whose connection broke, which may be silent.
    pub(crate) async fn try_move(&self, session: &SessionInfo, broken: &Host) -> Attempt {
        let mut shorter = Some(Duration::ZERO);
        for host in &self.shuffled_before(broken) {
            let Ok(servers) = self.servers_at(host).await else {
                shorter = None;
                continue;
            };
            let asking = servers.iter().map(async |server| {
                let until = Instant::now() + self.silence() * 2;
                (server, until, self.granted_at(host, server).await)
            });
            let mut asking = Staggered::new(asking, self.silence());
            // The moves are not staggered: each would take the session from the one before it.
            while let Some((server, until, granted)) = asking.next().await {
                // A refused password counts as no answer: it may be about to change.
                let Ok(granted) = granted else {
                    shorter = None;
                    continue;
                };
                if granted < self.session_timeout {
                    shorter = shorter.map(|longest| longest.max(granted));
                    continue;
                }
                shorter = None;
                match self.dial(host, server, Some(session)).await {
                    Ok(connection) => {
                        if let Some(moved) = self.checked(connection, until).await {
                            return moved;
                        }
                    }
                    Err(Error::SessionExpired) => return Attempt::Ended,
                    Err(_) => {}
                }
            }
        }
        shorter.map_or(Attempt::Unreachable, Attempt::Shorter)
    }

    /// Tries to connect at each server, whatever it grants, in order to close this session; last at the one whose connection broke.
    /// From `cautious` on, the first silent server is the last one.
    pub(crate) async fn try_close(&self, session: &SessionInfo, broken: &Host, cautious: Instant) -> Closing {
        let mut closing = Closing::Refused;
        for host in &self.shuffled_before(broken) {
            for server in self.servers_at(host).await.iter().flatten() {
                let began = Instant::now();
                let silent = match self.dial(host, server, Some(session)).await {
                    Ok(connection) => !connection.close().await.is_terminated(),
                    Err(Error::SessionExpired) => false,
                    Err(_) if began.elapsed() < self.silence() / 2 => continue,
                    Err(_) => true,
                };
                if !silent {
                    return Closing::Closed;
                }
                closing = Closing::Silent;
                if Instant::now() >= cautious {
                    return closing;
                }
            }
        }
        closing
    }

    /// The session timeout that a server grants.
    async fn granted_at(&self, host: &Host, server: &str) -> Result<Duration, Error> {
        let opened = timeout(self.silence(), self.dial(host, server, None)).await;
        let fresh = opened.map_err(|_| Error::Timeout)??;
        let granted = fresh.client.session_timeout();
        // Servers limit the connections of one host (`maxClientCnxns`), so this one goes before the next comes. A server that
        // commits slowly needs the time for the move, and closes it meanwhile.
        drop(timeout(self.silence() / 8, fresh.close()).await);
        Ok(granted)
    }

    /// What the move of a session to this connection came to; nothing if the server does not catch up until then.
    ///
    /// The servers count by the granted timeout already, so nothing is awaited before it is known to be long enough.
    async fn checked(&self, connection: Connection, until: Instant) -> Option<Attempt> {
        let granted = connection.client.session_timeout();
        if granted < self.session_timeout {
            return Some(Attempt::MovedShorter(connection, granted));
        }
        if let Ok(Ok(())) = timeout_at(until, connection.catch_up()).await {
            return Some(Attempt::Moved(connection));
        }
        connection.abandon();
        None
    }

    /// Connects to one server of a host.
    ///
    /// The driver returns the connection, and with it the granted timeout, after a second answer: to a ping. If the connection
    /// breaks between the two answers, the granted timeout is lost, as if the first one had not arrived.
    async fn dial(
        &self,
        host: &Host,
        server: &str,
        session: Option<&SessionInfo>,
    ) -> Result<Connection, Error> {
        let mut connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_connection_timeout(self.silence())
            .with_fail_eagerly();
        if let Some(session) = session {
            connector = connector.with_session(session.clone());
        }
        let connecting = (self.connect)(connector, server.to_owned());
        let (client, gate) = TaskGate::guard(connecting).await?;
        Ok(Connection { host: Host::clone(host), client, gate })
    }

    pub(crate) fn silence(&self) -> Duration {
        silence(self.session_timeout)
    }

    fn shuffled_before(&self, last: &Host) -> Vec<Host> {
        let mut hosts = self.shuffled();
        hosts.sort_by_key(|host| host == last);
        hosts
    }

    fn shuffled(&self) -> Vec<Host> {
        let mut hosts = self.hosts.clone();
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
/// One server takes two silences at most if it is slow: one to open a session, and the rest to move this one there. They must
/// fit into the validity of the session and into the time that a caller waits, half of the session timeout. So this is a fifth
/// and not the driver's two fifths; at least a second where that fits, as a busy server may be slow.
fn silence(session_timeout: Duration) -> Duration {
    (session_timeout / 5).max((session_timeout * 2 / 5).min(Duration::from_secs(1)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    pub(crate) const TIMEOUT: Duration = Duration::from_secs(8);

    /// A server that grants one timeout to new sessions and another one to those that move to it, and commits nothing.
    pub(crate) async fn server(to_new: Duration, to_moved: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        drop(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                drop(tokio::spawn(serve(client, to_new, to_moved)));
            }
        }));
        host
    }

    async fn serve(mut client: TcpStream, to_new: Duration, to_moved: Duration) -> std::io::Result<()> {
        let number = |frame: &[u8], at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let connect = frame(&mut client).await?;
        let is_new = connect[16..24] == [0; 8];
        let granted = if is_new { to_new } else { to_moved }.as_millis().try_into().unwrap();
        let mut answer = Vec::new();
        [0, granted, 0, 7, 16].iter().for_each(|field: &i32| answer.extend(field.to_be_bytes()));
        answer.extend([0; 17]);
        loop {
            client.write_i32(answer.len().try_into().unwrap()).await?;
            client.write_all(&answer).await?;
            answer = loop {
                let request = frame(&mut client).await?;
                let (xid, ping, close) = (number(&request, 0), 11, -11);
                if [ping, close].contains(&number(&request, 4)) {
                    break [&xid.to_be_bytes()[..], &[0; 12]].concat();
                }
            };
        }
    }

    async fn frame(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
        let mut frame = vec![0; client.read_i32().await?.try_into().unwrap()];
        client.read_exact(&mut frame).await.map(|_| frame)
    }

    pub(crate) fn dialer(hosts: &str) -> Dialer {
        let connect = |connector: Connector, host: String| async move { connector.connect(&host).await };
        Dialer::new(hosts, TIMEOUT, Arc::new(move |connector, host| Box::pin(connect(connector, host))))
    }

    #[tokio::test]
    async fn a_shorter_timeout_is_known_although_the_server_does_not_catch_up() {
        let lowered = TIMEOUT / 4;
        let dialer = dialer(&server(TIMEOUT, lowered).await);
        let connection = dialer.open().await.unwrap();
        let (session, host) = (connection.client.session(), &connection.host);
        let Attempt::MovedShorter(_moved, granted) = dialer.try_move(session, host).await else {
            panic!("the granted timeout is lost");
        };
        assert_eq!(granted, lowered);
    }

    #[tokio::test]
    async fn a_server_that_does_not_catch_up_does_not_get_the_session() {
        let mut dialer = dialer(&server(TIMEOUT, TIMEOUT).await);
        let connection = dialer.open().await.unwrap();
        dialer.session_timeout = Duration::from_millis(500);
        let attempt = dialer.try_move(connection.client.session(), &connection.host).await;
        assert!(matches!(attempt, Attempt::Unreachable));
    }

    #[test]
    fn the_host_of_the_broken_connection_is_the_last() {
        let dialer = dialer("a:1,b:1,c:1");
        for host in (0..8).flat_map(|_| dialer.shuffled()) {
            let hosts = dialer.shuffled_before(&host);
            assert!(hosts.len() == 3 && hosts.last() == Some(&host));
        }
    }

    #[test]
    fn two_silences_fit_into_half_of_a_timeout_that_is_long_enough() {
        let silences = [1_000, 2_500, 4_000, 5_000, 10_000, 40_000]
            .map(|millis| silence(Duration::from_millis(millis)).as_millis());
        assert_eq!(silences, [400, 1_000, 1_000, 1_000, 2_000, 8_000]);
    }
}
