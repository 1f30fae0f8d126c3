//! The four-letter words, which a server answers without a session.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lock_core::dial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The answer of this server (`host[:port]`) to a word such as `srvr`.
///
/// # Errors
///
/// If it does not answer in time, or does not allow the word.
pub(crate) async fn ask(server: &str, word: &str) -> io::Result<String> {
    let exchange = async |address: SocketAddr| {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = at_each_address(server, LIMIT, exchange).await?;
    if answer.is_empty() || answer.contains("not in the whitelist") {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{word} is not on the server's whitelist"),
        ));
    }
    Ok(answer)
}

pub(crate) fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let line = answer.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches([':', '=']).trim())
}

/// The version in an answer to `srvr`, such as `3.8.0`.
pub(crate) fn version(srvr: &str) -> Option<&str> {
    field(srvr, "Zookeeper version")?.split(['-', ',', ' ']).next()
}

/// The version of the first of these servers that reports one.
pub(crate) async fn first_version(hosts: &str) -> Option<String> {
    for server in hosts.split(',') {
        if let Ok(answer) = ask(server, "srvr").await {
            return version(&answer).map(str::to_owned);
        }
    }
    None
}

/// What first succeeds at an address of this server (`host[:port]`), within this time.
pub(crate) async fn at_each_address<T: Send, F>(
    server: &str,
    limit: Duration,
    attempt: impl Fn(SocketAddr) -> F + Send + Sync,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>> + Send,
{
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "it is not host:port");
    let server = with_port(server);
    let host = name_and_port(&server).ok_or_else(invalid)?;
    dial::connect(
        host,
        limit,
        |error: &io::Error| u8::from(error.kind() != io::ErrorKind::ConnectionRefused),
        attempt,
    )
    .await
}

/// The name or address of a server, without brackets, and its port, which is 2181 if left out; none if that is not a number.
pub(crate) fn name_and_port(server: &str) -> Option<(&str, u16)> {
    let (name, port) = match server.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port.parse().ok()?),
        _ => (server, 2181),
    };
    Some((name.trim_start_matches('[').trim_end_matches(']'), port))
}

/// The same server with the default port if it has none.
pub(crate) fn with_port(server: &str) -> String {
    let has_port = server.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { server.to_owned() } else { format!("{server}:2181") }
}

const LIMIT: Duration = Duration::from_secs(2);
const LONGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let srvr = "Zookeeper version: 3.4.14-4c25d480e, built on 03/06/2019\nMode: follower\n";
        assert_eq!((version(srvr), field(srvr, "Mode")), (Some("3.4.14"), Some("follower")));
        assert_eq!(version("Zookeeper version: 3.8.0, built on x"), Some("3.8.0"));
        assert_eq!(field("tickTime=200\nmaxClientCnxns=0", "tickTime"), Some("200"));
        assert_eq!(version("This ZooKeeper instance is not currently serving requests"), None);
    }

    #[tokio::test]
    async fn a_word_that_is_not_allowed_is_reported() {
        let options = lock_testkit::ZooKeeper::builder().config("4lw.commands.whitelist", "srvr, conf");
        let server = options.start().await.unwrap();
        let address = server.addr().to_string();
        assert!(version(&ask(&address, "srvr").await.unwrap()).is_some());
        assert_eq!(ask(&address, "mntr").await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        server.kill();
        assert_eq!(ask(&address, "srvr").await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn the_port_is_2181_if_left_out() {
        for (server, full) in
            [("a", "a:2181"), ("a:1", "a:1"), ("[::1]", "[::1]:2181"), ("[::1]:1", "[::1]:1")]
        {
            assert_eq!(with_port(server), full);
            let (name, port) = name_and_port(server).unwrap();
            assert_eq!(name_and_port(full), Some((name, port)));
            assert!(!name.contains(['[', ']']) && full.ends_with(&format!(":{port}")), "{server}");
        }
        assert_eq!(name_and_port("a:b"), None);
    }
}
