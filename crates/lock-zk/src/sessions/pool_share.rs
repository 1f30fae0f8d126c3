//! The share of one connection in the session pool of its process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use lock_core::{Error, Result, runtime};

use crate::config::ZkConfig;
use crate::error::{BACKEND, Fault, doubted_if};
use crate::nodes::token_base::TokenBase;
use crate::operate::membership::Membership;
use crate::poison::lock;
use crate::sessions::session::{Session, SessionHandle};
use crate::sessions::session_pool::SessionPool;

/// The share of one connection in a session pool.
#[derive(Debug)]
pub(crate) struct PoolShare {
    pub(crate) config: ZkConfig,
    pub(crate) pool: Arc<SessionPool>,
    /// The token bases that were used, per session: kept, so that the next lock finds them watched.
    bases: Mutex<Vec<(Weak<Session>, Arc<TokenBase>)>>,
    /// The part of this connection in a migration, if it takes one.
    pub(crate) membership: OnceLock<Membership>,
    closed: AtomicBool,
}

impl PoolShare {
    /// Joins the pool of the connections with the same options, or makes one on the runtime of the caller.
    pub(crate) async fn open(config: ZkConfig) -> Result<Arc<Self>> {
        let pool = SessionPool::join(&config, runtime::current(BACKEND)?);
        let (bases, membership, closed) = (Mutex::default(), OnceLock::new(), AtomicBool::new(false));
        let share = Arc::new(Self { config, pool, bases, membership, closed });
        share.get().await?;
        Ok(share)
    }

    /// A session for anything but a lock, opened if there is none.
    pub(crate) async fn get(&self) -> Result<Arc<Session>> {
        self.unless_closed(self.pool.get()).await
    }

    /// A session with room for one more lock, whose node has a path of this many bytes, opened if there is none. The room
    /// belongs to the handle.
    pub(crate) async fn with_room(&self, bytes: usize) -> Result<SessionHandle> {
        self.unless_closed(self.pool.with_room(bytes)).await
    }

    /// The answer of a session to requests about a path; that of the next one, if it ends meanwhile.
    pub(crate) async fn ask<T: Send, F>(
        &self,
        path: &str,
        requests: impl Fn(Arc<Session>) -> F + Send + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let mut in_doubt = false;
        loop {
            let session = self.get().await.map_err(|error| doubted_if(in_doubt, error))?;
            match session.answer_about(path, requests(Arc::clone(&session))).await? {
                Err(Fault::SessionEnded) => in_doubt = true,
                answer => return answer.map_err(|fault| doubted_if(in_doubt, fault.on(path))),
            }
        }
    }

    async fn unless_closed<T>(&self, picked: impl Future<Output = Result<T>>) -> Result<T> {
        self.check_open()?;
        let picked = picked.await?;
        self.check_open()?;
        Ok(picked)
    }

    /// The base of the tokens of locks in this directory, kept until the session ends or this share is closed.
    pub(crate) fn base(&self, session: &Arc<Session>, dir: &str) -> Arc<TokenBase> {
        let (base, mut bases) = (session.base(dir), lock(&self.bases));
        if self.closed.load(Ordering::Acquire) || bases.iter().any(|(_, kept)| Arc::ptr_eq(kept, &base)) {
            return base;
        }
        bases.retain(|(session, _)| session.upgrade().is_some_and(|session| !session.has_ended()));
        bases.push((Arc::downgrade(session), Arc::clone(&base)));
        base
    }

    /// Leaves the pool, and returns the sessions to close: those of a pool without other connections.
    pub(crate) fn close(&self) -> Vec<Arc<Session>> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        if let Some(membership) = self.membership.get() {
            membership.leave();
        }
        let to_close = self.pool.leave();
        if to_close.is_empty() {
            // The sessions live on, so the watches must be removed. Closed sessions drop theirs without a request.
            lock(&self.bases).clear();
        }
        to_close
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(BACKEND)) } else { Ok(()) }
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        // A session that has locks lives as long as the last of them.
        drop(self.close());
    }
}
