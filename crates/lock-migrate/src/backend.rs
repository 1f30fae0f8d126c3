//! A migration as a backend.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{AcquireRequest, Acquired, Backend, Capabilities};
use lock_core::{DoctorReport, ErrorKind, HolderInfo, LockMode, LockName, LockState, Result, Token};
use tokio::time::timeout;

use crate::acquire::acquire;
use crate::capabilities::capabilities;
use crate::config::MigrationConfig;
use crate::context::Context;
use crate::leases::shadow;
use crate::leases::shadow_counts::ShadowReport;
use crate::rungs::operator;
use crate::rungs::record::Record;
use crate::rungs::rung::Rung;

/// The locks of a fleet that moves from one store to another.
///
/// The rung of a name is chosen when a lock is acquired, and stays for that guard. `docs/MIGRATION.md` has the protocol.
#[derive(Debug)]
pub struct Migration {
    capabilities: Capabilities,
    context: Arc<Context>,
}

impl Migration {
    pub(crate) async fn open(
        config: MigrationConfig,
        from: Arc<dyn Backend>,
        to: Arc<dyn Backend>,
    ) -> Result<Self> {
        let context = Context::join(config, from, to).await?;
        context.keep_tasks();
        // Now that both are connected, as far as they are: a session timeout is negotiated.
        let capabilities = capabilities(&*context.from, &*context.to);
        Ok(Self { capabilities, context })
    }

    /// What the shadow locks of this process have measured so far.
    #[must_use]
    pub fn shadow(&self) -> ShadowReport {
        self.context.shadow.report(self.context.process.double_grants())
    }

    /// The record of the migration as this process knows it; none if it has not seen it yet.
    #[must_use]
    pub fn record(&self) -> Option<Arc<Record>> {
        self.context.process.record()
    }

    /// The rung on which this process acquires a lock next.
    #[must_use]
    pub fn rung(&self, name: &LockName) -> Rung {
        self.context.rung(name)
    }
}

#[async_trait]
impl Backend for Migration {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        acquire(&self.context, request).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.context.look(name).await.map(|look| look.state)
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        self.context.await_change(name, seen).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let Context { from, to, .. } = &*self.context;
        if self.context.rung(name) == Rung::New {
            return to.break_lock(name).await;
        }
        let old = match from.break_lock(name).await {
            Err(error) if error.kind() == ErrorKind::Moved => return to.break_lock(name).await,
            broken => broken?,
        };
        if self.context.rung(name) < Rung::Dual {
            return Ok(old);
        }
        Ok(to.break_lock(name).await? || old)
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let Context { from, to, .. } = &*self.context;
        let [old, new] = self.context.look(name).await?.tokens_of(token);
        let mut was_held = false;
        // Each store compares: a later holder has another token on both.
        if let Some(old) = old {
            was_held |= from.break_lock_if(name, old).await?;
        }
        if let Some(new) = new {
            was_held |= to.break_lock_if(name, new).await?;
        }
        Ok(was_held)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let Context { from, to, .. } = &*self.context;
        if self.context.process.is_sealed() {
            return to.list(prefix).await;
        }
        let (old, new) = tokio::try_join!(from.list(prefix), to.list(prefix))?;
        let new = new.into_iter().filter(|name| !is_reserved(name));
        let names: BTreeSet<_> = old.into_iter().chain(new).collect();
        self.capabilities.check_listed(names.len()).map(|()| names.into_iter().collect())
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        let Context { from, to, .. } = &*self.context;
        if self.context.process.is_sealed() {
            return to.doctor().await;
        }
        let (old, new) = tokio::try_join!(from.doctor(), to.doctor())?;
        Ok(DoctorReport::new(old.findings.into_iter().chain(new.findings).collect()))
    }

    async fn settle(&self) {
        self.context.cleanup.settled().await;
        self.context.from.settle().await;
        self.context.to.settle().await;
    }

    async fn close(&self) -> Result<()> {
        // The new store deletes its locks with the session. Those of the old one would last for their ttl.
        let ended = async {
            self.context.held.end().await;
            self.context.cleanup.settled().await;
        };
        // What does not answer expires.
        let _ = timeout(CLOSE_LIMIT, ended).await;
        let (old, new) = tokio::join!(self.context.from.close(), self.context.to.close());
        old.and(new)
    }
}

/// The state of a lock, and those of the stores that it is made of.
pub(crate) struct Look {
    pub(crate) state: LockState,
    pub(crate) old: Option<LockState>,
    pub(crate) new: Option<LockState>,
}

impl Look {
    fn of_new(new: LockState, old: Option<LockState>) -> Self {
        Self { state: new.clone(), old, new: Some(new) }
    }

    /// The tokens on the old store and on the new one of the holder that is shown with this token.
    ///
    /// One of several sharers is known on one store only. It notices the loss there, and gives the other lock back.
    fn tokens_of(&self, shown: Token) -> [Option<Token>; 2] {
        match (self.old.as_ref().filter(|old| old.moved.is_none()), &self.new) {
            (None, _) => [None, Some(shown)],
            (Some(_), None) => [Some(shown), None],
            (Some(old), Some(new)) => match holder_of_both(old, new) {
                Some([old, new]) if old.token.max(new.token) == Some(shown) => [old.token, new.token],
                _ => [Some(shown), None],
            },
        }
    }
}

/// The holder that has the lock on both stores, as each of them shows it.
fn holder_of_both<'a>(old: &'a LockState, new: &'a LockState) -> Option<[&'a HolderInfo; 2]> {
    match (&old.holders[..], &new.holders[..]) {
        // Another owner there waits for the old lock.
        ([old], [new]) if old.mode == LockMode::Exclusive && old.owner() == new.owner() => Some([old, new]),
        _ => None,
    }
}

impl Context {
    pub(crate) async fn look(&self, name: &LockName) -> Result<Look> {
        let Self { from, to, .. } = self;
        if self.rung(name) == Rung::New {
            return Ok(Look::of_new(to.inspect(name).await?, None));
        }
        let old = from.inspect(name).await?;
        if old.moved.is_some() {
            return Ok(Look::of_new(to.inspect(name).await?, Some(old)));
        }
        if self.rung(name) < Rung::Dual {
            return Ok(Look { state: old.clone(), old: Some(old), new: None });
        }
        // Waiters of both wait on the new store; the holder, whoever it is, has the lock of the old one.
        let new = to.inspect(name).await?;
        let mut state = old.clone();
        if let Some([old, new]) = holder_of_both(&old, &new) {
            state.holders[0].token = old.token.max(new.token);
            // By which the lease of both goes.
            state.holders[0].id = new.id;
        }
        state.token = state.token.max(new.token);
        state.waiters += new.waiters;
        state.blocker = state.blocker.or_else(|| new.blocker.clone());
        state.queue.extend(new.queue.iter().cloned());
        Ok(Look { state, old: Some(old), new: Some(new) })
    }
}

/// How long a close waits for the locks of guards that are still there.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Whether the migration itself uses this name.
fn is_reserved(name: &LockName) -> bool {
    [shadow::PREFIX, operator::PREFIX].iter().any(|prefix| name.as_str().starts_with(prefix))
}
