//! How the connections to a server are made.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_redis::{Manager, Pool, PoolError};
use redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, ProtocolVersion, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

/// Makes the connections to servers: for tests, and for transports of your own.
///
/// `to` is the server that is meant, with credentials and database: the one of the configuration, the
/// master that the sentinels named, or a node of the cluster. The caller limits the time that a call
/// takes, loads the scripts, and sets the time that an answer is awaited.
#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync + 'static {
    /// A connection for commands, which the caller keeps for as long as it works.
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<MultiplexedConnection>;

    /// A RESP3 connection that hands everything that the server pushes to `told`, and at its end a
    /// [`Disconnection`](redis::PushKind::Disconnection).
    async fn pushes(
        &self,
        to: &ConnectionInfo,
        told: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection>;

    /// A RESP2 connection for subscriptions, where there is no RESP3.
    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub>;
}

/// Makes connections over streams that `connect` opens, whatever they are: for tests in memory.
pub struct StreamDial<C> {
    connect: C,
    command_timeout: Duration,
}

/// A stream that a connection can be made over.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

impl<C> StreamDial<C> {
    /// Answers are awaited for so long.
    pub const fn new(command_timeout: Duration, connect: C) -> Self {
        Self { connect, command_timeout }
    }

    async fn open<S: Stream>(
        &self,
        to: &ConnectionInfo,
        config: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> RedisResult<MultiplexedConnection>
    where
        C: Fn() -> io::Result<S> + Sync,
    {
        let settings = to.redis_settings().clone().set_protocol(protocol);
        let config = config.set_response_timeout(Some(self.command_timeout));
        let stream = (self.connect)()?;
        let (connection, driver) = MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        drop(tokio::spawn(driver));
        Ok(connection)
    }
}

#[async_trait]
impl<S: Stream, C: Fn() -> io::Result<S> + Send + Sync + 'static> Dial for StreamDial<C> {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        self.open(to, AsyncConnectionConfig::new(), to.redis_settings().protocol()).await
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        told: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        self.open(to, AsyncConnectionConfig::new().set_push_sender(told), ProtocolVersion::RESP3).await
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

/// How connections to the nodes of a server are made.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) dialer: Arc<dyn Dial>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
}

/// Makes connections with the driver, those for commands through a pool, and all with TCP_NODELAY.
pub(crate) struct DriverDial {
    /// The user's; one of our own for each connection when `None`.
    pub(crate) pool: Option<Pool>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
}

#[async_trait]
impl Dial for DriverDial {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => self.own_pool(to)?,
        };
        let object = pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            other => (ErrorKind::Client, "the pool gave no connection", other.to_string()).into(),
        })?;
        // Taken out for good: the pool does not count, ping or share it any more.
        Ok(deadpool_redis::Connection::take(object))
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        told: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(with_nodelay(to.clone()).set_redis_settings(settings))?;
        client.get_multiplexed_async_connection_with_config(&self.timeouts().set_push_sender(told)).await
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        Client::open(with_nodelay(to.clone()))?.get_async_pubsub().await
    }
}

impl DriverDial {
    fn own_pool(&self, to: &ConnectionInfo) -> RedisResult<Pool> {
        let manager = Manager::new_with_config(with_nodelay(to.clone()), self.timeouts())?;
        let pool = Pool::builder(manager).max_size(1).build();
        pool.map_err(|error| (ErrorKind::InvalidClientConfig, "no pool", error.to_string()).into())
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.command_timeout))
    }
}

impl fmt::Debug for DriverDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverDial").field("pool", &self.pool.is_some()).finish_non_exhaustive()
    }
}

/// The server with TCP_NODELAY: without it a second request waits for the answer to the first.
#[must_use]
pub fn with_nodelay(info: ConnectionInfo) -> ConnectionInfo {
    #[cfg(feature = "tls")]
    if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        crate::tls::install_provider();
    }
    let settings = info.tcp_settings().clone().set_nodelay(true);
    info.set_tcp_settings(settings)
}
