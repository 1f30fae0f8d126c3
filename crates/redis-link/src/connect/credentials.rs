//! What a connection needs beside an address: a password, and the files of TLS. They are read at each connect.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::secret::Unreadable;
use lock_core::{ErrorKind, Password, Result};
use redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use redis::{ConnectionInfo, RedisError, RedisResult};
use tokio::time::timeout;

use crate::connect::connection::Connection;
use crate::connect::dial::Dial;
use crate::connect::tls::Tls;
use crate::error::{RefusedPassword, first_of_pipeline, is_auth};

/// The password and the files of TLS of servers, where those of their [`ConnectionInfo`] are not meant.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The password, which the user name of the [`ConnectionInfo`] goes with.
    pub password: Option<Password>,
    /// The files of TLS.
    pub tls: Option<Tls>,
}

impl Credentials {
    /// Reads all of it, within this time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if some of it cannot be used, as before the first connect.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn check(&self, backend: &'static str, limit: Duration) -> Result<()> {
        let read = timeout(limit, self.read()).await;
        let read = read.unwrap_or_else(|_| Err(Unreadable::new(format!("no password within {limit:?}"))));
        read.map_err(|unreadable| unreadable.error(ErrorKind::InvalidConfig, backend))
    }

    async fn read(&self) -> Result<(), Unreadable> {
        if let Some(password) = &self.password {
            password.read().await?;
        }
        match &self.tls {
            Some(tls) => tls.check().await,
            None => Ok(()),
        }
    }

    /// The server, with what is read now.
    async fn of(&self, to: &ConnectionInfo) -> Result<ConnectionInfo, Unreadable> {
        let mut to = to.clone();
        if let Some(password) = &self.password {
            let settings = to.redis_settings().clone().set_password(password.read().await?);
            to = to.set_redis_settings(settings);
        }
        match &self.tls {
            Some(tls) => tls.with_certificates(to).await,
            None => Ok(to),
        }
    }
}

/// A dialer that hands every connection the credentials of the moment.
pub(crate) struct WithCredentials {
    dialer: Arc<dyn Dial>,
    credentials: Credentials,
}

impl WithCredentials {
    /// This dialer, with these credentials.
    pub(crate) fn over(dialer: Arc<dyn Dial>, credentials: Credentials) -> Arc<dyn Dial> {
        match credentials {
            Credentials { password: None, tls: None } => dialer,
            credentials => Arc::new(Self { dialer, credentials }),
        }
    }

    /// The error of a connect, with the password that was refused.
    fn failed(&self, error: RedisError) -> RedisError {
        match &self.credentials.password {
            Some(password) if is_auth(&first_of_pipeline(&error)) => {
                io::Error::other(RefusedPassword { password: password.clone(), answer: error }).into()
            }
            _ => error,
        }
    }

    async fn server(&self, to: &ConnectionInfo) -> RedisResult<ConnectionInfo> {
        self.credentials.of(to).await.map_err(|unreadable| io::Error::other(unreadable).into())
    }
}

#[async_trait]
impl Dial for WithCredentials {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        self.dialer.commands(&self.server(to).await?).await.map_err(|error| self.failed(error))
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        on_push: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        self.dialer.pushes(&self.server(to).await?, on_push).await.map_err(|error| self.failed(error))
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        self.dialer.messages(&self.server(to).await?).await.map_err(|error| self.failed(error))
    }
}

impl fmt::Debug for WithCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WithCredentials").field(&self.dialer).finish()
    }
}
