//! The connection to one server: made when it is needed, kept, and replaced after the first failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisError};
use tokio::time::{Instant, timeout};

use crate::dial::Dial;
use crate::error::Place;
use crate::greeting::Greeting;
use crate::scripts;
use crate::sentinel::masters;
use crate::topology::SentinelInfo;

/// The one connection that all locks on a server share.
///
/// It is taken from the dialer once and kept, as a check-out of a pool for each operation would cost a
/// round trip more. All that one process sends about a lock goes over it in order, so that a release
/// never overtakes the acquisition that it undoes.
pub(crate) struct Link {
    pub(crate) place: Place,
    pub(crate) dialer: Arc<dyn Dial>,
    route: Route,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pinned: Mutex<Pinned>,
    /// Held while a connection is made, so that one is made at a time; keeps the last failure.
    dialing: tokio::sync::Mutex<Option<(Instant, Error)>>,
    checked: AtomicBool,
}

/// How the server is found.
pub(crate) enum Route {
    Fixed(ConnectionInfo),
    /// The sentinels are asked for the master each time.
    Sentinel(SentinelInfo),
}

#[derive(Default)]
struct Pinned {
    connection: Option<MultiplexedConnection>,
    /// Where the connection leads to, or the last one led to.
    at: Option<ConnectionInfo>,
    /// Counts the connections, so that a late failure does not throw away the next one.
    generation: u64,
    closed: bool,
}

impl Link {
    pub(crate) fn new(
        place: Place,
        dialer: Arc<dyn Dial>,
        route: Route,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> Self {
        Self {
            place,
            dialer,
            route,
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
            Ok((connection, at)) => {
                let mut pinned = self.pinned();
                if pinned.closed {
                    return Err(Error::closed(self.place.backend));
                }
                pinned.generation += 1;
                pinned.connection = Some(connection.clone());
                pinned.at = Some(at);
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
        self.drop_connection(generation);
        true
    }

    /// Sees to it that the next request goes over a new connection.
    pub(crate) fn drop_connection(&self, generation: u64) {
        let mut pinned = self.pinned();
        if pinned.generation == generation {
            pinned.connection = None;
        }
    }

    /// Where the server is: what the connection leads to, or, without one, what is found now.
    pub(crate) async fn at(&self) -> Result<ConnectionInfo> {
        if let Route::Fixed(to) = &self.route {
            return Ok(to.clone());
        }
        self.connection().await?;
        self.pinned().at.clone().ok_or_else(|| self.place.dropped())
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

    async fn dial(&self) -> Result<(MultiplexedConnection, ConnectionInfo)> {
        let mut last = None;
        for to in self.candidates().await? {
            match self.open(&to).await {
                Ok(connection) => return Ok((connection, to)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.place.error(ErrorKind::Unavailable, "there is no server")))
    }

    async fn candidates(&self) -> Result<Vec<ConnectionInfo>> {
        match &self.route {
            Route::Fixed(to) => Ok(vec![to.clone()]),
            Route::Sentinel(sentinels) => {
                // Half of the time, so that there is some left for the master itself.
                masters(sentinels, &*self.dialer, self.connect_timeout / 2, &self.place).await
            }
        }
    }

    async fn open(&self, to: &ConnectionInfo) -> Result<MultiplexedConnection> {
        let dialed = self.dialer.commands(to).await;
        let mut connection = dialed.map_err(|error| self.place.unreachable(&error))?;
        connection.set_response_timeout(self.command_timeout);
        self.greet(&mut connection).await?;
        if !self.checked.swap(true, Ordering::Relaxed) {
            self.warn_of_eviction(&mut connection).await;
        }
        Ok(connection)
    }

    /// Asks the server what it is, and loads the scripts, in one round trip.
    async fn greet(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        let unreachable = |error: RedisError| self.place.unreachable(&error);
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors().cmd("HELLO");
        for script in scripts::all() {
            pipeline.add_command(script.load());
        }
        let answers = pipeline.query_async::<Vec<redis::RedisResult<redis::Value>>>(connection).await;
        let mut answers = answers.map_err(unreachable)?.into_iter();
        if let Some(hello) = answers.next() {
            let greeting = Greeting::read(hello, connection).await.map_err(unreachable)?;
            self.judge(&greeting)?;
        }
        answers.try_for_each(|answer| answer.map(drop)).map_err(unreachable)
    }

    fn judge(&self, greeting: &Greeting) -> Result<()> {
        if greeting.is_too_old() {
            return Err(self.place.too_old(&greeting.version));
        }
        if greeting.mode == "sentinel" {
            return Err(self.place.is_sentinel());
        }
        if greeting.is_replica() {
            return Err(self.place.is_replica());
        }
        Ok(())
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
