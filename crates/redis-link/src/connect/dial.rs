//! Opens connections to servers.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_redis::{Pool, PoolError};
use lock_core::runtime::Home;
use lock_core::{Clock, dial};
use redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
    RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::connect::connection::Connection;
#[cfg(feature = "tls")]
use crate::connect::handshake::Handshake;
pub use crate::connect::stream::Stream;
use crate::connect::tls::Tls;

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
        let config = AsyncConnectionConfig::new()
            .set_push_sender(on_push)
            .set_response_timeout(Some(self.command_timeout));
        driver_over((self.connect)()?, &with_resp3(to), config).await
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

/// Opens streams with TCP_NODELAY and keep-alive, and connections over them. With a pool, commands go over a connection of the pool.
///
/// A name is tried at each of its addresses until one answers the greeting.
pub(crate) struct OwnDial {
    /// The user's pool.
    pub(crate) pool: Option<Pool>,
    /// The files of TLS, unless a server has certificates of its own.
    pub(crate) tls: Tls,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
}

#[async_trait]
impl Dial for OwnDial {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        if let Some(pool) = &self.pool {
            return Ok(taken_from(pool).await?.into());
        }
        let open = |stream| Connection::over(stream, to.redis_settings(), self.command_timeout);
        match self.over_stream(to, open).await? {
            Some(opened) => Ok(opened),
            None => by_driver(to, &self.timeouts()).await.map(Connection::from),
        }
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        on_push: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let to = &with_resp3(to);
        let config = self.timeouts().set_push_sender(on_push);
        match self.over_stream(to, |stream| driver_over(stream, to, config.clone())).await? {
            Some(opened) => Ok(opened),
            None => by_driver(to, &config).await,
        }
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        match self.over_stream(to, |stream| PubSub::new(to.redis_settings(), stream)).await? {
            Some(opened) => Ok(opened),
            None => Client::open(with_tcp_settings(to.clone()))?.get_async_pubsub().await,
        }
    }
}

impl OwnDial {
    /// Opens a stream to the server, and passes it to `open`. `None` for a server with certificates that only the driver can read.
    async fn over_stream<T: Send, F: Future<Output = RedisResult<T>> + Send>(
        &self,
        to: &ConnectionInfo,
        open: impl Fn(Box<dyn Stream>) -> F + Send + Sync,
    ) -> RedisResult<Option<T>> {
        let (limit, open) = (self.connect_timeout, &open);
        match to.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let attempt = |address| over_plain(move || connect(to, address), open);
                dial::connect((host, *port), limit, weight, attempt).await.map(Some)
            }
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, insecure, tls_params: None } => {
                let handshake = &Handshake::new(&self.tls.files, host, *insecure).await?;
                let attempt = |address| async move {
                    let stream = handshake.over(connect(to, address).await?).await?;
                    open(Box::new(stream)).await
                };
                dial::connect((host, *port), limit, weight, attempt).await.map(Some)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let opening = timeout(limit, over_plain(|| UnixStream::connect(path), open));
                opening.await.map_err(io::Error::from)?.map(Some)
            }
            _ => Ok(None),
        }
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.command_timeout))
    }
}

/// Passes a stream without TLS to `open`. If the server closes it, the error says why.
async fn over_plain<S, C, T, F>(
    connect: impl Fn() -> C + Send + Sync,
    open: impl Fn(Box<dyn Stream>) -> F + Send + Sync,
) -> RedisResult<T>
where
    S: Stream,
    C: Future<Output = io::Result<S>> + Send,
    T: Send,
    F: Future<Output = RedisResult<T>> + Send,
{
    match open(Box::new(connect().await?)).await {
        Err(error) if error.is_connection_dropped() => Err(reason(connect()).await.unwrap_or(error)),
        opened => opened,
    }
}

/// A connection of the driver over a stream.
async fn driver_over(
    stream: impl Stream,
    to: &ConnectionInfo,
    config: AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let opened = MultiplexedConnection::new_with_config(to.redis_settings(), stream, config).await;
    let (connection, driver) = opened?;
    drop(tokio::spawn(driver));
    Ok(connection)
}

