//! The ZooKeeper backend.

use std::collections::HashSet;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::background::Background;
use lock_core::{
    AcquireRequest, Acquired, Backend, Capabilities, DoctorReport, Error, ErrorKind, LockName, LockState,
    Mode, Result, Token, Wait, runtime,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client as zk;
use zookeeper_client::Stat;

use crate::acquire::{Attempt, attempt, list};
use crate::capabilities::{capabilities, limits};
use crate::deadline::Deadline;
use crate::doctor::examine;
use crate::error::{Fault, unavailable};
use crate::inspect::{Seen, inspect, token_unknown};
use crate::layout::{LockPath, name_of};
use crate::lease::{REVOKE, card_with_wish};
use crate::node::{CreatedNode, Gone, delete_once};
use crate::queue::{Contender, reader_in_place_of};
use crate::session::Session;
use crate::session_pool::Sessions;
use crate::token::Base;
use crate::{BACKEND, ZkConfig, ZkRecipe};

/// The ZooKeeper backend.
///
/// Processes get a lock in the order in which they asked, and a release wakes only the next ones. A lock lasts as
/// long as the session of its holder; a guard stops believing in it a quarter of the session timeout before a server
/// may end the session. The token is the number of the transaction that made the holder's node (its `czxid`), which
/// grows for as long as the ensemble keeps its data, and what was [raised](lock_core::Guard::raise_token) on top.
///
/// Who waits for others does so until the deadline, and no longer. One that is shorter than it takes to ask is overrun, by
/// half a second at most once the first answer has come, so that a lock that nobody has is to be had all the same.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> lock_core::Result<()> {
/// use lock_core::Locks;
/// use lock_zk::{Zk, ZkConfig};
///
/// let zk = Zk::connect(ZkConfig::from_url("zk://a:2181,b:2181,c:2181/app")?).await?;
/// let locks = Locks::new(zk); // as `ZkConfig::connect` does
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Zk {
    capabilities: Capabilities,
    sessions: Arc<Sessions>,
    /// The directories of which it was told that they hold nodes of others.
    strangers: Mutex<HashSet<String>>,
    /// The roll-backs of dropped acquisitions. Sessions that are shared do not end with [`close`](Backend::close), and so
    /// the nodes would stay.
    cleanup: Background,
}

impl Zk {
    /// Opens a session; see [`ZkConfig::connect`], which gives [`Locks`](lock_core::Locks) at once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad option, a missing chroot, or servers of which none has a vote,
    /// [`ErrorKind::Unavailable`] when no server answers, [`ErrorKind::Denied`] when they refuse the credentials.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, a session that was just opened is closed again.
    pub async fn connect(config: ZkConfig) -> Result<Self> {
        config.check()?;
        runtime::current(BACKEND)?;
        let sessions = Sessions::open(config).await?;
        let timeout = sessions.get().await?.timeout();
        let capabilities = capabilities(sessions.config().lock_recipe(), timeout);
        Ok(Self { capabilities, sessions, strangers: Mutex::default(), cleanup: Background::default() })
    }

    fn lock_path(&self, name: &LockName) -> Arc<LockPath> {
        let config = self.sessions.config();
        let lock = LockPath::new(config.locks_dir(), name, config.node_layout());
        Arc::new(lock.with_recipe(config.lock_recipe()))
    }

    /// Tells once for each directory what is in it that has no place in the queue.
    fn report(&self, lock: &LockPath, strangers: &[String]) {
        let mut reported = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let [first, others @ ..] = strangers
            && reported.insert(lock.dir.clone())
        {
            let (dir, others) = (&lock.dir, others.len());
            tracing::warn!(
                dir,
                first,
                others,
                "nodes without a sequence number are not looked at; move them elsewhere"
            );
        }
    }

    async fn take(&self, request: AcquireRequest) -> Result<Acquired> {
        let lock = self.lock_path(&request.name);
        let chroot = self.sessions.config().chroot_path();
        let (mut outage, deadline) = (Outage::default(), Deadline::of(request.wait));
        loop {
            let session = match outage.end(&self.sessions, &lock, request.wait, &deadline).await {
                Ok(Some(session)) => session,
                Ok(None) => return Ok(Acquired::Busy),
                Err(error) => return Err(error),
            };
            limits(session.timeout()).check(request.lease)?;
            let base = self.sessions.base(&session, &lock.dir);
            match attempt(&session, &base, &lock, chroot, &request, &deadline, &self.cleanup).await? {
                Attempt::Held(lease) => return Ok(Acquired::Held(lease)),
                Attempt::Busy => return Ok(Acquired::Busy),
                Attempt::StartOver => outage.begin(&session),
            }
        }
    }

    /// The answer, unless the runtime of the sessions is paused: it neither answers then nor opens a session.
    async fn unless_paused<T, F>(&self, ask: impl FnOnce() -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let runtime = self.sessions.runtime();
        if !may_be_paused(runtime) {
            return ask().await;
        }
        // Boxed, as it is rare.
        let answer = Box::pin(ask());
        tokio::select! {
            answer = answer => answer,
            () = paused(runtime, self.capabilities.lease.default_ttl()) => {
                Err(unavailable("the tokio runtime of the session is paused, which ends the session"))
            }
        }
    }

    /// A session, and the error for one that does not answer about this lock.
    async fn session(&self, lock: &LockPath) -> Result<(Arc<Session>, Error)> {
        let session = self.sessions.get().await?;
        let silent = unavailable(&format!("no answer about {} within {:?}", lock.dir, session.patience()));
        Ok((session, silent))
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        let lock = self.lock_path(name);
        loop {
            let (session, silent) = self.session(&lock).await?;
            let base = self.sessions.base(&session, &lock.dir);
            match timeout(session.patience(), inspect(&session, &base, &lock)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::SessionEnded)) => {}
                Ok(answer) => {
                    let (state, strangers) = answer.map_err(|fault| fault.on(&lock.dir))?;
                    self.report(&lock, &strangers);
                    return Ok(state);
                }
            }
        }
    }

    async fn break_all(&self, name: &LockName) -> Result<bool> {
        let lock = self.lock_path(name);
        let mut broken = None;
        loop {
            let (session, silent) = self.session(&lock).await?;
            match timeout(session.patience(), break_lock(&session, &lock, None, &mut broken)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::SessionEnded)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&lock.dir))?,
            }
        }
    }

    async fn break_one(&self, name: &LockName, token: Token) -> Result<bool> {
        let lock = self.lock_path(name);
        let mut broken = None;
        loop {
            let (session, silent) = self.session(&lock).await?;
            let base = self.sessions.base(&session, &lock.dir);
            let only = Some((&*base, token));
            match timeout(session.patience(), break_lock(&session, &lock, only, &mut broken)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::SessionEnded)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&lock.dir))?,
            }
        }
    }

    async fn names(&self, prefix: &str) -> Result<Vec<LockName>> {
        let base = self.sessions.config().locks_dir();
        loop {
            let session = self.sessions.get().await?;
            let children = session.retry_until_definite(|| session.children(base));
            match timeout(session.patience(), children).await {
                Err(_) => {
                    return Err(unavailable(&format!(
                        "no answer about {base} within {:?}",
                        session.patience()
                    )));
                }
                Ok(Err(Fault::SessionEnded)) => {}
                Ok(Err(fault)) if fault.is_no_node() => return Ok(Vec::new()),
                Ok(children) => {
                    let children = children.map_err(|fault| fault.on(base))?;
                    let names = children.iter().filter_map(|child| name_of(base, child));
                    let names: Vec<_> = names.filter(|name| name.as_str().starts_with(prefix)).collect();
                    return self.capabilities.check_listed(names.len()).map(|()| names);
                }
            }
        }
    }

    async fn ask_holders(&self, name: &LockName) -> Result<bool> {
        let lock = self.lock_path(name);
        loop {
            let (session, silent) = self.session(&lock).await?;
            match timeout(session.patience(), request_revocation(&session, &lock)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::SessionEnded)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&lock.dir)),
            }
        }
    }

    async fn examine(&self) -> Result<DoctorReport> {
        let (session, config) = (self.sessions.get().await?, self.sessions.config());
        let findings = examine(&session, config).await.map_err(|fault| fault.on("/"))?;
        Ok(DoctorReport::new(findings))
    }
}

