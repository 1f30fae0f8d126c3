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
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Notification, Row};

use crate::error::{BACKEND, Endpoint};
use crate::hosts::{self, Failed};
use crate::tls::{Connector, Tls};

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
    /// Whether the last call has no answer yet, perhaps as its future was dropped.
    is_busy: AtomicBool,
}

impl Dialer {
    /// Lets no connection that is open now be used again.
    pub(crate) fn distrust_all(&self) {
        *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Refuses a password or certificates that cannot be read, which may pass only later.
    pub(crate) async fn check(&self) -> Result<()> {
        self.secrets().await.map(drop).map_err(|unread| unread.error(ErrorKind::InvalidConfig, BACKEND))
    }

    /// The certificates and the password of the moment.
    async fn secrets(&self) -> std::result::Result<(Connector, Option<String>), Unreadable> {
        let limit = self.connect_timeout;
        let read = timeout(limit, async {
            let connector = self.tls.connector().await?;
            match &self.password {
                Some(password) => Ok((connector, Some(password.read().await?))),
                None => Ok((connector, None)),
            }
        });
        read.await.unwrap_or_else(|_| Err(Unreadable::new(format!("not read within {limit:?}"))))
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
        let secrets = self.secrets().await;
        let (tls, password) = secrets.map_err(|unread| unread.error(ErrorKind::Unavailable, BACKEND))?;
        if let Some(password) = password {
            for target in &mut targets {
                target.password(&password);
            }
        }
        let connecting = self.home.driver().spawn(async move {
            let (client, connection) = hosts::connect(targets, tls, limit).await?;
            let driver = tokio::spawn(drive(connection, notifications)).abort_handle();
            let (is_given_up, is_busy) = (AtomicBool::new(false), AtomicBool::new(false));
            Ok::<_, Failed>(Link { client, driver, is_given_up, is_busy })
        });
        match connecting.await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(failed)) => Err(failed.error(&self.endpoint, limit)),
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

    /// Calls a function: unnamed and typed, so that a pooler may choose another session for each call.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the call may be run all the same. The connection is not used for another one before that is
    /// answered.
    pub(crate) async fn call(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
        self.answered(self.client.query_typed(sql, params)).await
    }

    /// Runs statements without parameters.
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub(crate) async fn batch(&self, sql: &str) -> std::result::Result<(), tokio_postgres::Error> {
        self.answered(self.client.batch_execute(sql)).await
    }

    /// The answer to a request; until it is there, the connection is busy.
    async fn answered<T>(&self, request: impl Future<Output = T>) -> T {
        self.is_busy.store(true, Ordering::Relaxed);
        let answer = request.await;
        // It comes after those to all earlier requests.
        self.is_busy.store(false, Ordering::Relaxed);
        answer
    }

    /// Whether requests can be sent.
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.is_given_up.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_given_up.load(Ordering::Relaxed) || self.is_busy.load(Ordering::Relaxed) {
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

    /// What is sent on a busy connection would wait for the answer to another caller's call. That is not cancelled on the server: what
    /// lasts there is a commit, and its cancellation grants a lock that the standbys may lack.
    async fn recycle(&self, link: &mut Link, metrics: &Metrics) -> RecycleResult<Error> {
        let distrusted = *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_trusted = distrusted.is_none_or(|before| metrics.created > before);
        if is_trusted && link.is_open() && !link.is_busy.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(RecycleError::message(
            "the connection ended, is busy, or is one to a server that may have a successor",
        ))
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("servers", &self.endpoint.servers).finish_non_exhaustive()
    }
}
