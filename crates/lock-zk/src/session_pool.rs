//! The sessions of a process: shared by its connections, and as many as its locks need.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use lock_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, sleep};

use crate::config::SharingKey;
use crate::error::unavailable;
use crate::session::Session;
use crate::token::Base;
use crate::{BACKEND, ZkConfig};

/// What one connection has of the sessions of its process.
#[derive(Debug)]
pub(crate) struct Sessions {
    config: ZkConfig,
    pool: Arc<Pool>,
    /// The bases of its tokens, in each of the sessions that it has used. The next lock finds them watched.
    bases: Mutex<Vec<(Weak<Session>, Arc<Base>)>>,
    closed: AtomicBool,
}

impl Sessions {
    /// Joins the connections that have the same sessions, or is the first of them, on the runtime of the caller.
    pub(crate) async fn open(config: ZkConfig) -> Result<Arc<Self>> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Unsupported, BACKEND)
                .with_message("there is no tokio runtime here")
                .with_hint("connect inside a tokio runtime")
                .caused_by(error)
        })?;
        let pool = Pool::join(&config, runtime);
        let (bases, closed) = (Mutex::default(), AtomicBool::new(false));
        let sessions = Arc::new(Self { config, pool, bases, closed });
        sessions.get().await?;
        Ok(sessions)
    }

    /// A session for something else than a lock, which is opened if there is none.
    pub(crate) async fn get(&self) -> Result<Arc<Session>> {
        self.get_for(Purpose::Any).await
    }

    /// A session with room for one more lock, whose node has a path of so many bytes; it is opened if there is none.
    pub(crate) async fn with_room(&self, bytes: usize) -> Result<Arc<Session>> {
        self.get_for(Purpose::Lock { bytes }).await
    }

    async fn get_for(&self, purpose: Purpose) -> Result<Arc<Session>> {
        self.check_open()?;
        let session = self.pool.get(purpose).await?;
        self.check_open()?;
        Ok(session)
    }

    /// The base of the tokens of a lock in this directory, which is kept until the session ends or this is closed.
    pub(crate) fn base(&self, session: &Arc<Session>, dir: &str) -> Arc<Base> {
        let (base, mut bases) = (session.base(dir), lock(&self.bases));
        if self.closed.load(Ordering::Acquire) || bases.iter().any(|(_, kept)| Arc::ptr_eq(kept, &base)) {
            return base;
        }
        bases.retain(|(session, _)| session.upgrade().is_some_and(|session| !session.has_ended()));
        bases.push((Arc::downgrade(session), Arc::clone(&base)));
        base
    }

    /// Leaves the sessions; those that are to be closed, as nobody else has them.
    pub(crate) fn close(&self) -> Vec<Arc<Session>> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        let to_close = self.pool.leave();
        if to_close.is_empty() {
            // Others go on with the sessions. Where nobody does, watches go without a request.
            lock(&self.bases).clear();
        }
        to_close
    }

    pub(crate) const fn config(&self) -> &ZkConfig {
        &self.config
    }

    /// Where the sessions live.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.pool.runtime
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(BACKEND)) } else { Ok(()) }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // A session that has locks goes with the last of them.
        drop(self.close());
    }
}

/// Sessions that several connections may have.
///
/// A session has a limited number of locks, and [watches](crate::watches) a limited number of bytes; a further one is opened
/// when all are full, and closed when it has had no lock for a while. A lock stays with its session. (That keeps its end small,
/// too: a server writes the paths of all ephemeral nodes of a session into the one transaction that ends it, which must not
/// exceed `jute.maxbuffer`, 1 MiB by default.)
#[derive(Debug)]
struct Pool {
    config: ZkConfig,
    runtime: Handle,
    slots: Mutex<Slots>,
    /// The warning about another session timeout than was asked for.
    warning: Once,
}

#[derive(Debug, Default)]
struct Slots {
    open: Vec<Slot>,
    /// The opening of a further one, for all who wait for it. It is a task of its own, so that nobody depends on whether
    /// another caller goes on.
    opening: Option<Opening>,
    /// How many connections have these sessions; none joins after the last one has left.
    users: usize,
    /// When the last opening failed, unless one has succeeded since.
    failed: Option<Instant>,
    /// Whether it was reported that a session has far more locks than it should.
    reported: bool,
    /// Whether a task closes the sessions that are not needed any more.
    swept: bool,
}

/// What a session is wanted for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Any,
    Lock { bytes: usize },
}

type Opening = Shared<BoxFuture<'static, Result<()>>>;

#[derive(Debug)]
struct Slot {
    session: Arc<Session>,
    /// Whether nobody had it at the last look.
    idle: bool,
}