/// Whether this runtime may run only now and then: one of one thread, from which we are not called.
fn may_be_paused(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
        && Handle::try_current().is_ok_and(|here| here.id() != runtime.id())
}

/// Waits until a task of this runtime does not get its turn for this long.
async fn paused(runtime: &Handle, patience: Duration) {
    while timeout(patience, runtime.spawn(async {})).await.is_ok() {
        sleep(patience).await;
    }
}

#[async_trait]
impl Backend for Zk {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.unless_paused(|| self.take(request)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.unless_paused(|| self.state(name)).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.unless_paused(|| self.break_all(name)).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.unless_paused(|| self.break_one(name, token)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.unless_paused(|| self.names(prefix)).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.unless_paused(|| self.ask_holders(name)).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.unless_paused(|| self.examine()).await
    }

    async fn settle(&self) {
        self.cleanup.settled().await;
    }

    async fn close(&self) -> Result<()> {
        let farewells = self.sessions.close().into_iter().map(|session| async move { session.close().await });
        join_all(farewells).await.into_iter().collect()
    }
}

/// The loss of the session while a lock is waited for.
#[derive(Debug, Default)]
struct Outage {
    /// Until when a new session is tried for.
    until: Option<Instant>,
    count: u32,
}

impl Outage {
    /// It began with the end of this session, unless that goes on.
    fn begin(&mut self, session: &Session) {
        if session.has_ended() {
            self.count += 1;
            self.until = Some(Instant::now() + session.timeout());
        }
    }

