//! Statements that a session keeps prepared, so that the server neither parses nor plans them at each call.
//!
//! A pooler may send each call to another session, where the name of a statement means nothing, or something else. So a session is
//! used by names only if it is our own: the server process that executes our calls is the one that greeted us. A pooler greets its
//! clients with a number of its own.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use lock_core::poison::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::types::Type;
use tokio_postgres::{CancelToken, Client, Error, Statement};

/// How often a statement is called before it is prepared: to prepare it takes two more requests.
const CALLS_BEFORE: u32 = 4;
/// No more are remembered.
const MOST: usize = 64;

/// The statements of one session.
#[derive(Default)]
pub(crate) struct Statements(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Whether names are safe, once that was asked.
    session_is_ours: Option<bool>,
    by_sql: HashMap<String, Called>,
}

#[derive(Default)]
struct Called {
    times: u32,
    statement: Option<Statement>,
}

impl Statements {
    /// The prepared statement for one more call, if it is called often and the session is our own.
    ///
    /// # Errors
    ///
    /// Those of a call.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. When the future is dropped, the session may keep a statement that is not used.
    pub(crate) async fn for_call(
        &self,
        client: &Client,
        sql: &str,
        types: impl Iterator<Item = Type>,
    ) -> Result<Option<Statement>, Error> {
        match self.count(sql) {
            Some(Called { statement: Some(statement), .. }) => return Ok(Some(statement)),
            Some(Called { times, .. }) if times > CALLS_BEFORE => {}
            _ => return Ok(None),
        }
        let types: Vec<_> = types.collect();
        Box::pin(self.prepare(client, sql, &types)).await
    }

    async fn prepare(&self, client: &Client, sql: &str, types: &[Type]) -> Result<Option<Statement>, Error> {
        let is_ours = lock(&self.0).session_is_ours;
        let is_ours = match is_ours {
            Some(is_ours) => is_ours,
            None => greeter(&client.cancel_token()) == Some(executor(client).await?),
        };
        lock(&self.0).session_is_ours = Some(is_ours);
        if !is_ours {
            return Ok(None);
        }
        let prepared = client.prepare_typed(sql, types).await?;
        if let Some(called) = lock(&self.0).by_sql.get_mut(sql) {
            called.statement = Some(prepared.clone());
        }
        Ok(Some(prepared))
    }

    /// Calls by names no more. Returns whether that is new.
    pub(crate) fn forget(&self) -> bool {
        let mut known = lock(&self.0);
        known.by_sql.clear();
        known.session_is_ours.replace(false) != Some(false)
    }

    /// Counts one more call of a statement; `None` if it will not be prepared.
    fn count(&self, sql: &str) -> Option<Called> {
        let mut known = lock(&self.0);
        if known.session_is_ours == Some(false) {
            return None;
        }
        if !known.by_sql.contains_key(sql) {
            if known.by_sql.len() >= MOST {
                return None;
            }
            known.by_sql.insert(sql.to_owned(), Called::default());
        }
        let called = known.by_sql.get_mut(sql)?;
        called.times += 1;
        Some(Called { times: called.times, statement: called.statement.clone() })
    }
}

/// Whether the session has no statement of this name, or another one.
pub(crate) fn is_of_another_session(error: &Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "26000" | "42P05"))
}

/// The server process that executes calls.
async fn executor(client: &Client) -> Result<i32, Error> {
    let rows = client.query_typed("SELECT pg_catalog.pg_backend_pid()", &[]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0))
}

/// The process in whose name the session was greeted. The driver tells it only to the server, when a call is to be cancelled.
fn greeter(token: &CancelToken) -> Option<i32> {
    let sent = Sent::default();
    token.cancel_query_raw(sent.clone(), Unencrypted).now_or_never()?.ok()?;
    let sent = lock(&sent.0);
    let request = if sent.get(4..8)? == &TLS_REQUEST[..] { &sent[8..] } else { &sent[..] };
    let process = request.get(8..12).filter(|_| request.get(4..8) == Some(&CANCEL_REQUEST[..]))?;
    Some(i32::from_be_bytes(process.try_into().ok()?))
}

/// What a client asks first for a connection with TLS.
const TLS_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
/// What a request to cancel a call begins with.
const CANCEL_REQUEST: [u8; 4] = 80_877_102_u32.to_be_bytes();

/// A stream to nobody, which keeps what is written, and speaks TLS if asked.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<u8>>>);

struct Unencrypted;

impl TlsConnect<Sent> for Unencrypted {
    type Stream = Sent;
    type Error = Infallible;
    type Future = Ready<Result<Sent, Infallible>>;

    fn connect(self, stream: Sent) -> Self::Future {
        ready(Ok(stream))
    }
}

impl TlsStream for Sent {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Sent {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        to.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sent {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