/// A connection that the driver opens.
async fn by_driver(
    to: &ConnectionInfo,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    Client::open(with_tcp_settings(to.clone()))?.get_multiplexed_async_connection_with_config(config).await
}

fn with_resp3(to: &ConnectionInfo) -> ConnectionInfo {
    let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    to.clone().set_redis_settings(settings)
}

/// How much the failure at one address tells: an answer most, and that nothing listens least.
fn weight(error: &RedisError) -> u8 {
    match error {
        error if error.is_connection_refusal() => 0,
        error if error.is_io_error() => 1,
        _ => 2,
    }
}

impl fmt::Debug for OwnDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = self.pool.is_some();
        f.debug_struct("OwnDial").field("pool", &pool).field("tls", &self.tls).finish_non_exhaustive()
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
        lock_core::tls::install_provider();
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

    fn dial(connect_timeout: Duration, command_timeout: Duration) -> OwnDial {
        OwnDial { pool: None, tls: Tls::default(), connect_timeout, command_timeout }
    }

    async fn ping(connection: &mut impl redis::aio::ConnectionLike) -> RedisResult<()> {
        redis::cmd("PING").query_async(connection).await
    }

    async fn error_of(to: &str) -> RedisError {
        let dial = dial(LIMIT, Duration::from_secs(60));
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
        let mut urls = vec![format!("redis://127.0.0.1:{port}"), format!("redis://localhost:{port}")];
        if cfg!(feature = "tls") {
            urls.push(format!("rediss://127.0.0.1:{port}/#insecure"));
        }
        for url in urls {
            let error = error_of(&url).await;
            assert!(error.is_timeout(), "{url}: {error}");
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
    async fn the_task_of_a_connection_that_is_given_up_ends_with_it() {
        let server = RedisServer::start().await.unwrap();
        let (dial, to) = (dial(100 * LIMIT, LIMIT), server.url().into_connection_info().unwrap());
        let mut commands = dial.commands(&to).await.unwrap();
        let mut pushes = dial.pushes(&to, Arc::new(|_| Ok::<_, ()>(()))).await.unwrap();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks(), 2);
        server.stop();
        for error in [ping(&mut commands).await, ping(&mut pushes).await].map(Result::unwrap_err) {
            assert!(error.is_timeout(), "{error}");
        }
        drop((commands, pushes));
        let ended = async {
            while tasks() > 0 {
                sleep(LIMIT / 10).await;
            }
        };
        timeout(100 * LIMIT, ended).await.expect("the tasks end");
    }

    /// Those that the options name, or those that came with the server, which the driver alone can read.
    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn connections_over_tls_have_the_certificates_of_the_options_or_of_the_server() {
        if RedisServer::lacks_tls() {
            return;
        }
        let certificates = Arc::new(lock_testkit::Certificates::new().unwrap());
        let server = RedisServer::builder().tls(&certificates, true).start().await.unwrap();
        let file = |path: std::path::PathBuf| Some(path.display().to_string());
        let (cert, key) = certificates.client();
        let (mut own, usual) = (dial(100 * LIMIT, 100 * LIMIT), dial(100 * LIMIT, 100 * LIMIT));
        own.tls.files.ca = file(certificates.ca());
        (own.tls.files.cert, own.tls.files.key) = (file(cert), file(key));
        let to = format!("rediss://{}", server.tls_addr()).into_connection_info().unwrap();
        let with_its_own = own.tls.with_certificates(to.clone()).await.unwrap();
        for (dial, to) in [(&own, &to), (&usual, &with_its_own)] {
            ping(&mut dial.commands(to).await.unwrap()).await.unwrap();
            ping(&mut dial.pushes(to, Arc::new(|_| Ok::<_, ()>(()))).await.unwrap()).await.unwrap();
            dial.messages(to).await.unwrap().subscribe("a").await.unwrap();
        }
        usual.commands(&to).await.map(drop).expect_err("the system does not trust it");
    }
}
