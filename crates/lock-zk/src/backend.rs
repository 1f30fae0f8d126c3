//! The ZooKeeper backend.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::background::Background;
use lock_core::migration::MigrationTarget;
use lock_core::{
    AcquireRequest, Acquired, Backend, Capabilities, DoctorReport, LockName, LockState, Result, Token,
    runtime,
};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use crate::capabilities::capabilities;
use crate::config::ZkConfig;
use crate::error::BACKEND;
use crate::error::Fault;
use crate::nodes::holders_watch::watch_holders;
use crate::nodes::lock_path::LockPath;
use crate::nodes::token_base::TokenBase;
use crate::operate::break_lock::break_lock;
use crate::operate::doctor::examine;
use crate::operate::inspect::{inspect, list_locks};
use crate::poison::lock;
use crate::recipes::acquire::acquire;
use crate::recipes::recipe::ZkRecipe;
use crate::recipes::revoke::request_revocation;
use crate::sessions::paused_runtime::unless_paused;
use crate::sessions::pool_share::PoolShare;
use crate::sessions::session::Session;
use crate::wire::driver_process;

/// The ZooKeeper backend.
///
/// Processes get a lock in the order of their requests, and a release wakes only the next ones. A lock lasts as long as
/// the session of its holder; a guard is lost a quarter of the session timeout before a server may end the session. The
/// token is 16 times the id of the transaction that created the holder's node (its `czxid`), which grows for as long as the
/// ensemble keeps its data, plus what was [raised](lock_core::Guard::raise_token).
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
    share: Arc<PoolShare>,
    /// The directories of which it was logged that they have nodes without a sequence number.
    reported: Mutex<HashSet<String>>,
    /// The roll-backs of dropped acquisitions. Shared sessions outlive [`close`](Backend::close), and with them the nodes.
    cleanup: Background,
}

impl Zk {
    /// Opens a session; see [`ZkConfig::connect`], which returns [`Locks`](lock_core::Locks).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad option, a missing chroot, or servers
    /// of which none has a vote, [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable) when no server answers,
    /// [`ErrorKind::Denied`](lock_core::ErrorKind::Denied) when the servers refuse the credentials,
    /// [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported) in a child of a process that has used ZooKeeper before the
    /// fork.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a session that was just opened is closed again.
    pub async fn connect(config: ZkConfig) -> Result<Self> {
        config.check()?;
        runtime::current(BACKEND)?;
        if config.has_driver() {
            driver_process::check()?;
        }
        config.login.check_files(config.connect_limit()).await?;
        let share = PoolShare::open(config).await?;
        let capabilities = capabilities(share.config.recipe, share.get().await?.timeout);
        Ok(Self { capabilities, share, reported: Mutex::default(), cleanup: Background::default() })
    }

    pub(crate) const fn share(&self) -> &Arc<PoolShare> {
        &self.share
    }

    fn lock_path(&self, name: &LockName) -> Arc<LockPath> {
        let config = &self.share.config;
        let path = LockPath::new(&config.dir, name, config.layout);
        Arc::new(path.with_recipe(config.recipe).with_local_handovers(config.local_handovers))
    }

    async fn unless_paused<T, F>(&self, requests: impl FnOnce() -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        unless_paused(&self.share.pool.runtime, self.capabilities.lease.default_ttl(), requests).await
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        let lock = &self.lock_path(name);
        let look =
            |session: Arc<Session>, base: Arc<TokenBase>| async move { inspect(&session, &base, lock).await };
        let (state, unnumbered) = self.ask(lock, look).await?;
        self.report(lock, &unnumbered);
        Ok(state)
    }

    /// The state of a lock once it has other holders than these.
    async fn other_holders(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let lock = &self.lock_path(name);
        let look = |session: Arc<Session>, base: Arc<TokenBase>| async move {
            let watch = watch_holders(&session, lock).await?;
            let (state, _) = inspect(&session, &base, lock).await?;
            Ok((session, watch, state))
        };
        loop {
            let (session, watch, state) = self.ask(lock, look).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            watch.fired(&session).await;
        }
    }

    /// Logs, once for each directory, the nodes in it that are not in the queue.
    fn report(&self, path: &LockPath, unnumbered: &[String]) {
        let mut reported = lock(&self.reported);
        if let [first, others @ ..] = unnumbered
            && reported.insert(path.dir.clone())
        {
            let (dir, others) = (&path.dir, others.len());
            tracing::warn!(
                dir,
                first,
                others,
                "nodes without a sequence number are ignored in the directory of a lock; move them elsewhere"
            );
        }
    }

    /// Breaks the lock of all holders, or of the holder with this token only.
    async fn break_holders(&self, name: &LockName, only: Option<Token>) -> Result<bool> {
        let (lock, progress) = (&self.lock_path(name), &AsyncMutex::default());
        let break_it = |session: Arc<Session>, base: Arc<TokenBase>| async move {
            let only = only.map(|token| (&*base, token));
            break_lock(&session, lock, only, &mut *progress.lock().await).await
        };
        self.ask(lock, break_it).await?
    }

    async fn names(&self, prefix: &str) -> Result<Vec<LockName>> {
        let dir = &*self.share.config.dir;
        let list = |session: Arc<Session>| async move { list_locks(&session, dir, prefix).await };
        let names = self.share.ask(dir, list).await?;
        self.capabilities.check_listed(names.len()).map(|()| names)
    }

    async fn revoke(&self, name: &LockName) -> Result<bool> {
        let lock = &self.lock_path(name);
        self.ask(lock, |session, _| async move { request_revocation(&session, lock).await }).await
    }

    /// The answer of a session to requests about a lock.
    async fn ask<T: Send, F>(
        &self,
        lock: &LockPath,
        requests: impl Fn(Arc<Session>, Arc<TokenBase>) -> F + Send + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let with_base = |session: Arc<Session>| {
            let base = self.share.base(&session, &lock.dir);
            requests(session, base)
        };
        self.share.ask(&lock.dir, with_base).await
    }

    async fn examine(&self) -> Result<DoctorReport> {
        let (session, config) = (self.share.get().await?, &self.share.config);
        let findings = examine(&session, config).await.map_err(|fault| fault.on("/"))?;
        Ok(DoctorReport::new(findings))
    }
}

#[async_trait]
impl Backend for Zk {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let lock = self.lock_path(&request.name);
        self.unless_paused(|| acquire(&self.share, lock, request, &self.cleanup)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.unless_paused(|| self.state(name)).await
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        self.unless_paused(|| self.other_holders(name, seen)).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.unless_paused(|| self.break_holders(name, None)).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.unless_paused(|| self.break_holders(name, Some(token))).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.unless_paused(|| self.names(prefix)).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.unless_paused(|| self.revoke(name)).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.unless_paused(|| self.examine()).await
    }

    fn migration_target(&self) -> Option<&dyn MigrationTarget> {
        (self.share.config.recipe == ZkRecipe::Queue).then_some(self)
    }

    async fn settle(&self) {
        self.cleanup.settled().await;
    }

    async fn close(&self) -> Result<()> {
        let to_close = self.share.close();
        if to_close.is_empty() {
            // The sessions go on for others, and with them the nodes of acquisitions that nobody polls.
            for session in self.share.pool.sessions() {
                session.acquisitions.close(&session, &self.cleanup);
            }
            // What is not deleted in time is deleted in the background.
            let _ = timeout(self.capabilities.lease.default_ttl() / 2, self.cleanup.settled()).await;
        }
        let closing = to_close.into_iter().map(|session| async move { session.close().await });
        join_all(closing).await.into_iter().collect()
    }
}
