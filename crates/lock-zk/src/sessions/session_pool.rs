//! The sessions of a process: shared by its connections, and as many as its locks need.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use lock_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::config::ZkConfig;
use crate::error::{BACKEND, unavailable};
use crate::poison::lock;
use crate::sessions::session::{Session, SessionHandle};
use crate::sessions::session_open::open;

/// Sessions that several connections may share.
///
/// The locks of a session, and the bytes that it [watches](crate::nodes::watches), are limited. A further session is opened when
/// all are full, and closed when it has had no lock for a while. A lock stays with its session. (The limits also keep the
/// end of a session small: the transaction that ends it has the paths of all its ephemeral nodes, and must not exceed
/// `jute.maxbuffer`, 1 MiB by default.)
#[derive(Debug)]
pub(crate) struct SessionPool {
    config: ZkConfig,
    pub(crate) runtime: Handle,
    state: Mutex<PoolState>,
    /// The warning that the servers granted another session timeout than requested.
    warning: Once,
}

#[derive(Debug, Default)]
struct PoolState {
    open: Vec<Slot>,
    /// The opening of a further session, for all its waiters: a task, so that no waiter depends on another one being polled.
    opening: Option<Opening>,
    /// The number of connections; none joins after the last one has left.
    users: usize,
    /// When the last opening failed, unless one succeeded since.
    failed: Option<Instant>,
    /// Whether the error was logged that a session has far too many locks.
    reported: bool,
    /// Whether a task closes idle sessions.
    sweeping: bool,
}

type Opening = Shared<BoxFuture<'static, Result<()>>>;

#[derive(Debug)]
struct Slot {
    session: Arc<Session>,
    /// Whether it had no user at the last look.
    idle: bool,
}

impl Slot {
    fn get(&mut self) -> Arc<Session> {
        self.idle = false;
        Arc::clone(&self.session)
    }
}

impl SessionPool {
    /// Joins the pool of this configuration, or makes one.
    pub(crate) fn join(config: &ZkConfig, runtime: Handle) -> Arc<Self> {
        if !config.may_share() {
            return Self::new(config, runtime);
        }
        let mut pools = lock(&POOLS);
        pools.retain(|pool| pool.strong_count() > 0);
        let joined = pools.iter().filter_map(Weak::upgrade).find(|pool| {
            let matches = pool.runtime.id() == runtime.id() && pool.config.shares_with(config);
            let mut state = pool.state();
            let joins = matches && state.users > 0;
            state.users += usize::from(joins);
            joins
        });
        joined.unwrap_or_else(|| {
            let pool = Self::new(config, runtime);
            pools.push(Arc::downgrade(&pool));
            pool
        })
    }

    fn new(config: &ZkConfig, runtime: Handle) -> Arc<Self> {
        let state = Mutex::new(PoolState { users: 1, ..PoolState::default() });
        Arc::new(Self { config: config.clone(), runtime, state, warning: Once::new() })
    }

    /// Leaves the pool; the last connection gets the sessions, to close them.
    pub(crate) fn leave(&self) -> Vec<Arc<Session>> {
        let mut state = self.state();
        state.users -= 1;
        if state.users > 0 {
            return Vec::new();
        }
        state.open.drain(..).map(|slot| slot.session).collect()
    }