    /// A session, or nothing when the time for waiting is over.
    async fn end(
        &self,
        sessions: &Sessions,
        lock: &LockPath,
        wait: Wait,
        deadline: &Deadline,
    ) -> Result<Option<Arc<Session>>> {
        if deadline.has_passed() {
            return Ok(None);
        }
        if wait.is_expired() && self.count > 1 {
            return Err(unavailable("the session ended again and again"));
        }
        deadline.keep(pin!(self.session(sessions, lock))).await.transpose()
    }

    async fn session(&self, sessions: &Sessions, lock: &LockPath) -> Result<Arc<Session>> {
        let bytes = lock.node_bytes();
        let Some(until) = self.until else { return sessions.with_room(bytes).await };
        loop {
            let session = timeout_at(until, sessions.with_room(bytes)).await;
            match session.unwrap_or_else(|_| Err(unavailable("no new session could be opened in time"))) {
                Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < until => {
                    tracing::debug!(%error, "no new session yet");
                    sleep(RECONNECT_PAUSE).await;
                }
                session => return session,
            }
        }
    }
}

/// What a look at a lock showed.
#[derive(Debug, Default)]
pub(crate) struct Contenders {
    pub(crate) holders: Vec<ContenderNode>,
    pub(crate) waiters: Vec<ContenderNode>,
    /// What else is in its directory.
    pub(crate) strangers: Vec<String>,
}

/// A node of somebody who holds the lock, or waits for it.
#[derive(Debug)]
pub(crate) struct ContenderNode {
    pub(crate) path: String,
    pub(crate) mode: Mode,
}

pub(crate) async fn look(session: &Session, lock: &LockPath) -> Result<Contenders, Fault> {
    if let ZkRecipe::Ephemeral(_) = lock.recipe {
        let stat = session.retry_until_definite(|| session.stat(&lock.dir)).await?;
        let alone = |_| ContenderNode { path: lock.dir.clone(), mode: Mode::Exclusive };
        return Ok(Contenders { holders: stat.map(alone).into_iter().collect(), ..Contenders::default() });
    }
    let queue = list(session, lock).await?.unwrap_or_default();
    let (holders, waiters) = queue.contenders.split_at(queue.holders().len());
    let contending = |all: &[Contender]| {
        let one = |one: &Contender| ContenderNode { path: lock.child(&one.name), mode: one.mode };
        all.iter().map(one).collect()
    };
    Ok(Contenders { holders: contending(holders), waiters: contending(waiters), strangers: queue.strangers })
}

/// The holders that a lock is taken from.
#[derive(Debug)]
struct Broken {
    /// Whether there was nobody to take it from.
    nobody: bool,
    /// Those whose end is not known.
    left: Vec<Holding>,
    /// Whether a deletion of the last of them may have reached a server.
    sent: bool,
    /// Whether somebody held the lock until then.
    held: bool,
}

/// Deletes the nodes of those who hold the lock at one look, and of nobody else; `only` of the one with this token.
async fn break_lock(
    session: &Session,
    lock: &LockPath,
    only: Option<(&Base, Token)>,
    broken: &mut Option<Broken>,
) -> Result<Result<bool>, Fault> {
    loop {
        let now = match (&mut *broken, only) {
            (Some(broken), _) => broken,
            (None, None) => broken.insert(Broken::look(session, lock).await?),
            (None, Some((base, token))) => match Broken::find(session, base, lock, token).await? {
                Ok(found) => broken.insert(found),
                Err(error) => return Ok(Err(error)),
            },
        };
        let nobody = now.nobody;
        now.end(session, lock).await?;
        if nobody || now.held {
            return Ok(Ok(now.held));
        }
        // All of them had released it just now, or become readers, and there are others who hold it.
        *broken = None;
    }
}

/// The node of a holder.
#[derive(Debug)]
struct Holding {
    node: CreatedNode,
    /// Whose node it is.
    session: i64,
}

impl Broken {
    async fn look(session: &Session, lock: &LockPath) -> Result<Self, Fault> {
        let mut left = Vec::new();
        let holders = look(session, lock).await?.holders;
        let nobody = holders.is_empty();
        for holder in holders {
            left.extend(Holding::at(session, holder.path).await?);
        }
        Ok(Self { nobody, left, sent: false, held: false })
    }

