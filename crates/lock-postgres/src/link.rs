//! Connections to the server.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use lock_core::runtime::Home;
use lock_core::secret::Unreadable;
use lock_core::{Error, ErrorKind, Password, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Notification};

use crate::error::{BACKEND, During, Endpoint};
use crate::tls::Tls;

/// Opens connections, with the password and the certificates of the moment.
pub(crate) struct Dialer {
    pub(crate) target: Config,
    pub(crate) password: Option<Password>,
    pub(crate) tls: Tls,
    pub(crate) connect_timeout: Duration,
    pub(crate) endpoint: Endpoint,
    /// The runtime that drives the connections.
    pub(crate) home: Home,
}

/// A connection, and the task that drives it.
pub(crate) struct Link {
    pub(crate) client: Client,
    driver: AbortHandle,
    /// A call was not answered in time, or the server is ending it: nothing else is sent.
    is_given_up: AtomicBool,
}

impl Dialer {
    /// Opens a connection. What the server notifies it of goes to `notifications`, which is dropped when the connection ends.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after the connect timeout at the latest.
    pub(crate) async fn open(&self, notifications: Option<UnboundedSender<Notification>>) -> Result<Link> {
        self.open_as(self.target.clone(), notifications).await
    }

    /// As [`open`](Self::open), with another name in the list of sessions.
    pub(crate) async fn open_as(
        &self,
        mut target: Config,
        notifications: Option<UnboundedSender<Notification>>,
    ) -> Result<Link> {
        let limit = self.connect_timeout;
        let secrets = async {
            let tls = self.tls.connector().await?;
            let password = match &self.password {
                Some(password) => Some(password.read().await?),
                None => None,
            };
            Ok((tls, password))
        };
        let read = timeout(limit, secrets).await;
        let read = read.unwrap_or_else(|_| Err(Unreadable::new(format!("no password within {limit:?}"))));
        let (tls, password) = read.map_err(|unread| unread.error(ErrorKind::Unavailable, BACKEND))?;
        if let Some(password) = password {
            target.password(password);
        }
        let connecting = self.home.driver().spawn(async move {
            let (client, connection) = timeout(limit, target.connect(tls)).await??;
            let driver = tokio::spawn(drive(connection, notifications)).abort_handle();
            Ok::<_, Failed>(Link { client, driver, is_given_up: AtomicBool::new(false) })
        });
        match connecting.await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(Failed::TimedOut)) => Err(self.endpoint.no_connection(limit)),
            Ok(Err(Failed::Driver(error))) => Err(self.endpoint.of(During::Connecting, &error)),
            Err(ended) => Err(self
                .endpoint
                .error(ErrorKind::Unavailable, "the runtime that opened the connection has ended")
                .with_hint("try again")
                .caused_by(ended)),
        }
    }
}

enum Failed {
    TimedOut,
    Driver(tokio_postgres::Error),
}

impl From<tokio::time::error::Elapsed> for Failed {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::TimedOut
    }
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Driver(error)
    }
}

/// Drives a connection to its end.
async fn drive<S, T>(mut connection: Connection<S, T>, notifications: Option<UnboundedSender<Notification>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notification(notification)) => {
                if let Some(notifications) = &notifications {
                    // Nobody listens any more: the connection is about to be closed.
                    let _ = notifications.send(notification);
                }
            }
            Ok(AsyncMessage::Notice(notice)) => tracing::debug!(%notice, "the server says"),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection ended");
                return;
            }
        }
    }
}

impl Link {
    /// Sends nothing else.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Whether requests can be sent.
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.is_given_up.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_given_up.load(Ordering::Relaxed) {
            // Else it might wait for an answer.
            self.driver.abort();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}

impl Manager for Dialer {
    type Type = Link;
    type Error = Error;

    async fn create(&self) -> Result<Link> {
        self.open(None).await
    }

    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<Error> {
        if link.is_open() { Ok(()) } else { Err(RecycleError::message("the connection ended")) }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("servers", &self.endpoint.servers).finish_non_exhaustive()
    }
}
