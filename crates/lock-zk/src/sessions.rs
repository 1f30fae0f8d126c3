//! The sessions of one backend.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::Mutex as Turnstile;
use tokio::time::Instant;

use crate::fault::unavailable;
use crate::session::Session;
use crate::{BACKEND, ZkConfig};

/// The sessions of one backend: one for now, replaced when it is over.
///
/// A server writes all ephemeral nodes of a session into the one transaction that ends it, which must not exceed
/// 1 MiB, so that more than some 5 000 locks held at once want several sessions. They would be chosen between here,
/// by the name of the lock.
#[derive(Debug)]
pub(crate) struct Sessions {
    config: ZkConfig,
    runtime: Handle,
    slot: Mutex<Slot>,
    /// One connects at a time, and leaves word of a failure for those who wait for it.
    connecting: Arc<Turnstile<Option<(Instant, Error)>>>,
}

#[derive(Debug)]
enum Slot {
    Open(Arc<Session>),
    Closed,
}

impl Sessions {
    /// Opens the first session, on the runtime of the caller.
    pub(crate) async fn open(config: ZkConfig) -> Result<Arc<Self>> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Unsupported, BACKEND)
                .message("there is no tokio runtime here")
                .hint("connect inside a tokio runtime")
                .caused_by(error)
        })?;
        let session = Session::open(&config, runtime.clone()).await?;
        let (asked, given) = (config.asked_timeout(), session.timeout());
        if asked != given {
            tracing::warn!(?asked, ?given, "the server changed the session timeout to what its bounds allow");
        }
        let slot = Mutex::new(Slot::Open(session));
        Ok(Arc::new(Self { config, runtime, slot, connecting: Arc::default() }))
    }

    /// The session, or a new one if it is over.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<Arc<Session>> {
        if let Some(session) = self.current()? {
            return Ok(session);
        }
        let asked = Instant::now();
        let mut turn = Arc::clone(&self.connecting).lock_owned().await;
        if let Some(session) = self.current()? {
            return Ok(session);
        }
        if let Some((_, error)) = turn.as_ref().filter(|(failed, _)| *failed >= asked) {
            return Err(error.clone());
        }
        // Not on the caller's runtime, which may be gone before the session is, and not undone with the caller.
        let sessions = Arc::clone(self);
        let opening = self.runtime.spawn(async move {
            let session = Session::open(&sessions.config, sessions.runtime.clone()).await;
            *turn = session.as_ref().err().map(|error| (Instant::now(), error.clone()));
            // Before the next one may look.
            let session = session.and_then(|session| sessions.put(session));
            drop(turn);
            session
        });
        opening.await.unwrap_or_else(|error| {
            Err(unavailable("the tokio runtime that the locks were connected on is gone").caused_by(error))
        })
    }

    /// The session as it is, over or not; `None` when the locks were closed.
    pub(crate) fn close(&self) -> Option<Arc<Session>> {
        match std::mem::replace(&mut *self.slot(), Slot::Closed) {
            Slot::Open(session) => Some(session),
            Slot::Closed => None,
        }
    }

    pub(crate) const fn config(&self) -> &ZkConfig {
        &self.config
    }

    fn current(&self) -> Result<Option<Arc<Session>>> {
        match &*self.slot() {
            Slot::Open(session) => Ok((!session.is_over()).then(|| Arc::clone(session))),
            Slot::Closed => Err(Error::closed(BACKEND)),
        }
    }

    fn put(&self, session: Arc<Session>) -> Result<Arc<Session>> {
        match &mut *self.slot() {
            Slot::Open(old) => *old = Arc::clone(&session),
            Slot::Closed => return Err(Error::closed(BACKEND)),
        }
        Ok(session)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
