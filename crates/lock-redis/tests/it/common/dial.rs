//! Connections that lead elsewhere.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lock_core::Locks;
use lock_redis::redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use lock_redis::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult,
};
use lock_redis::{Connection, Dial, RedisConfig};
use lock_testkit::RedisServer;

/// What a connection is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Use {
    Commands,
    Pushes,
    Messages,
}

struct Routed<F>(F);

/// Connects to where this leads.
pub fn routed<F, R>(route: F) -> Arc<dyn Dial>
where
    F: Fn(Use, ConnectionInfo) -> R + Send + Sync + 'static,
    R: Future<Output = RedisResult<ConnectionInfo>> + Send + 'static,
{
    Arc::new(Routed(move |purpose, to| route(purpose, to).boxed()))
}

impl<F> fmt::Debug for Routed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Routed")
    }
}

#[async_trait]
impl<F> Dial for Routed<F>
where
    F: Fn(Use, ConnectionInfo) -> BoxFuture<'static, RedisResult<ConnectionInfo>> + Send + Sync + 'static,
{
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        let to = (self.0)(Use::Commands, to.clone()).await?;
        Ok(Client::open(to)?.get_multiplexed_async_connection().await?.into())
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        sender: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let to = (self.0)(Use::Pushes, to.clone()).await?;
        let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let client = Client::open(to.set_redis_settings(settings))?;
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        Client::open((self.0)(Use::Messages, to.clone()).await?)?.get_async_pubsub().await
    }
}

/// Leads to whichever server it stands for now, as a record of a name server does.
pub struct Record {
    points_to: Arc<Mutex<ConnectionInfo>>,
}

impl Record {
    pub fn of(server: &RedisServer) -> Self {
        Self { points_to: Arc::new(Mutex::new(address(server))) }
    }

    pub fn moves_to(&self, server: &RedisServer) {
        *self.points_to.lock().unwrap() = address(server);
    }

    /// A client that connects by this name.
    pub async fn connect(&self, url: &str) -> Locks {
        let points_to = Arc::clone(&self.points_to);
        let by_name = routed(move |_, _| ready(Ok(points_to.lock().unwrap().clone())));
        RedisConfig::from_url(url).unwrap().dial(by_name).connect().await.unwrap()
    }
}

fn address(server: &RedisServer) -> ConnectionInfo {
    server.url().into_connection_info().unwrap()
}
