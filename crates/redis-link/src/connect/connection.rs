//! A connection for commands: of this library over a stream, or one that the driver opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Clock;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisConnectionInfo, RedisFuture, RedisResult, Value};
use tokio::time::Instant;

use crate::connect::stream::Stream;
use crate::route::commands::Commands;
use crate::route::dispatch::Dispatch;
use crate::route::multiplexer::Multiplexer;
use crate::route::unwritten::Unwritten;

/// A connection for commands, which all clones share.
///
/// Over a [stream](Self::over), the requests of many tasks go out in one write. One that the driver opened serves as well: it
/// costs more under load.
#[derive(Clone)]
pub struct Connection(Kind);

#[derive(Clone)]
enum Kind {
    Own(Multiplexer),
    OfDriver(MultiplexedConnection),
}

impl Connection {
    /// Greets the server at the other end of a stream: logs in, and selects the database. Answers may take `response_timeout`.
    ///
    /// # Errors
    ///
    /// What the server refuses, or that the stream has ended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the stream is closed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, which reads the answers.
    pub async fn over<S: Stream>(
        stream: S,
        settings: &RedisConnectionInfo,
        response_timeout: Duration,
    ) -> RedisResult<Self> {
        Multiplexer::over(stream, settings, response_timeout).await.map(|own| Self(Kind::Own(own)))
    }

    /// Sends a command. The answer may be an error of the server, as a value.
    pub(crate) async fn send(&mut self, command: &Cmd, dispatch: &Arc<Dispatch>) -> RedisResult<Value> {
        match &mut self.0 {
            Kind::Own(own) => own.send(command, dispatch).await,
            Kind::OfDriver(driver) => {
                begin_by_driver(dispatch)?;
                driver.req_packed_command(command).await
            }
        }
    }

    /// Sends commands in one write.
    pub(crate) async fn send_all(
        &mut self,
        commands: &Pipeline,
        dispatch: &Arc<Dispatch>,
    ) -> RedisResult<Vec<Value>> {
        match &mut self.0 {
            Kind::Own(own) => own.send_all(commands, dispatch).await,
            Kind::OfDriver(driver) => {
                begin_by_driver(dispatch)?;
                driver.req_packed_commands(commands, 0, commands.len()).await
            }
        }
    }

    /// The same for packed commands.
    pub(crate) async fn send_packed(
        &mut self,
        commands: Commands,
        dispatch: &Arc<Dispatch>,
    ) -> RedisResult<Vec<Value>> {
        match &mut self.0 {
            Kind::Own(own) => own.send_packed(commands, dispatch).await,
            Kind::OfDriver(_) => Box::pin(self.send_all(&commands.for_driver(), dispatch)).await,
        }
    }

    /// Ends when the connection has ended; `None` if the driver opened it, which does not tell.
    pub(crate) fn ended(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        match &self.0 {
            Kind::Own(own) => Some(own.ended()),
            Kind::OfDriver(_) => None,
        }
    }

    /// Sets how long answers may take.
    pub(crate) fn set_response_timeout(&mut self, timeout: Duration) {
        match &mut self.0 {
            Kind::Own(own) => own.response_timeout = timeout,
            Kind::OfDriver(driver) => driver.set_response_timeout(timeout),
        }
    }
}

/// Notes that the driver has the request, which does not tell when it writes it.
fn begin_by_driver(dispatch: &Dispatch) -> RedisResult<()> {
    let is_wanted = dispatch.write(dispatch.begin(), Instant::now());
    if is_wanted { Ok(()) } else { Err(Unwritten::Withdrawn.into()) }
}

impl From<MultiplexedConnection> for Connection {
    fn from(driver: MultiplexedConnection) -> Self {
        Self(Kind::OfDriver(driver))
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move { self.send(command, &Dispatch::new(&Clock::default())).await })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &mut self.0 {
            Kind::Own(own) => Box::pin(async move {
                let packed = commands.get_packed_pipeline();
                let dispatch = Dispatch::new(&Clock::default());
                let mut answers =
                    own.request(offset + count, &dispatch, |bytes| bytes.extend(packed)).await?;
                answers.drain(..offset);
                Ok(answers)
            }),
            Kind::OfDriver(driver) => driver.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match &self.0 {
            Kind::Own(own) => own.database,
            Kind::OfDriver(driver) => driver.get_db(),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
