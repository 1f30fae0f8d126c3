//! The table of locks: holders, waiters and tokens.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};

use crate::renewal::{Due, Renew, Renewed};
use crate::{
    AcquireRequest, BootInstant, Clock, Holder, HolderInfo, LockName, LossReason, Mode, OwnerId, OwnerInfo,
    Revocation, RevocationCell, Token, ValidityCell, Wait, WaiterInfo,
};

/// The locks of one store.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) clock: Clock,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) locks: HashMap<LockName, Lock>,
    pub(super) tokens: Tokens,
    /// Notified when a lock has other holders, or a hold another end.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct Tokens {
    last: u64,
    /// Whether the store can be opened again by its name.
    named: bool,
}

#[derive(Debug, Default)]
pub(super) struct Lock {
    /// One exclusive hold, or several of the same mode, the oldest first.
    pub(super) holds: Vec<Hold>,
    pub(super) waiters: VecDeque<Waiter>,
}

/// What one holder has.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    info: Arc<OwnerInfo>,
    pub(super) token: Token,
    since: SystemTime,
    expires: BootInstant,
    cell: ValidityCell,
    pub(super) revocation: RevocationCell,
}

#[derive(Debug)]
pub(super) struct Waiter {
    owner: OwnerId,
    mode: Mode,
    info: Arc<OwnerInfo>,
    since: SystemTime,
    ttl: Duration,
    grant: oneshot::Sender<Grant>,
}

/// What a new holder gets.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) cell: ValidityCell,
    pub(super) revocation: Revocation,
}

/// The last token of all named stores: a store that is opened again continues from there.
static LAST_OF_NAMED: AtomicU64 = AtomicU64::new(0);
static NAMED: LazyLock<Mutex<HashMap<String, Weak<Store>>>> = LazyLock::new(Mutex::default);

/// The answer to a request.
pub(super) enum Answer {
    Granted(OwnerId, Grant),
    Busy,
    /// Queued behind this number of holders and waiters.
    Queued(QueueEntry, usize),
}

/// The place of a waiter in the queue. Dropping it leaves the queue, and releases what was granted meanwhile.
pub(super) struct QueueEntry {
    store: Arc<Store>,
    name: LockName,
    pub(super) owner: OwnerId,
    grant: oneshot::Receiver<Grant>,
    taken: bool,
}

impl QueueEntry {
    /// Waits for the grant; `None` at the end of the wait.
    pub(super) async fn granted(&mut self, wait: Wait) -> Option<Grant> {
        let changed = self.store.changed();
        loop {
            let mut change = pin!(changed.notified());
            change.as_mut().enable();
            let expires = self.store.next_expiry(&self.name);
            tokio::select! {
                biased;
                grant = &mut self.grant => {
                    self.taken = grant.is_ok();
                    return grant.ok();
                }
                () = change => {}
                () = self.store.clock.sleep_until(expires) => self.store.table().expire(&self.name, &self.store.clock),
                () = end_of(wait) => return None,
            }
        }
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if !self.taken {
            self.store.table().remove(&self.name, self.owner, &self.store.clock);
        }
    }
}

async fn end_of(wait: Wait) {
    match wait {
        Wait::Never => {}
        Wait::Until(deadline) => tokio::time::sleep_until(deadline).await,
        Wait::Forever => std::future::pending().await,
    }
}

impl Store {
    pub(super) fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), table: Mutex::default() })
    }

    /// The store of this name, which all users of the name share.
    pub(super) fn named(name: String, clock: &Clock) -> Arc<Self> {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|_, store| store.strong_count() > 0);
        named.get(&name).and_then(Weak::upgrade).unwrap_or_else(|| {
            // Pairs with the drop of the last handle of a store: its last token is visible from here on.
            fence(Ordering::Acquire);
            let store = Self::new(clock);
            store.table().tokens = Tokens { last: LAST_OF_NAMED.load(Ordering::Relaxed), named: true };
            named.insert(name, Arc::downgrade(&store));
            store
        })
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the lock, or queues the request if it waits.
    pub(super) fn request(self: &Arc<Self>, request: &AcquireRequest, ttl: Duration) -> Answer {
        let mut table = self.table();
        table.expire(&request.name, &self.clock);
        let open = table.locks.get(&request.name).is_none_or(|lock| lock.is_open_to(request.mode));
        if !open && request.wait.is_expired() {
            return Answer::Busy;
        }
        let (sender, mut grant) = oneshot::channel();
        let (owner, mode, info) = (OwnerId::random(), request.mode, Arc::clone(&request.owner));
        let since = SystemTime::now();
        let lock = table.locks.entry(request.name.clone()).or_default();
        lock.waiters.push_back(Waiter { owner, mode, info, since, ttl, grant: sender });
        table.grant_next(&request.name, &self.clock);
        if let Ok(grant) = grant.try_recv() {
            return Answer::Granted(owner, grant);
        }
        let (store, name) = (Arc::clone(self), request.name.clone());
        let ahead = table.locks.get(&name).map_or(0, |lock| lock.holds.len() + lock.waiters.len() - 1);
        Answer::Queued(QueueEntry { store, name, owner, grant, taken: false }, ahead)
    }

    /// Notified when a lock has other holders, or a hold another end.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.table().changed)
    }

    /// When the next hold of this lock expires.
    pub(super) fn next_expiry(&self, name: &LockName) -> BootInstant {
        let table = self.table();
        let holds = table.locks.get(name).into_iter().flat_map(|lock| &lock.holds);
        holds.map(|hold| hold.expires).min().unwrap_or(BootInstant::NEVER)
    }

    fn renew_one(&self, name: &LockName, owner: OwnerId, ttl: Duration) -> Renewed {
        let mut table = self.table();
        table.expire(name, &self.clock);
        match table.hold_mut(name, owner) {
            Some(hold) => {
                hold.expires = self.clock.now() + ttl;
                let until = hold.expires;
                table.changed.notify_waiters();
                Renewed::Until(until)
            }
            None => Renewed::Lost,
        }
    }
}

