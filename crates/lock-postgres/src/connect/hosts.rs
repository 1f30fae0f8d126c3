//! Connects to the primary among several servers, at the addresses of their names.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lock_core::{Error, ErrorKind, dial};
use rand::seq::SliceRandom as _;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};

use crate::connect::tls::Connector;
use crate::error::{During, Endpoint, is_no_primary, refuses_handshake};

/// A connection, and its driver.
type Connected = (Client, Connection<Socket, <Connector as MakeTlsConnect<Socket>>::Stream>);

/// Why there is no connection.
pub(crate) enum Failed {
    TimedOut,
    /// The name was not found.
    Lookup(io::Error),
    Driver(tokio_postgres::Error),
}

/// Connects to the first of these servers that answers as wanted, within this time. One is asked when the one before it has failed,
/// or is slow: a primary that was paused keeps nobody from its successor. The same goes for the addresses of its name.
///
/// # Errors
///
/// The most telling failure.
pub(crate) async fn connect(
    mut servers: Vec<Config>,
    tls: Connector,
    limit: Duration,
) -> Result<Connected, Failed> {
    if servers.iter().any(|server| server.get_load_balance_hosts() == LoadBalanceHosts::Random) {
        servers.shuffle(&mut lock_core::random::rng());
    }
    let end = Instant::now() + limit;
    let attempts = servers.into_iter().map(|server| at_each_address(server, Connector::clone(&tls), end));
    let connected = dial::first_success(attempts, limit, Failed::weight).await;
    connected.map_err(|failed| failed.unwrap_or(Failed::TimedOut))
}

/// Connects to a server by its socket, its address, or the addresses of its name.
async fn at_each_address(server: Config, tls: Connector, end: Instant) -> Result<Connected, Failed> {
    let (Some(Host::Tcp(name)), Some(port), []) =
        (server.get_hosts().first(), server.get_ports().first(), server.get_hostaddrs())
    else {
        return ask(server, tls, end).await;
    };
    let at = |address: SocketAddr| {
        let mut server = server.clone();
        // A certificate is checked for the name.
        server.hostaddr(address.ip());
        ask(server, Connector::clone(&tls), end)
    };
    let limit = end.saturating_duration_since(Instant::now());
    dial::connect((name, *port), limit, Failed::weight, at).await
}

async fn ask(server: Config, tls: Connector, end: Instant) -> Result<Connected, Failed> {
    match timeout_at(end, server.connect(tls)).await {
        Ok(connected) => connected.map_err(Failed::Driver),
        Err(_) => Err(Failed::TimedOut),
    }
}

impl Failed {
    /// How much it tells. That one server is down matters least: another one may have taken over.
    fn weight(&self) -> u8 {
        match self {
            Self::Driver(error) if error.as_db_error().is_some() || refuses_handshake(error) => 3,
            Self::Driver(error) if is_unbound(error) => 3,
            Self::Driver(error) if is_no_primary(error) => 2,
            Self::TimedOut | Self::Lookup(_) => 1,
            Self::Driver(_) => 0,
        }
    }

    /// The error for users, after this time.
    pub(crate) fn error(self, endpoint: &Endpoint, limit: Duration) -> Error {
        match self {
            Self::TimedOut => endpoint.no_connection(limit),
            Self::Driver(error) if is_unbound(&error) => endpoint
                .error(ErrorKind::Denied, "the server does not bind the login to its certificate")
                .with_hint("have it ask for scram-sha-256 (pg_hba.conf), or leave channel_binding=require out of the URL")
                .caused_by(error),
            Self::Driver(error) => endpoint.of(During::Connecting, &error),
            Self::Lookup(error) => {
                let what = format!("cannot connect: {error}");
                let is_late = error.kind() == io::ErrorKind::TimedOut;
                let error = endpoint
                    .error(ErrorKind::Unavailable, what)
                    .with_hint("check the host in the URL, and the name servers of this host")
                    .caused_by(error);
                if is_late { error.with_code("timeout") } else { error }
            }
        }
    }
}

/// Whether the server does without the channel binding that is required.
fn is_unbound(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|why| why.to_string().contains("channel binding"))
}

impl From<io::Error> for Failed {
    fn from(lookup: io::Error) -> Self {
        Self::Lookup(lookup)
    }
}
