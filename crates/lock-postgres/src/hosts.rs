//! Connects to the primary among several servers.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};

use crate::error::{is_no_primary, refuses_handshake};

/// How long the servers after one wait for its answer, at most.
const HEAD_START: Duration = Duration::from_millis(250);

/// Why there is no connection.
pub(crate) enum Failed {
    TimedOut,
    Driver(tokio_postgres::Error),
}

/// Connects to the first of these servers that answers as wanted, within this time. One is asked when the one before it has failed,
/// or is slow: a primary that was paused keeps nobody from its successor.
///
/// # Errors
///
/// The most telling failure.
pub(crate) async fn connect<T>(
    servers: Vec<Config>,
    tls: T,
    limit: Duration,
) -> Result<(Client, Connection<Socket, T::Stream>), Failed>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let end = Instant::now() + limit;
    let head_start = HEAD_START.min(limit / servers.len().max(1) as u32);
    let (mut next, mut asked, mut failed) = (servers.into_iter(), FuturesUnordered::new(), None);
    loop {
        asked.extend(next.next().map(|server| ask(server, tls.clone(), end)));
        tokio::select! {
            answer = asked.next() => match answer {
                Some(Ok(connected)) => return Ok(connected),
                Some(Err(error)) => failed = Some(more_telling(failed, error)),
                None => return Err(failed.unwrap_or(Failed::TimedOut)),
            },
            () = sleep(head_start), if next.len() > 0 => {}
        }
    }
}

async fn ask<T>(
    server: Config,
    tls: T,
    end: Instant,
) -> Result<(Client, Connection<Socket, T::Stream>), Failed>
where
    T: MakeTlsConnect<Socket>,
{
    match timeout_at(end, server.connect(tls)).await {
        Ok(connected) => connected.map_err(Failed::Driver),
        Err(_) => Err(Failed::TimedOut),
    }
}

fn more_telling(before: Option<Failed>, now: Failed) -> Failed {
    match before {
        Some(before) if before.weight() >= now.weight() => before,
        _ => now,
    }
}

impl Failed {
    /// How much it tells. That one server is down matters least: another one may have taken over.
    fn weight(&self) -> u8 {
        match self {
            Self::Driver(error) if error.as_db_error().is_some() || refuses_handshake(error) => 3,
            Self::Driver(error) if is_no_primary(error) => 2,
            Self::TimedOut => 1,
            Self::Driver(_) => 0,
        }
    }
}