impl Hold {
    pub(super) fn info(&self, now: BootInstant) -> HolderInfo {
        HolderInfo {
            token: Some(self.token),
            since: Some(self.since),
            remaining: Some(self.expires.saturating_duration_since(now)),
            id: Some(self.owner),
            ..HolderInfo::new(Holder::Known(OwnerInfo::clone(&self.info)), self.mode.into())
        }
    }
}

impl Waiter {
    pub(super) fn info(&self) -> WaiterInfo {
        let since = Some(self.since);
        WaiterInfo { since, ..WaiterInfo::new(Holder::Known(OwnerInfo::clone(&self.info)), self.mode.into()) }
    }
}

impl Lock {
    /// Whether a new request is granted at once: waiters come first, unless they let it pass.
    fn is_open_to(&self, mode: Mode) -> bool {
        self.admits(mode) && self.waiters.iter().all(|waiter| self.lets_pass(waiter.mode))
    }

    /// The next waiter to be granted the lock: the first, or the first behind those that let it pass.
    fn next_waiter(&self) -> Option<usize> {
        let stops = |waiter: &Waiter| self.admits(waiter.mode) || !self.lets_pass(waiter.mode);
        let at = self.waiters.iter().position(stops)?;
        self.admits(self.waiters[at].mode).then_some(at)
    }

    /// Whether a waiter lets those behind it pass that can have the lock: it waits for a permit, as its number is used up, and
    /// theirs may be larger.
    fn lets_pass(&self, waiter: Mode) -> bool {
        let holder = self.holds.first().map(|hold| hold.mode);
        matches!((holder, waiter), (Some(Mode::Permit { .. }), Mode::Permit { .. })) && !self.admits(waiter)
    }

    fn admits(&self, mode: Mode) -> bool {
        match (self.holds.first().map(|hold| hold.mode), mode) {
            (None, _) | (Some(Mode::Shared), Mode::Shared) => true,
            (Some(Mode::Permit { .. }), Mode::Permit { max }) => self.holds.len() < max.get() as usize,
            _ => false,
        }
    }
}

impl Tokens {
    /// Makes all later tokens larger than this one.
    pub(super) fn use_up(&mut self, token: u64) {
        self.last = self.last.max(token);
        if self.named {
            LAST_OF_NAMED.fetch_max(self.last, Ordering::Relaxed);
        }
    }
}

impl Table {
    pub(super) fn hold_mut(&mut self, name: &LockName, owner: OwnerId) -> Option<&mut Hold> {
        self.locks.get_mut(name)?.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    /// Grants the lock to its waiters in order, up to the first that cannot have it and lets nobody pass.
    pub(super) fn grant_next(&mut self, name: &LockName, clock: &Clock) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        while let Some(waiter) = lock.next_waiter().and_then(|at| lock.waiters.remove(at)) {
            self.tokens.use_up(self.tokens.last + 1);
            let (token, expires) = (Token::new(self.tokens.last), clock.now() + waiter.ttl);
            let cell = ValidityCell::new(clock.clone(), expires);
            let revocation = RevocationCell::new();
            let grant = Grant { token, cell: cell.clone(), revocation: revocation.revocation() };
            if waiter.grant.send(grant).is_ok() {
                let (owner, mode, info, since) = (waiter.owner, waiter.mode, waiter.info, SystemTime::now());
                lock.holds.push(Hold { owner, mode, info, token, since, expires, cell, revocation });
                self.changed.notify_waiters();
            }
        }
        if lock.holds.is_empty() {
            self.locks.remove(name);
        }
    }

    /// Ends the expired holds.
    pub(super) fn expire(&mut self, name: &LockName, clock: &Clock) {
        let now = clock.now();
        self.end_holds(name, clock, LossReason::DeadlinePassed, |hold| now >= hold.expires);
    }

    /// Ends the holds that match, grants the lock to the next waiters, and returns whether any hold matched.
    pub(super) fn end_holds(
        &mut self,
        name: &LockName,
        clock: &Clock,
        reason: LossReason,
        ends: impl Fn(&Hold) -> bool,
    ) -> bool {
        let Some(lock) = self.locks.get_mut(name) else { return false };
        let ended: Vec<_> = lock.holds.extract_if(.., |hold| ends(hold)).collect();
        for hold in &ended {
            hold.cell.lose(reason);
        }
        self.grant_next(name, clock);
        if !ended.is_empty() {
            self.changed.notify_waiters();
        }
        !ended.is_empty()
    }

    /// Removes a waiter or its hold. The waiters behind it may get the lock then.
    fn remove(&mut self, name: &LockName, owner: OwnerId, clock: &Clock) {
        if let Some(lock) = self.locks.get_mut(name) {
            lock.waiters.retain(|waiter| waiter.owner != owner);
        }
        self.end_holds(name, clock, LossReason::Released, |hold| hold.owner == owner);
    }
}

#[async_trait]
impl Renew for Arc<Store> {
    type Key = (LockName, OwnerId);

    async fn renew(&self, batch: &[Due<Self::Key>]) -> Vec<Renewed> {
        let renew = |due: &Due<Self::Key>| self.renew_one(&due.key.0, due.key.1, due.ttl);
        batch.iter().map(renew).collect()
    }
}
