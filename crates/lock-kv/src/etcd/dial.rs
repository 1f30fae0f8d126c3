//! How a member is reached: a connection of HTTP/2 that is opened when it is needed, and again when it was lost.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use lock_core::dial;
use lock_core::tls::TlsFiles;
use lock_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use super::NAME;

/// Each wait ends by a reset of its watch. A late event of one that is forgotten counts as a fault of the server, and 1024 of them end the
/// connection.
const MOST_RESET: usize = 10_000;
const DEFAULT_PORT: u16 = 2_379;
/// Servers close connections that are checked more often than every five seconds.
const CHECKED_EVERY: Duration = Duration::from_secs(10);
const CHECK_TAKES: Duration = Duration::from_secs(5);

/// An address of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

/// What bytes go through.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Member {
    /// Parses `host[:port]`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bracketed = text.strip_prefix('[').and_then(|text| text.split_once(']'));
        let (host, port) = match bracketed.or_else(|| text.split_once(':')) {
            Some((host, "")) if bracketed.is_some() => (host, Some(DEFAULT_PORT)),
            Some((host, port)) if bracketed.is_some() => {
                (host, port.strip_prefix(':').and_then(|port| port.parse().ok()))
            }
            Some((host, port)) => (host, port.parse().ok()),
            None => (text, Some(DEFAULT_PORT)),
        };
        let is_host = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
        match port.filter(|_| is_host) {
            Some(port) => Ok(Self { host: host.to_owned(), port }),
            // What is in its place may be a password.
            None => Err(Error::new(ErrorKind::InvalidConfig, NAME)
                .with_message("the URL does not name the members")
                .with_hint("write it as etcd://user:password@h1:2379,h2:2379,h3:2379/prefix")),
        }
    }

    /// The connection, which is opened by the first request, by the runtime of the caller, within this time.
    pub(crate) fn channel(&self, tls: Option<&TlsFiles>, limit: Duration) -> Result<Channel> {
        let uri = |scheme| {
            let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
            let uri = format!("{scheme}://{host}:{}", self.port).parse::<Uri>();
            uri.map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, NAME)
                    .with_message(format!("the host {:?} is none", self.host))
                    .caused_by(error)
            })
        };
        // The scheme is for the server: TLS is ours.
        let endpoint = Endpoint::from(uri("http")?)
            .origin(uri(if tls.is_some() { "https" } else { "http" })?)
            .http2_keep_alive_interval(CHECKED_EVERY)
            .keep_alive_timeout(CHECK_TAKES)
            .http2_max_concurrent_reset_streams(MOST_RESET);
        let (member, tls) = (self.clone(), tls.cloned());
        let connect = move |_| {
            let (member, tls) = (member.clone(), tls.clone());
            async move { member.connect(tls, limit).await.map(TokioIo::new) }
        };
        Ok(endpoint.connect_with_connector_lazy(service_fn(connect)))
    }

    /// With the certificates that the files have now.
    async fn connect(&self, tls: Option<TlsFiles>, limit: Duration) -> io::Result<Box<dyn Stream>> {
        let over = match tls {
            Some(files) => Some(secure::Handshake::new(&self.host, &files).await?),
            None => None,
        };
        let attempt = |address| {
            let over = over.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                match over {
                    Some(handshake) => handshake.over(stream).await,
                    None => Ok::<_, io::Error>(Box::new(stream) as Box<dyn Stream>),
                }
            }
        };
        // A server that answers, but not as it should, tells most.
        let weight = |error: &io::Error| u8::from(error.kind() == io::ErrorKind::InvalidData);
        dial::connect((&self.host, self.port), limit, weight, attempt).await
    }
}

#[cfg(feature = "tls")]
mod secure {
    use std::io;
    use std::sync::Arc;

    use lock_core::tls::TlsFiles;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::Stream;

    /// The handshake of TLS.
    #[derive(Clone)]
    pub(super) struct Handshake(ServerName<'static>, TlsConnector);

    impl Handshake {
        pub(super) async fn new(host: &str, files: &TlsFiles) -> io::Result<Self> {
            let server = ServerName::try_from(host.to_owned());
            let server = server.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let mut config = files.config(true).await.map_err(io::Error::other)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok(Self(server, Arc::new(config).into()))
        }

        pub(super) async fn over(self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
            Ok(Box::new(self.1.connect(self.0, stream).await?))
        }
    }
}

#[cfg(not(feature = "tls"))]
mod secure {
    use std::io;

    use lock_core::tls::TlsFiles;
    use tokio::net::TcpStream;

    use super::Stream;

    /// There is none: the configuration refuses TLS.
    #[derive(Clone)]
    pub(super) struct Handshake;

    #[allow(clippy::unused_async, reason = "there is nothing to read")]
    impl Handshake {
        pub(super) async fn new(_: &str, _: &TlsFiles) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) async fn over(self, _: TcpStream) -> io::Result<Box<dyn Stream>> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_a_host_and_a_port() {
        for (text, host, port) in
            [("h", "h", 2_379), ("h:7", "h", 7), ("[::1]:7", "::1", 7), ("[::1]", "::1", 2_379)]
        {
            assert_eq!(Member::parse(text).unwrap(), Member { host: host.to_owned(), port }, "{text}");
        }
        for text in ["", ":7", "h:", "h:x", "h:70000", "h/a", "h h", "::1", "[[h", "[h", "[::1]7"] {
            assert_eq!(Member::parse(text).unwrap_err().kind(), ErrorKind::InvalidConfig, "{text}");
        }
    }
}
