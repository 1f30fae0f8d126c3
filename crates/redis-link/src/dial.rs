//! Opens connections to servers.

use std::fmt;
use std::future::ready;
use std::io;
use std::iter::once;
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_redis::{Pool, PoolError};
use lock_core::runtime::Home;
use lock_core::{Clock, dial};
use redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
    RedisFuture, RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::Connection;

/// How long a connection is idle before the kernel asks whether the other side still has it. Routers that translate addresses, and
/// balancers, forget connections that were idle for minutes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
/// How often the kernel asks again without an answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a server that closes new connections has to say why.
const REASON_TIMEOUT: Duration = Duration::from_millis(250);
/// The reason of protected mode has some 1 000 bytes.
const LONGEST_REASON: u64 = 4096;

/// Opens connections to servers: implement it for tests, and for transports of your own.
///
/// `to` is the server to connect to, with credentials and database: the one in the configuration, the master that the
/// sentinels named, or a node of the cluster. The caller applies the connect timeout, sets the response timeout and
/// loads the scripts.
///
/// # Examples
///
/// A dialer that logs every connection before the driver opens it:
///
/// ```
/// # use redis_link::connection::Connection;
/// # use redis_link::dial::Dial;
/// # use redis_link::redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
/// # use redis_link::redis::{AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, RedisResult};
/// # use std::sync::Arc;
/// use async_trait::async_trait;
///
/// #[derive(Debug)]
/// struct Logged;
///
/// #[async_trait]
/// impl Dial for Logged {
///     async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
///         println!("connecting to {}", to.addr());
///         Ok(Client::open(to.clone())?.get_multiplexed_async_connection().await?.into())
///     }
///
///     async fn pushes(
///         &self,
///         to: &ConnectionInfo,
///         on_push: Arc<dyn AsyncPushSender>,
///     ) -> RedisResult<MultiplexedConnection> {
///         let resp3 = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
///         let config = AsyncConnectionConfig::new().set_push_sender(on_push);
///         Client::open(to.clone().set_redis_settings(resp3))?
///             .get_multiplexed_async_connection_with_config(&config)
///             .await
///     }
///
///     async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
///         Client::open(to.clone())?.get_async_pubsub().await
///     }
/// }
/// ```
#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync + 'static {
    /// Opens a connection for commands. The caller keeps it until it fails.
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection>;

    /// Opens a RESP3 connection that passes every push message to `on_push`, and a
    /// [`Disconnection`](redis::PushKind::Disconnection) when it ends.
    async fn pushes(
        &self,
        to: &ConnectionInfo,
        on_push: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection>;

    /// Opens a RESP2 connection for subscriptions, for servers without RESP3.
    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub>;
}

/// Opens connections over any streams that a function returns: for tests in memory.
///
/// # Examples
///
/// ```
/// # use redis_link::dial::StreamDial;
/// use std::time::Duration;
///
/// // A real test hands the other end of each stream to a server in memory.
/// let connect = || -> std::io::Result<_> { Ok(tokio::io::duplex(64 * 1024).0) };
/// let dial = StreamDial::new(Duration::from_secs(1), connect);
/// # let _ = dial;
/// ```
pub struct StreamDial<C> {
    connect: C,
    command_timeout: Duration,
}

/// A byte stream that a connection can use; implemented for every suitable type.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

impl<C> StreamDial<C> {
    /// Creates a dialer that calls `connect` for each connection, with this timeout for answers.
    pub const fn new(command_timeout: Duration, connect: C) -> Self {
        Self { connect, command_timeout }
    }
}

#[async_trait]
impl<S: Stream, C: Fn() -> io::Result<S> + Send + Sync + 'static> Dial for StreamDial<C> {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        Connection::over((self.connect)()?, to.redis_settings(), self.command_timeout).await
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        on_push: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new()
            .set_push_sender(on_push)
            .set_response_timeout(Some(self.command_timeout));
        let stream = (self.connect)()?;
        let (connection, driver) = MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        drop(tokio::spawn(driver));
        Ok(connection)
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        PubSub::new(to.redis_settings(), (self.connect)()?).await
    }
}

impl<C> fmt::Debug for StreamDial<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDial").finish_non_exhaustive()
    }
}

/// The dialers and their timeouts.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) dialer: Arc<dyn Dial>,
    pub(crate) sentinel_dialer: Arc<dyn Dial>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// The clock of the leases.
    pub(crate) clock: Clock,
    /// The runtime that drives the connections.
    pub(crate) home: Home,
}

/// Opens connections, with TCP_NODELAY and keep-alive; those of a pool, with TLS and for notifications with the driver.
///
/// A name is tried at each of its addresses until one answers the greeting.
pub(crate) struct DriverDial {
    /// The user's pool.
    pub(crate) pool: Option<Pool>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
}