    /// Looks for the holder with this token.
    async fn find(
        session: &Session,
        base: &Base,
        lock: &LockPath,
        token: Token,
    ) -> Result<Result<Self, Error>, Fault> {
        let (mut left, mut unknown) = (Vec::new(), false);
        for holder in look(session, lock).await?.holders {
            let Some(seen) = Seen::at(session, holder.path).await? else { continue };
            let Some(origin) = seen.origin(lock) else {
                unknown = true;
                continue;
            };
            match base.token(session, origin.czxid).await {
                Ok(its) if its == token => left.extend(Holding::of(seen.path, &seen.stat)),
                Ok(_) => {}
                Err(_) if session.has_ended() => return Err(Fault::SessionEnded),
                Err(error) => return Ok(Err(error)),
            }
        }
        if left.is_empty() && unknown {
            return Ok(Err(token_unknown(lock, token)));
        }
        Ok(Ok(Self { nobody: left.is_empty(), left, sent: false, held: false }))
    }

    async fn end(&mut self, session: &Session, lock: &LockPath) -> Result<(), Fault> {
        while let Some(holder) = self.left.last() {
            let retried = mem::replace(&mut self.sent, true);
            let gone = match delete_once(session, lock, &holder.node, retried).await {
                Ok(gone) => gone,
                Err(Fault::Unknown(_)) => {
                    sleep(RECONNECT_PAUSE).await;
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            // The deletion before may have been lost, and the node gone as its owner became a reader.
            let reader = if retried { holder.as_reader(session, lock).await? } else { None };
            self.held |= gone == Gone::Now && reader.is_none();
            self.left.pop();
            self.left.extend(reader);
            self.sent = false;
        }
        Ok(())
    }
}

impl Holding {
    /// What is at this path.
    async fn at(session: &Session, path: String) -> Result<Option<Self>, Fault> {
        let stat = session.retry_until_definite(|| session.stat(&path)).await?;
        Ok(stat.and_then(|stat| Self::of(path, &stat)))
    }

    fn of(path: String, stat: &Stat) -> Option<Self> {
        let digits = path.len();
        let node = CreatedNode::at(path, digits, stat.czxid)?;
        Some(Self { node, session: stat.ephemeral_owner })
    }

    /// The node of the same holder that has taken the place of this one, if it was a writer's.
    async fn as_reader(&self, session: &Session, lock: &LockPath) -> Result<Option<Self>, Fault> {
        let name = self.node.name();
        let reader = Some(name).filter(|_| lock.recipe == ZkRecipe::Queue).and_then(reader_in_place_of);
        let Some(reader) = reader else { return Ok(None) };
        let dir = self.node.path.strip_suffix(name).unwrap_or_default();
        let there = Self::at(session, format!("{dir}{reader}")).await?;
        Ok(there.filter(|there| there.session == self.session))
    }
}

/// Asks the holder with this node to give up the lock.
///
/// Where names come again, its card is all by which an owner who missed the answer to the creation knows the node, so
/// the wish is added to it. Everywhere else it is written over the card, as Curator's holders expect it.
async fn wish(session: &Session, lock: &LockPath, path: &str) -> Result<(), Fault> {
    if lock.is_unique() {
        return session.retry_until_definite(|| session.set_data(path, REVOKE, None)).await.map(drop);
    }
    loop {
        let (data, stat) = session.retry_until_definite(|| session.data(path)).await?;
        let data = card_with_wish(&data).unwrap_or_else(|| REVOKE.to_vec());
        let written =
            session.retry_until_definite(|| session.set_data(path, &data, Some(stat.version))).await;
        match written {
            // Somebody else wrote it, or the answer was lost.
            Err(Fault::Refused(zk::Error::BadVersion)) => {}
            written => return written.map(drop),
        }
    }
}

/// Asks all holders to give up the lock.
async fn request_revocation(session: &Session, lock: &LockPath) -> Result<bool, Fault> {
    let ask = |holder: ContenderNode| async move { wish(session, lock, &holder.path).await };
    loop {
        let contenders = look(session, lock).await?;
        let nobody = contenders.holders.is_empty();
        let mut held = false;
        for asked in join_all(contenders.holders.into_iter().map(ask)).await {
            match asked {
                Ok(()) => held = true,
                // It has just released the lock, or has become a reader.
                Err(fault) if fault.is_no_node() => {}
                Err(fault) => return Err(fault),
            }
        }
        if nobody || held {
            return Ok(held);
        }
    }
}

const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
