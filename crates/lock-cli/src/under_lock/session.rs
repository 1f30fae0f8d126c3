//! How commands that ask a store begin and end: they connect, do their work, and close the connections. Ctrl-C ends them.

#![allow(clippy::future_not_send, reason = "the main thread runs every command")]

use std::time::Duration;

use polylock::{Locks, Operator, Result, backend};
use tokio::signal::ctrl_c;
use tokio::time::timeout;

use crate::failure::{Exit, Failure};

/// A connection that a command closes at its end.
pub(crate) trait Connection {
    async fn close(&self) -> Result<()>;
}

impl Connection for Operator {
    async fn close(&self) -> Result<()> {
        Self::close(self).await
    }
}

impl Connection for Locks {
    async fn close(&self) -> Result<()> {
        backend::Locks::close(self).await
    }
}

/// Connects, and does the work of a command with the connection.
pub(crate) async fn work_with<C: Connection>(
    connect: impl Future<Output = Result<C, Failure>>,
    work: impl AsyncFnOnce(&C) -> Result<Exit, Failure>,
    on_interrupt: impl Fn() -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let connection = tokio::select! {
        connection = connect => connection?,
        _ = ctrl_c() => return on_interrupt(),
    };
    let exit = tokio::select! {
        exit = work(&connection) => exit,
        _ = ctrl_c() => on_interrupt(),
    };
    close(&connection).await;
    exit
}

/// Closes the connections, within some seconds.
pub(crate) async fn close(connection: &impl Connection) {
    close_within(CLOSE_LIMIT, connection).await;
}

pub(crate) async fn close_within(limit: Duration, connection: &impl Connection) {
    // The work is done: a server that does not confirm changes nothing.
    let _ = timeout(limit, connection.close()).await;
}

const CLOSE_LIMIT: Duration = Duration::from_secs(8);