impl Pool {
    /// The pool for this configuration, in which the caller has a share from now on.
    fn join(config: &ZkConfig, runtime: Handle) -> Arc<Self> {
        let Some(sharing) = config.sharing_key() else { return Self::new(config, runtime) };
        let mut pools = lock(&POOLS);
        pools.retain(|(_, _, pool)| pool.strong_count() > 0);
        let fitting = pools.iter().filter(|(other, id, _)| *other == sharing && *id == runtime.id());
        let joined = fitting.filter_map(|(_, _, pool)| pool.upgrade()).find(|pool| {
            let mut slots = pool.slots();
            let open = slots.users > 0;
            slots.users += usize::from(open);
            open
        });
        joined.unwrap_or_else(|| {
            let pool = Self::new(config, runtime);
            pools.push((sharing, pool.runtime.id(), Arc::downgrade(&pool)));
            pool
        })
    }

    fn new(config: &ZkConfig, runtime: Handle) -> Arc<Self> {
        let slots = Mutex::new(Slots { users: 1, ..Slots::default() });
        Arc::new(Self { config: config.clone(), runtime, slots, warning: Once::new() })
    }

    /// Gives up one share, and with the last one the sessions.
    fn leave(&self) -> Vec<Arc<Session>> {
        let mut slots = self.slots();
        slots.users -= 1;
        if slots.users > 0 {
            return Vec::new();
        }
        slots.open.drain(..).map(|slot| slot.session).collect()
    }

    /// The first session that has room, or a new one.
    async fn get(self: &Arc<Self>, purpose: Purpose) -> Result<Arc<Session>> {
        loop {
            let opening = {
                let mut slots = self.slots();
                if let Some(session) = slots.with_room(purpose, self.config.max_locks())? {
                    return Ok(session);
                }
                let retries = slots.failed.is_none_or(|failed| failed.elapsed() >= RETRY);
                if let Some(session) = slots.crowded() {
                    if retries {
                        slots.opening.get_or_insert_with(|| self.open());
                    }
                    return Ok(session);
                }
                slots.opening.get_or_insert_with(|| self.open()).clone()
            };
            let opened = opening.clone().await;
            // Done by the task as well, if it came to its end.
            self.slots().opening.take_if(|now| now.ptr_eq(&opening));
            if let Err(error) = opened {
                return self.slots().least_full().ok_or(error);
            }
        }
    }

    /// Opens a further session: not on the caller's runtime, which may be gone before the session is, and not undone
    /// with the caller.
    fn open(self: &Arc<Self>) -> Opening {
        let pool = Arc::clone(self);
        let task = self.runtime.spawn(async move {
            let session = Session::open(&pool.config, pool.runtime.clone()).await;
            let done = session.and_then(|session| pool.put(session));
            let mut slots = pool.slots();
            slots.opening = None;
            if done.is_err() {
                slots.note_failure();
            }
            done
        });
        let opened = task.map(|done| {
            done.unwrap_or_else(|error| {
                let gone = "the tokio runtime that the locks were connected on is gone";
                Err(unavailable(gone).caused_by(error))
            })
        });
        opened.boxed().shared()
    }

    fn put(self: &Arc<Self>, session: Arc<Session>) -> Result<()> {
        let (asked, given) = (self.config.requested_timeout(), session.timeout());
        if asked != given {
            self.warning.call_once(|| {
                tracing::warn!(
                    ?asked,
                    ?given,
                    "the server changed the session timeout to what its bounds allow"
                );
            });
        }
        let mut slots = self.slots();
        if slots.users == 0 {
            return Err(Error::closed(BACKEND));
        }
        slots.open.push(Slot { session, idle: false });
        (slots.failed, slots.reported) = (None, false);
        if slots.open.len() > 1 && !slots.swept {
            slots.swept = true;
            drop(self.runtime.spawn(sweep(Arc::downgrade(self))));
        }
        Ok(())
    }

    /// Closes the sessions that nobody had at two looks, but for one, and says whether more are left.
    fn close_idle(&self) -> bool {
        let mut slots = self.slots();
        let mut kept = 0;
        slots.open.retain_mut(|slot| {
            // Whoever has it has a reference; nobody gets another while we look.
            let idle = Arc::strong_count(&slot.session) == 1;
            let close = idle && slot.idle && kept > 0;
            (slot.idle, kept) = (idle, kept + usize::from(!close));
            !close
        });
        slots.swept = kept > 1;
        slots.swept
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        lock(&self.slots)
    }
}