#[async_trait]
impl Dial for DriverDial {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        if let Some(pool) = &self.pool {
            return Ok(taken_from(pool).await?.into());
        }
        match to.addr() {
            ConnectionAddr::Tcp(host, port) => {
                self.at_each_address((host, *port), |address| self.commands_over_tcp(to, address)).await
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let open = |address| self.by_driver(to.clone(), address, self.timeouts());
                self.at_each_address((host, *port), open).await.map(Connection::from)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let opening = timeout(self.connect_timeout, self.commands_over_socket(to, path));
                opening.await.map_err(io::Error::from)?
            }
            _ => {
                let client = Client::open(to.clone())?;
                let opened = client.get_multiplexed_async_connection_with_config(&self.timeouts()).await;
                opened.map(Connection::from)
            }
        }
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        on_push: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let to = to.clone().set_redis_settings(settings);
        let config = self.timeouts().set_push_sender(on_push);
        match to.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                let open = |address| self.by_driver(to.clone(), address, config.clone());
                self.at_each_address((host, *port), open).await
            }
            _ => Client::open(to.clone())?.get_multiplexed_async_connection_with_config(&config).await,
        }
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        match to.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let open = |address| async move {
                    PubSub::new(to.redis_settings(), connect(to, address).await?).await
                };
                self.at_each_address((host, *port), open).await
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                // The driver looks the name up once more, on a thread that keeps the runtime from ending: not before the name
                // servers answer. It tries all addresses at once, and the handshake of TLS counts.
                lock_core::lookup::addresses(host, *port).await?;
                Client::open(with_tcp_settings(to.clone()))?.get_async_pubsub().await
            }
            _ => Client::open(to.clone())?.get_async_pubsub().await,
        }
    }
}

impl DriverDial {
    /// What opens first, the greeting included: one attempt at each address of the host.
    async fn at_each_address<T, F>(
        &self,
        host: (&str, u16),
        open: impl Fn(SocketAddr) -> F + Send + Sync,
    ) -> RedisResult<T>
    where
        T: Send,
        F: Future<Output = RedisResult<T>> + Send,
    {
        dial::connect(host, self.connect_timeout, weight, open).await
    }

    async fn commands_over_tcp(&self, to: &ConnectionInfo, address: SocketAddr) -> RedisResult<Connection> {
        let stream = connect(to, address).await?;
        match Connection::over(stream, to.redis_settings(), self.command_timeout).await {
            Err(error) if error.is_connection_dropped() => {
                Err(reason(TcpStream::connect(address)).await.unwrap_or(error))
            }
            opened => opened,
        }
    }

    #[cfg(unix)]
    async fn commands_over_socket(&self, to: &ConnectionInfo, path: &Path) -> RedisResult<Connection> {
        let connect = || tokio::net::UnixStream::connect(path);
        match Connection::over(connect().await?, to.redis_settings(), self.command_timeout).await {
            Err(error) if error.is_connection_dropped() => Err(reason(connect()).await.unwrap_or(error)),
            opened => opened,
        }
    }

    /// Opens a connection of the driver to this address. A certificate is checked for the name.
    async fn by_driver(
        &self,
        to: ConnectionInfo,
        address: SocketAddr,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let config = config.set_dns_resolver(Resolved(address));
        Client::open(with_tcp_settings(to))?.get_multiplexed_async_connection_with_config(&config).await
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.command_timeout))
    }
}

/// How much the failure at one address tells: an answer most, and that nothing listens least.
fn weight(error: &RedisError) -> u8 {
    match error {
        error if error.is_connection_refusal() => 0,
        error if error.is_io_error() => 1,
        _ => 2,
    }
}

/// The address of a name that was looked up before.
struct Resolved(SocketAddr);

impl AsyncDNSResolver for Resolved {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _host: &'b str,
        _port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        let found: Box<dyn Iterator<Item = SocketAddr> + Send> = Box::new(once(self.0));
        Box::pin(ready(Ok(found)))
    }
}

impl fmt::Debug for DriverDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverDial").field("pool", &self.pool.is_some()).finish_non_exhaustive()
    }
}

/// A connection out of the pool, which no longer counts, pings or shares it.
async fn taken_from(pool: &Pool) -> RedisResult<MultiplexedConnection> {
    let object = pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => error,
        other => (ErrorKind::Client, "the pool gave no connection", other.to_string()).into(),
    })?;
    Ok(deadpool_redis::Connection::take(object))
}

/// Connects to an address of this server, with its settings.
async fn connect(to: &ConnectionInfo, address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    apply(with_tcp_settings(to.clone()).tcp_settings(), &stream)?;
    Ok(stream)
}

/// Why the server closes new connections: one that has too many, or that lets only its own host in, says so before it closes.
/// The driver misses that, as its greeting is on the way by then. So this asks on a connection that sends nothing.
async fn reason(connecting: impl Future<Output = io::Result<impl Stream>>) -> Option<RedisError> {
    let said = async { all_of(connecting.await?).await };
    let said = timeout(REASON_TIMEOUT, said).await.ok()?.ok()?;
    match redis::parse_redis_value(&said).ok()? {
        Value::ServerError(error) => Some(error.into()),
        _ => None,
    }
}

