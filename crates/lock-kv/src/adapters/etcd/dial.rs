//! How a member is reached: a connection of HTTP/2 that is opened when it is needed, and again when it was lost.

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
use crate::adapters::host::Host;

/// Each wait ends by a reset of its watch. A late event of one that is forgotten counts as a fault of the server, and 1024 of them end the
/// connection.
const MOST_RESET: usize = 10_000;
/// Servers close connections that are checked more often than every five seconds.
const CHECKED_EVERY: Duration = Duration::from_secs(10);
const CHECK_TAKES: Duration = Duration::from_secs(5);

/// What bytes go through.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A member.
impl Host {
    /// The connection, which is opened by the first request, by the runtime of the caller, within this time.
    pub(crate) fn channel(&self, tls: Option<&TlsFiles>, limit: Duration) -> Result<Channel> {
        let uri = |scheme| {
            let host = if self.name.contains(':') { format!("[{}]", self.name) } else { self.name.clone() };
            let uri = format!("{scheme}://{host}:{}", self.port).parse::<Uri>();
            uri.map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, NAME)
                    .with_message(format!("the host {:?} is none", self.name))
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
            Some(files) => Some(secure::Handshake::new(&self.name, &files).await?),
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
        dial::connect((&self.name, self.port), limit, weight, attempt).await
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