    /// The open sessions.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.state().open.iter().map(|slot| Arc::clone(&slot.session)).collect()
    }

    /// The first session, for anything but a lock; opened if there is none.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<Arc<Session>> {
        self.pick(None, Arc::clone).await
    }

    /// A handle of the first session that has room for a lock whose node has a path of this many bytes; opened if there is
    /// none.
    pub(crate) async fn with_room(self: &Arc<Self>, lock_bytes: usize) -> Result<SessionHandle> {
        self.pick(Some(lock_bytes), |session| SessionHandle::new(session, lock_bytes)).await
    }

    /// Takes a session under the mutex, so that a lock is counted before the next one looks for room.
    async fn pick<T>(
        self: &Arc<Self>,
        lock_bytes: Option<usize>,
        take: impl Fn(&Arc<Session>) -> T,
    ) -> Result<T> {
        loop {
            let opening = {
                let mut state = self.state();
                if let Some(session) = state.with_room(lock_bytes, self.config.locks_per_session)? {
                    return Ok(take(&session));
                }
                let retries = state.failed.is_none_or(|failed| failed.elapsed() >= RETRY);
                if let Some(session) = state.overcommitted() {
                    if retries {
                        state.opening.get_or_insert_with(|| self.open());
                    }
                    return Ok(take(&session));
                }
                state.opening.get_or_insert_with(|| self.open()).clone()
            };
            let opened = opening.clone().await;
            // The task does the same, unless its runtime shut down.
            self.state().opening.take_if(|now| now.ptr_eq(&opening));
            if let Err(error) = opened {
                return self.state().least_full().map(|session| take(&session)).ok_or(error);
            }
        }
    }

    /// Opens a further session, on the runtime of the pool, as the caller's may shut down first. It goes on if the caller is
    /// dropped.
    fn open(self: &Arc<Self>) -> Opening {
        let pool = Arc::clone(self);
        let task = self.runtime.spawn(async move {
            let session = open(&pool.config, pool.runtime.clone()).await;
            let done = session.and_then(|session| pool.put(session));
            let mut state = pool.state();
            state.opening = None;
            if done.is_err() {
                state.note_failure();
            }
            done
        });
        let opened = task.map(|done| {
            done.unwrap_or_else(|error| {
                let shut_down = "the tokio runtime that the locks were connected on has shut down";
                Err(unavailable(shut_down).with_can_pass(false).caused_by(error))
            })
        });
        opened.boxed().shared()
    }

    fn put(self: &Arc<Self>, session: Arc<Session>) -> Result<()> {
        let (requested, granted) = (self.config.session_timeout, session.timeout);
        if requested != granted {
            self.warning.call_once(|| {
                tracing::warn!(
                    ?requested,
                    ?granted,
                    "ZooKeeper granted another session timeout than requested; see minSessionTimeout and maxSessionTimeout"
                );
            });
        }
        let mut state = self.state();
        if state.users == 0 {
            return Err(Error::closed(BACKEND));
        }
        state.open.push(Slot { session, idle: false });
        (state.failed, state.reported) = (None, false);
        if state.open.len() > 1 && !state.sweeping {
            state.sweeping = true;
            drop(self.runtime.spawn(sweep(Arc::downgrade(self))));
        }
        Ok(())
    }

    /// Closes all sessions but one that had no user at two looks, and returns whether more than one is left.
    fn close_idle(&self) -> bool {
        let mut state = self.state();
        let mut kept = 0;
        state.open.retain_mut(|slot| {
            // Every user has a reference, and none is given out under the mutex.
            let idle = Arc::strong_count(&slot.session) == 1;
            let close = idle && slot.idle && kept > 0;
            (slot.idle, kept) = (idle, kept + usize::from(!close));
            !close
        });
        state.sweeping = kept > 1;
        state.sweeping
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }
}

async fn sweep(pool: Weak<SessionPool>) {
    loop {
        sleep(IDLE).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_idle()) {
            return;
        }
    }
}

impl PoolState {
    fn with_room(&mut self, lock_bytes: Option<usize>, max_locks: usize) -> Result<Option<Arc<Session>>> {
        if self.users == 0 {
            return Err(Error::closed(BACKEND));
        }
        self.open.retain(|slot| !slot.session.has_ended());
        let roomy = self.open.iter_mut().find(|slot| {
            let nodes = slot.session.nodes();
            // A path that is longer than the budget gets a session of its own.
            lock_bytes
                .is_none_or(|bytes| nodes == 0 || (nodes < max_locks && slot.session.watches.has_room(bytes)))
        });
        Ok(roomy.map(Slot::get))
    }

    /// The session for a lock when all are full and no further one can be opened. What cannot be watched there is polled.
    fn least_full(&mut self) -> Option<Arc<Session>> {
        let open = self.open.iter_mut().filter(|slot| !slot.session.has_ended());
        let slot = open.min_by_key(|slot| (slot.session.watches.claimed(), slot.session.nodes()))?;
        Some(slot.get())
    }

