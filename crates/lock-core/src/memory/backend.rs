//! The store as a backend: requests, inspection, breaking, closing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::config::{BACKEND, MemoryConfig};
use super::lease::MemoryLease;
use super::store::{Answer, Grant, Moment, Store};
use crate::record::Record;
use crate::renewal::{Renewer, Terms};
use crate::seam::backend::Support;
use crate::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Error, LeaseKind, LockName, LockState,
    LossReason, OwnerId, Result, Token,
};

/// The memory backend. Clones share the locks.
///
/// It has every capability but one: other processes do not see its locks. Waiters of all modes wait in one
/// queue and get the lock in its order, sharers together. A reader waits for a writer ahead of it, so
/// nobody starves.
///
/// # Examples
///
/// ```
/// # use lock_core::{Locks, Memory, MemoryConfig};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let memory = Memory::open(MemoryConfig::new())?;
/// let (one, two) = (Locks::new(memory.clone()), Locks::new(memory));
/// let guard = one.mutex("orders/42").acquire().await?;
/// assert!(two.mutex("orders/42").try_acquire().await?.is_none());
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    capabilities: Capabilities,
    ttl: Duration,
    store: Arc<Store>,
    renewer: Arc<Renewer<Arc<Store>>>,
    closed: CancellationToken,
}

impl Memory {
    /// Opens the store.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when the time to live is too short or too long.
    pub fn open(config: MemoryConfig) -> Result<Self> {
        let lease = LeaseKind::Ttl { default: config.ttl, min: MemoryConfig::MIN_TTL };
        let mut capabilities = Capabilities::new(BACKEND, lease);
        capabilities.check_ttl(config.ttl, MemoryConfig::MIN_TTL)?;
        (capabilities.cross_process, capabilities.fifo, capabilities.counts_waiters) = (false, true, true);
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        capabilities.revocation = Support::Yes;
        capabilities.names_sharers = true;
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        let store = match config.name {
            Some(name) => Store::named(name, &config.clock),
            None => Store::new(&config.clock),
        };
        let renewer = Arc::new(Renewer::new(Arc::clone(&store), store.clock.clone()));
        Ok(Self { capabilities, ttl: config.ttl, store, renewer, closed: CancellationToken::new() })
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.check_open()?;
        let ttl = request.lease.ttl.unwrap_or(self.ttl);
        let ttl = request.lease.max_hold.map_or(ttl, |hold| ttl.min(hold));
        loop {
            let start = self.store.clock.now();
            let mut entry = match self.store.request(&request, ttl) {
                Answer::Granted(owner, grant) => return Ok(self.lease(&request, owner, grant, start, ttl)),
                Answer::Busy => return Ok(Acquired::Busy),
                Answer::Queued(entry, ahead) => {
                    request.report_position(ahead);
                    entry
                }
            };
            let granted = tokio::select! {
                biased;
                // Dropping the entry releases what was granted by then.
                () = self.closed.cancelled() => return Err(Error::closed(BACKEND)),
                granted = entry.granted(request.wait) => granted,
            };
            match granted {
                // It was not polled for longer than the lease lasts.
                Some(grant) if !grant.cell.validity().is_valid() => {}
                Some(grant) => {
                    return Ok(self.lease(&request, entry.owner, grant, self.store.clock.now(), ttl));
                }
                None => return Ok(Acquired::Busy),
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.check_open()?;
        Ok(self.store.table().state(name, &self.store.clock))
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let changed = self.store.changed();
        loop {
            let mut change = pin!(changed.notified());
            // Registered before the look, so that no change is missed.
            change.as_mut().enable();
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            tokio::select! {
                () = change => {}
                () = self.store.clock.sleep_until(self.store.next_expiry(name)) => {}
            }
        }
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.check_open()?;
        Ok(self.remove(name, |_| true))
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.check_open()?;
        Ok(self.remove(name, |held| held == token))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.check_open()?;
        let mut table = self.store.table();
        let matches = |name: &&LockName| name.as_str().starts_with(prefix);
        let mut names: Vec<_> = table.locks.keys().filter(matches).cloned().collect();
        names.retain(|name| {
            table.expire(name, &self.store.clock);
            table.locks.contains_key(name)
        });
        self.capabilities.check_listed(names.len()).map(|()| names)
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.check_open()?;
        let mut table = self.store.table();
        table.expire(name, &self.store.clock);
        let Some(record) = table.locks.get(name) else { return Ok(false) };
        record.holders().iter().for_each(|holder| holder.party.request_revocation());
        Ok(!record.holders().is_empty())
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        self.renewer.stop_all();
        Ok(())
    }
}

impl Memory {
    fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() { Err(Error::closed(BACKEND)) } else { Ok(()) }
    }

    fn remove(&self, name: &LockName, which: impl Fn(Token) -> bool) -> bool {
        let broken = |record: &mut Record<_>, now: &mut Moment<'_>| record.break_lock(now, which);
        self.store.table().change(name, &self.store.clock, LossReason::Removed, broken).unwrap_or(false)
    }

    fn lease(
        &self,
        request: &AcquireRequest,
        owner: OwnerId,
        grant: Grant,
        start: BootInstant,
        ttl: Duration,
    ) -> Acquired {
        let key = (request.name.clone(), owner);
        let terms = Terms::of(&request.lease, ttl, start);
        Acquired::Held(Box::new(MemoryLease {
            store: Arc::clone(&self.store),
            name: request.name.clone(),
            owner,
            token: grant.token,
            validity: grant.cell.validity(),
            renewal: self.renewer.add(key, terms, grant.cell.clone()),
            cell: grant.cell,
            revocation: grant.revocation,
        }))
    }
}
