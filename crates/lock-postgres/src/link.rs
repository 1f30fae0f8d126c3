//! Connections to the server.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
use crate::hosts::{self, Failed};
use crate::tls::Tls;

/// Opens connections, with the password and the certificates of the moment.
#[derive(Clone)]
pub(crate) struct Dialer {
    /// Those of which one is the primary.
    pub(crate) targets: Vec<Config>,
    pub(crate) password: Option<Password>,
    pub(crate) tls: Tls,
    pub(crate) connect_timeout: Duration,
    pub(crate) endpoint: Endpoint,
    /// The runtime that drives the connections.
    pub(crate) home: Home,
    /// Connections that were opened before are used no more: one of them has shown that the server ended them, or has a successor.
    pub(crate) distrusted: Arc<Mutex<Option<Instant>>>,
}

/// A connection, and the task that drives it.
pub(crate) struct Link {
    pub(crate) client: Client,
    driver: AbortHandle,
    /// A call was not answered in time, or the server is ending it: nothing else is sent.
    is_given_up: AtomicBool,
}

impl Dialer {
    /// Has no connection of now be used again.
    pub(crate) fn distrust_all(&self) {
        *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Opens a connection. What the server notifies it of goes to `notifications`, which is dropped when the connection ends.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after the connect timeout at the latest.
    pub(crate) async fn open(&self, notifications: Option<UnboundedSender<Notification>>) -> Result<Link> {
        self.open_as(self.targets.clone(), notifications).await
    }

    /// As [`open`](Self::open), with another name in the list of sessions.
    pub(crate) async fn open_as(
        &self,
        mut targets: Vec<Config>,
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
            for target in &mut targets {
                target.password(&password);
            }
        }
        let connecting = self.home.driver().spawn(async move {
            let (client, connection) = hosts::connect(targets, tls, limit).await?;
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

    async fn recycle(&self, link: &mut Link, metrics: &Metrics) -> RecycleResult<Error> {
        let distrusted = *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_trusted = distrusted.is_none_or(|before| metrics.created > before);
        if link.is_open() && is_trusted { Ok(()) } else { Err(RecycleError::message("the connection ended")) }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("servers", &self.endpoint.servers).finish_non_exhaustive()
    }
}
