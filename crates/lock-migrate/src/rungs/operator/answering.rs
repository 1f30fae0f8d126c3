//! Looks which servers of a store are not gone.

use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::url::LockUrl;
use lock_core::{Result, dial};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The servers of this store, as its identity names them, that accept a connection now. A replica, a server that still loads its
/// data, or one that refuses the user, may become a master that grants locks: each of them answers.
pub(super) async fn answering(identity: &str) -> Result<Vec<String>> {
    let url = LockUrl::parse(identity)?;
    let servers: Vec<String> = match url.scheme.contains("unix") {
        true => vec![url.path],
        false => url.hosts.split(',').map(ToOwned::to_owned).collect(),
    };
    let looks = servers.into_iter().map(|server| async move {
        let accepts = timeout(LIMIT, connect(&server)).await.is_ok_and(|connected| connected.is_ok());
        accepts.then_some(server)
    });
    Ok(join_all(looks).await.into_iter().flatten().collect())
}

async fn connect(server: &str) -> io::Result<()> {
    #[cfg(unix)]
    if server.starts_with('/') {
        return tokio::net::UnixStream::connect(server).await.map(drop);
    }
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let port = port.parse().map_err(io::Error::other)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    dial::connect((host, port), LIMIT, |_: &io::Error| 0, async |address| TcpStream::connect(address).await)
        .await
        .map(drop)
}

/// Longer than a lost packet delays a connection.
const LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn servers_that_accept_connections_are_named() {
        let listeners = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let [one, two] = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
        let [kept, closed] = listeners;
        drop(closed);
        let identity = format!("redlock://{one},{two}/2?prefix=lock:");
        assert_eq!(answering(&identity).await.unwrap(), [one]);
        drop(kept);
        assert!(answering(&identity).await.unwrap().is_empty());
        assert!(answering("redis+unix:///no/such/socket?prefix=lock:").await.unwrap().is_empty());
    }
}
