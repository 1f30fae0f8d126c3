//! Looks which servers of a store are not gone.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lock_core::url::LockUrl;
use lock_core::{Result, dial};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::rules::refused;

/// The servers that the identity of a store names, and whether it may have others: of those behind sentinels it names none, and of a
/// cluster those by which a client begins.
pub(super) fn named(identity: &str) -> Result<(Vec<String>, bool)> {
    let url = LockUrl::parse(identity)?;
    let has_others = url.scheme.ends_with("+sentinel") || url.scheme.ends_with("+cluster");
    let servers = match url.scheme.contains("unix") {
        true => vec![url.path],
        false => url.hosts.split(',').map(ToOwned::to_owned).collect(),
    };
    Ok((servers, has_others))
}

/// Those of these servers that accept a connection now. A replica, a server that still loads its data, or one that refuses the user,
/// may become a master that grants locks: each of them answers.
pub(super) async fn answering(servers: BTreeSet<String>) -> Result<Vec<String>> {
    for server in servers.iter().filter(|server| !server.starts_with('/')) {
        if host_and_port(server).is_none() {
            return refused(&format!("{server:?} is no address of a server"), "write it as host:port");
        }
    }
    let looks = servers.into_iter().map(|server| async move {
        let accepts = timeout(LIMIT, connect(&server)).await.is_ok_and(|connected| connected.is_ok());
        accepts.then_some(server)
    });
    Ok(stream::iter(looks).buffered(AT_ONCE).filter_map(std::future::ready).collect().await)
}

async fn connect(server: &str) -> io::Result<()> {
    #[cfg(unix)]
    if server.starts_with('/') {
        return tokio::net::UnixStream::connect(server).await.map(drop);
    }
    let at = host_and_port(server).ok_or(io::ErrorKind::InvalidInput)?;
    dial::connect(at, LIMIT, |_: &io::Error| 0, async |address| TcpStream::connect(address).await)
        .await
        .map(drop)
}

fn host_and_port(server: &str) -> Option<(&str, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty() && !host.contains(['/', '@'])).then_some((host, port.parse().ok()?))
}

/// Longer than a lost packet delays a connection.
const LIMIT: Duration = Duration::from_secs(3);
const AT_ONCE: usize = 100;

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
        let answering = async |identity: &str| {
            let (servers, has_others) = named(identity).unwrap();
            (answering(servers.into_iter().collect()).await.unwrap(), has_others)
        };
        let identity = |scheme: &str| format!("{scheme}://{one},{two}/2?prefix=lock:");
        for (scheme, has_others) in [("redlock", false), ("redis+cluster", true), ("rediss+sentinel", true)] {
            assert_eq!(answering(&identity(scheme)).await, (vec![one.clone()], has_others));
        }
        drop(kept);
        assert!(answering(&identity("redis")).await.0.is_empty());
        assert!(answering("redis+unix:///no/such/socket?prefix=lock:").await.0.is_empty());
    }

    #[tokio::test]
    async fn what_is_no_address_is_not_gone() {
        for server in ["h", "h:", ":6379", "h:65536", "redis://h:6379", "u@h:6379", ""] {
            let error = answering(BTreeSet::from([server.to_owned()])).await.unwrap_err();
            assert!(error.to_string().contains("host:port"), "{error}");
        }
    }
}
