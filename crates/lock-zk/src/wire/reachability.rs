//! Why servers cannot be reached: the driver does not distinguish the causes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wire::four_letter::{at_each_address, with_port};

/// The servers of a list (`host[:port],...`) that no connection can be made to now, or none that lasts, each with the reason.
///
/// For messages while [`ZkConfig::connect`](crate::ZkConfig::connect) goes on trying. It takes half a second at most. A server
/// that accepts connections may still open no session: for want of a majority, say.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// for why in lock_zk::unreachable("localhost:1").await {
///     println!("{why}"); // cannot connect to localhost:1: Connection refused (os error 111)
/// }
/// # }
/// ```
///
/// # Cancel safety
///
/// This function is cancel safe.
pub async fn unreachable(hosts: &str) -> Vec<String> {
    let servers = hosts.split(',').filter(|host| !host.is_empty()).map(with_port);
    let reasons = servers.map(|server| async move {
        let error = at_each_address(&server, LIMIT, stay_connected).await.err()?;
        Some(format!("cannot connect to {server}: {error}"))
    });
    join_all(reasons).await.into_iter().flatten().collect()
}

/// Connects, and stays connected for a moment: a server that has too many connections closes them before it reads a request.
async fn stay_connected(address: SocketAddr) -> io::Result<()> {
    let closed = || Err(io::Error::new(io::ErrorKind::ConnectionAborted, CLOSED_AT_ONCE));
    let mut stream = match TcpStream::connect(address).await {
        Err(error) if was_connected(&error) => return closed(),
        connected => connected?,
    };
    match timeout(MOMENT, stream.read(&mut [0])).await {
        Ok(Ok(0) | Err(_)) => closed(),
        // It waits for a request.
        Err(_) | Ok(Ok(_)) => Ok(()),
    }
}

/// Whether the connection was made, and closed before the attempt to connect noticed that.
fn was_connected(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

const CLOSED_AT_ONCE: &str = "it closes new connections at once; it may have as many as it allows, from this host \
                              (maxClientCnxns) or in all (maxCnxns)";
const LIMIT: Duration = Duration::from_millis(500);
const MOMENT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_servers_that_do_not_accept_are_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listens = listener.local_addr().unwrap();
        let why = unreachable(&format!("{listens},127.0.0.1:1,")).await;
        assert_eq!(why.len(), 1, "{why:?}");
        assert!(why[0].starts_with("cannot connect to 127.0.0.1:1: Connection refused"), "{why:?}");
    }
}