async fn all_of(stream: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    stream.take(LONGEST_REASON).read_to_end(&mut said).await?;
    Ok(said)
}

/// Sets TCP_NODELAY: without it, a second request waits until the server acknowledges the first.
#[must_use]
pub fn with_nodelay(info: ConnectionInfo) -> ConnectionInfo {
    #[cfg(feature = "tls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        crate::tls::install_provider();
    }
    let settings = info.tcp_settings().clone().set_nodelay(true);
    info.set_tcp_settings(settings)
}

/// The same, with TCP_NODELAY, and with keep-alive unless its settings have it.
fn with_tcp_settings(info: ConnectionInfo) -> ConnectionInfo {
    let info = with_nodelay(info);
    let settings = info.tcp_settings().clone();
    if settings.keepalive().is_some() {
        return info;
    }
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    info.set_tcp_settings(settings.set_keepalive(keepalive))
}

/// Applies the settings to a stream that the driver did not open; all but the linger time, which the driver does not show.
fn apply(settings: &TcpSettings, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use lock_testkit::RedisServer;
    use redis::IntoConnectionInfo as _;
    use tokio::net::TcpListener;
    use tokio::runtime::Handle;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    async fn error_of(to: &str) -> RedisError {
        let dial =
            DriverDial { pool: None, connect_timeout: LIMIT, command_timeout: Duration::from_secs(60) };
        let to = to.into_connection_info().unwrap();
        match timeout(100 * LIMIT, dial.commands(&to)).await {
            Ok(dialed) => dialed.map(drop).unwrap_err(),
            Err(_) => panic!("{} was dialed for longer than the connect timeout", to.addr()),
        }
    }

    #[tokio::test]
    async fn a_server_that_accepts_and_says_nothing_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost"] {
            let error = error_of(&format!("redis://{host}:{port}")).await;
            assert!(error.is_timeout(), "{host}: {error}");
        }
        drop(silent);
        let error = error_of(&format!("redis://127.0.0.1:{port}")).await;
        assert!(error.is_connection_refusal(), "{error}");
        let error = error_of("redis://no-such-host.invalid:1").await;
        assert!(error.is_io_error() || error.is_timeout(), "{error}");
    }

    #[tokio::test]
    async fn a_server_with_too_many_clients_is_quoted() {
        let server = RedisServer::builder().unix_socket().config("maxclients", "1").start().await.unwrap();
        let urls = [server.url(), format!("redis+unix://{}", server.socket().display())];
        // One of them may come before the server has noticed that another one went.
        let others = [(); 2].map(|()| TcpStream::connect(server.addr()));
        let others = join_all(others).await;
        for url in &urls {
            let error = error_of(url).await;
            assert_eq!(error.detail(), Some("max number of clients reached"), "{url}: {error}");
        }
        drop(others);
        drop(server);
        let error = error_of(&urls[0]).await;
        assert!(error.is_connection_refusal(), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_closes_without_a_word_has_no_reason() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        tokio::spawn(async move { while server.accept().await.is_ok() {} });
        let error = error_of(&format!("redis://127.0.0.1:{port}")).await;
        assert!(error.is_connection_dropped(), "{error}");
    }

    #[tokio::test]
    async fn a_connection_has_the_tcp_settings_of_the_user_or_keep_alive() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let usual = format!("redis://127.0.0.1:{port}").into_connection_info().unwrap();
        let time = 4 * KEEPALIVE_TIME;
        let settings = TcpSettings::default().set_keepalive(TcpKeepalive::new().with_time(time));
        let own = usual.clone().set_tcp_settings(settings);
        for (info, time) in [(usual, KEEPALIVE_TIME), (own, time)] {
            let stream = connect(&info, server.local_addr().unwrap()).await.unwrap();
            let socket = SockRef::from(&stream);
            assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
            #[cfg(target_os = "linux")]
            assert_eq!(socket.tcp_keepalive_time().unwrap(), time);
        }
    }

    /// It does not wait for the answers that are missing.
    #[tokio::test]
    async fn the_driver_of_a_connection_that_is_given_up_ends_with_it() {
        let server = RedisServer::start().await.unwrap();
        let dial = DriverDial { pool: None, connect_timeout: 100 * LIMIT, command_timeout: LIMIT };
        let mut connection = dial.commands(&server.url().into_connection_info().unwrap()).await.unwrap();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks(), 1);
        server.stop();
        let error = redis::cmd("PING").query_async::<String>(&mut connection).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        drop(connection);
        let ended = async {
            while tasks() > 0 {
                sleep(LIMIT / 10).await;
            }
        };
        timeout(100 * LIMIT, ended).await.expect("the driver ends");
    }
}
