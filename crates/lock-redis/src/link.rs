//! The connection to one server: made when it is needed, kept, and replaced after the first failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisError};
use tokio::time::{Instant, timeout};

use crate::dial::Dial;
use crate::error::Place;
use crate::scripts;

/// The one connection that all locks on a server share.
///
/// It is taken from the dialer once and kept, as a check-out of a pool for each operation would cost a
/// round trip more. All that one process sends about a lock goes over it in order, so that a release
/// never overtakes the acquisition that it undoes.
pub(crate) struct Link {
    pub(crate) place: Place,
    pub(crate) dialer: Arc<dyn Dial>,
    pub(crate) to: ConnectionInfo,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pinned: Mutex<Pinned>,
    /// Held while a connection is made, so that one is made at a time; keeps the last failure.
    dialing: tokio::sync::Mutex<Option<(Instant, Error)>>,
    checked: AtomicBool,
}

#[derive(Default)]
struct Pinned {
    connection: Option<MultiplexedConnection>,
    /// Counts the connections, so that a late failure does not throw away the next one.
    generation: u64,
    closed: bool,
}

impl Link {
    pub(crate) fn new(
        place: Place,
        dialer: Arc<dyn Dial>,
        to: ConnectionInfo,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> Self {
        Self {
            place,
            dialer,
            to,
            connect_timeout,
            command_timeout,
            pinned: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            checked: AtomicBool::new(false),
        }
    }

    /// The connection and its generation; a new one is made if there is none.
    pub(crate) async fn connection(&self) -> Result<(MultiplexedConnection, u64)> {
        if let Some(pinned) = self.current()? {
            return Ok(pinned);
        }
        let asked = Instant::now();
        let mut last_failure = self.dialing.lock().await;
        if let Some(pinned) = self.current()? {
            return Ok(pinned);
        }
        if let Some((_, error)) = last_failure.as_ref().filter(|(failed, _)| *failed >= asked) {
            return Err(error.clone());
        }
        let dialed = timeout(self.connect_timeout, self.dial()).await;
        match dialed.unwrap_or_else(|_| Err(self.place.connect_timeout(self.connect_timeout))) {
            Ok(connection) => {
                let mut pinned = self.pinned();
                if pinned.closed {
                    return Err(Error::closed(self.place.backend));
                }
                pinned.generation += 1;
                pinned.connection = Some(connection.clone());
                Ok((connection, pinned.generation))
            }
            Err(error) => {
                *last_failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Which connection is in use, `None` without one.
    pub(crate) fn generation(&self) -> Option<u64> {
        let pinned = self.pinned();
        pinned.connection.as_ref().map(|_| pinned.generation)
    }

    /// Whether the error makes the connection useless; then it is dropped.
    pub(crate) fn drops(&self, error: &RedisError, generation: u64) -> bool {
        if matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension) {
            return false;
        }
        let mut pinned = self.pinned();
        if pinned.generation == generation {
            pinned.connection = None;
        }
        true
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        let mut pinned = self.pinned();
        pinned.closed = true;
        pinned.connection = None;
    }

    fn current(&self) -> Result<Option<(MultiplexedConnection, u64)>> {
        let pinned = self.pinned();
        if pinned.closed {
            return Err(Error::closed(self.place.backend));
        }
        Ok(pinned.connection.clone().map(|connection| (connection, pinned.generation)))
    }

    async fn dial(&self) -> Result<MultiplexedConnection> {
        let dialed = self.dialer.commands(&self.to).await;
        let mut connection = dialed.map_err(|error| self.place.unreachable(&error))?;
        connection.set_response_timeout(self.command_timeout);
        load(&mut connection).await.map_err(|error| self.place.unreachable(&error))?;
        if !self.checked.swap(true, Ordering::Relaxed) {
            self.warn_of_eviction(&mut connection).await;
        }
        Ok(connection)
    }

    async fn warn_of_eviction(&self, connection: &mut MultiplexedConnection) {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("maxmemory-policy");
        // Without the right to ask there is nothing to tell.
        let Ok((_, policy)) = command.query_async::<(String, String)>(connection).await else { return };
        if policy != "noeviction" {
            tracing::warn!(
                server = self.place.address,
                policy,
                "maxmemory-policy lets the server throw locks away when its memory is full; \
                 set it to noeviction, or use a server of its own for locks"
            );
        }
    }

    fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads all scripts, in one round trip.
pub(crate) async fn load(connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    let mut pipeline = redis::pipe();
    for script in scripts::all() {
        pipeline.add_command(script.load()).ignore();
    }
    pipeline.query_async(connection).await
}