async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(IDLE).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_idle()) {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    fn with_room(&mut self, purpose: Purpose, most: usize) -> Result<Option<Arc<Session>>> {
        if self.users == 0 {
            return Err(Error::closed(BACKEND));
        }
        self.open.retain(|slot| !slot.session.has_ended());
        let roomy = self.open.iter_mut().find(|slot| match purpose {
            Purpose::Any => true,
            // One path that is longer than all may be has a session of its own.
            Purpose::Lock { bytes } => {
                let nodes = slot.session.nodes();
                nodes == 0 || (nodes < most && slot.session.watches().has_room(bytes))
            }
        });
        if let Some(slot) = roomy {
            slot.idle = false;
            return Ok(Some(Arc::clone(&slot.session)));
        }
        Ok(None)
    }

    /// Where there should be no more locks, but no further session can be opened. What cannot be watched there is looked at
    /// now and then.
    fn least_full(&mut self) -> Option<Arc<Session>> {
        let open = self.open.iter_mut().filter(|slot| !slot.session.has_ended());
        let slot = open.min_by_key(|slot| (slot.session.watches().claimed(), slot.session.nodes()))?;
        slot.idle = false;
        Some(Arc::clone(&slot.session))
    }

    /// The one that a lock gets while further sessions cannot be opened: nobody waits for what has just failed.
    fn crowded(&mut self) -> Option<Arc<Session>> {
        if self.opening.is_none() {
            self.failed.take_if(|failed| failed.elapsed() >= CROWDED);
        }
        if self.failed.is_some() { self.least_full() } else { None }
    }

    /// Notes that no further session can be opened, and reports it: once when that begins, and once when a session has so
    /// many locks that its end is in danger.
    fn note_failure(&mut self) {
        let begins = self.failed.replace(Instant::now()).is_none();
        let Some(session) = self.least_full() else { return };
        let (locks, bytes) = (session.nodes(), session.watches().claimed());
        if begins {
            tracing::warn!(
                locks,
                "no further session can be opened; sessions get more locks than they should"
            );
        }
        if bytes > FAR_TOO_FULL && !mem::replace(&mut self.reported, true) {
            tracing::error!(
                locks,
                bytes,
                "the paths of the locks of one session come near to jute.maxbuffer, beyond which the servers cannot end it; \
                 let the servers accept more connections (maxClientCnxns)"
            );
        }
    }
}

/// The pools that others may join.
static POOLS: Mutex<Vec<(SharingKey, Id, Weak<Pool>)>> = Mutex::new(Vec::new());
/// Between two looks for sessions that nobody has.
const IDLE: Duration = Duration::from_secs(30);
/// For how long nobody waits for a further session after the opening of one has failed.
const CROWDED: Duration = Duration::from_secs(10);
/// When the next one is tried for meanwhile.
const RETRY: Duration = Duration::from_secs(1);
/// Half of what the servers accept by default in one transaction, and the end of a session is one.
const FAR_TOO_FULL: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionHandle;
    use lock_testkit::ZooKeeper;
    use std::pin::pin;
    use tokio::time::timeout;

    #[tokio::test]
    async fn sessions_beyond_the_first_are_closed_when_nobody_has_them() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(4));
        let sessions = Sessions::open(config.locks_per_session(1)).await.unwrap();
        let pool = &sessions.pool;
        let mut handles = Vec::new();
        for _ in 0..3 {
            handles.push(SessionHandle::new(&sessions.with_room(50).await.unwrap(), 50));
        }
        assert_eq!(pool.slots().open.len(), 3);
        assert!(pool.slots().swept);
        for _ in 0..3 {
            assert!(pool.close_idle(), "all are in use");
        }
        drop(handles.remove(1));
        assert!(pool.close_idle(), "one look is not enough");
        // Who gets it in between keeps it.
        handles.push(SessionHandle::new(&sessions.with_room(50).await.unwrap(), 50));
        assert!(pool.close_idle() && pool.close_idle());
        assert_eq!(pool.slots().open.len(), 3);
        let ids: Vec<_> = pool.slots().open.iter().map(|slot| slot.session.id()).collect();
        drop(handles.pop());
        assert!(pool.close_idle() && pool.close_idle());
        let left: Vec<_> = pool.slots().open.iter().map(|slot| slot.session.id()).collect();
        assert_eq!(left, [ids[0], ids[2]]);
        drop(handles);
        pool.close_idle();
        assert!(!pool.close_idle(), "one is left, for the next lock");
        assert_eq!(pool.slots().open.len(), 1);
    }

    #[tokio::test]
    async fn nobody_waits_for_callers_that_do_not_go_on() {
        let server = ZooKeeper::start().await.unwrap();
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(4));
        let sessions = Sessions::open(config.locks_per_session(1)).await.unwrap();
        let _full = SessionHandle::new(&sessions.with_room(50).await.unwrap(), 50);
        let (mut opens, mut waits) = (pin!(sessions.with_room(50)), pin!(sessions.with_room(50)));
        assert!(opens.as_mut().now_or_never().is_none() && waits.as_mut().now_or_never().is_none());
        let third = timeout(Duration::from_secs(20), sessions.with_room(50)).await;
        let third = SessionHandle::new(&third.expect("it needs neither of them").unwrap(), 50);
        let fourth = timeout(Duration::from_secs(20), sessions.with_room(50)).await.unwrap().unwrap();
        assert_ne!(third.id(), fourth.id());
        assert_eq!(opens.await.unwrap().id(), fourth.id());
    }
}