    /// The session for a lock while further ones cannot be opened. No lock waits for an opening that has just failed.
    fn overcommitted(&mut self) -> Option<Arc<Session>> {
        if self.opening.is_none() {
            self.failed.take_if(|failed| failed.elapsed() >= NO_WAIT);
        }
        if self.failed.is_some() { self.least_full() } else { None }
    }

    /// Notes that no further session can be opened, and logs it: when that begins, and when a session has so many locks that
    /// the servers may be unable to end it.
    fn note_failure(&mut self) {
        let begins = self.failed.replace(Instant::now()).is_none();
        let Some(session) = self.least_full() else { return };
        let (locks, bytes) = (session.nodes(), session.watches.claimed());
        if begins {
            tracing::warn!(
                locks,
                "no further ZooKeeper session can be opened, so full sessions get more locks; \
                 let the servers accept more connections (maxClientCnxns)"
            );
        }
        if bytes > TOO_FULL && !mem::replace(&mut self.reported, true) {
            tracing::error!(
                locks,
                bytes,
                "the paths of the locks of one ZooKeeper session approach jute.maxbuffer, beyond which the servers cannot \
                 end it; let the servers accept more connections (maxClientCnxns)"
            );
        }
    }
}

/// The pools that others may join.
static POOLS: Mutex<Vec<Weak<SessionPool>>> = Mutex::new(Vec::new());
/// The interval between two looks for idle sessions.
const IDLE: Duration = Duration::from_secs(30);
/// How long no lock waits for a further session after an opening failed.
const NO_WAIT: Duration = Duration::from_secs(10);
/// The interval between two attempts meanwhile.
const RETRY: Duration = Duration::from_secs(1);
/// Half of what the servers accept by default in one transaction, such as the end of a session.
const TOO_FULL: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::pool_share::PoolShare;
    use lock_testkit::ZooKeeper;
    use std::pin::pin;
    use tokio::time::timeout;

    #[tokio::test]
    async fn idle_sessions_are_closed_but_one() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(4));
        let sessions = PoolShare::open(config.locks_per_session(1)).await.unwrap();
        let pool = &sessions.pool;
        let mut handles = Vec::new();
        for _ in 0..3 {
            handles.push(sessions.with_room(50).await.unwrap());
        }
        assert_eq!(pool.state().open.len(), 3);
        assert!(pool.state().sweeping);
        for _ in 0..3 {
            assert!(pool.close_idle(), "all are in use");
        }
        drop(handles.remove(1));
        assert!(pool.close_idle(), "one look is not enough");
        // A use in between keeps it open.
        handles.push(sessions.with_room(50).await.unwrap());
        assert!(pool.close_idle() && pool.close_idle());
        assert_eq!(pool.state().open.len(), 3);
        let ids: Vec<_> = pool.state().open.iter().map(|slot| slot.session.id).collect();
        drop(handles.pop());
        assert!(pool.close_idle() && pool.close_idle());
        let left: Vec<_> = pool.state().open.iter().map(|slot| slot.session.id).collect();
        assert_eq!(left, [ids[0], ids[2]]);
        drop(handles);
        pool.close_idle();
        assert!(!pool.close_idle(), "one is kept for the next lock");
        assert_eq!(pool.state().open.len(), 1);
    }

    #[tokio::test]
    async fn no_caller_depends_on_another_one_being_polled() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(4));
        let sessions = PoolShare::open(config.locks_per_session(1)).await.unwrap();
        let _full = sessions.with_room(50).await.unwrap();
        let (mut opens, mut waits) = (pin!(sessions.with_room(50)), pin!(sessions.with_room(50)));
        assert!(opens.as_mut().now_or_never().is_none() && waits.as_mut().now_or_never().is_none());
        let third = timeout(Duration::from_secs(20), sessions.with_room(50)).await;
        let third = third.expect("it depends on neither").unwrap();
        let fourth = timeout(Duration::from_secs(20), sessions.with_room(50)).await.unwrap().unwrap();
        assert_ne!(third.id, fourth.id);
        let id = fourth.id;
        drop(fourth);
        assert_eq!(opens.await.unwrap().id, id);
    }
}
