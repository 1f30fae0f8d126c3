//! Locks inside one process: the embedded default, and the reference for the other backends.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::backend::Support;
use crate::renewal::{Renew, Renewal, Renewed, Renewer, Terms};
use crate::url::LockUrl;
use crate::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, Error, ErrorKind, GuardState,
    Holder, HolderInfo, Lease, LeaseKind, LockName, LockState, Locks, LossReason, Mode, OwnerId, OwnerInfo,
    Released, Result, Revocation, RevocationCell, Token, Validity, ValidityCell, Wait, WaiterInfo,
};

const BACKEND: &str = "memory";

/// The options of the memory backend.
///
/// URL: `memory://` for locks of one's own, `memory://NAME` to share the locks of that name within
/// the process; the only option is `ttl`. The tokens of a named store go on where they were when it is opened again.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    name: Option<String>,
    ttl: Duration,
    clock: Clock,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { name: None, ttl: Duration::from_secs(30), clock: Clock::boot() }
    }
}

impl MemoryConfig {
    /// The shortest time to live.
    pub const MIN_TTL: Duration = Duration::from_millis(10);

    /// The defaults: locks of one's own, a time to live of 30 s.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["memory"])?;
        if !url.path.is_empty() || !url.user.is_empty() || url.password.is_some() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message("the store of locks in memory has neither a path nor a user")
                .with_hint("write it as memory://name, or as memory:// for locks of one's own"));
        }
        let mut config = Self::default();
        if !url.hosts.is_empty() {
            config = config.name(url.hosts.clone());
        }
        url.options(BACKEND, &["ttl"], |_, value| {
            config.ttl = value.duration()?;
            Ok(())
        })?;
        Ok(config)
    }

    /// The name of the store: all of this process that open it by the same name share its locks.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The time to live of a lock when nothing else is said.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The clock that leases are counted on.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when the time to live is too short.
    pub fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Memory::open(self)?))
    }
}

/// The memory backend. Clones share the locks.
///
/// It has every capability but one: other processes do not see its locks. Waiters of all modes stand in
/// one queue and get a lock in the order in which they asked, handed over without a gap; those who may
/// share it get it together. So a reader that comes after a waiting writer waits behind it, and nobody
/// starves.
#[derive(Clone, Debug)]
pub struct Memory {
    capabilities: Capabilities,
    ttl: Duration,
    store: Arc<Store>,
    renewer: Arc<Renewer<Arc<Store>>>,
    closed: CancellationToken,
}

#[derive(Debug)]
struct Store {
    clock: Clock,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    locks: HashMap<LockName, Lock>,
    tokens: Tokens,
    /// A lock has another holder, or a hold ends earlier.
    moved: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Tokens {
    last: u64,
    /// Whether the store can be opened again by its name.
    named: bool,
}

#[derive(Debug, Default)]
struct Lock {
    /// One that is exclusive, or several of the same kind, the longest first.
    holds: Vec<Hold>,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Hold {
    owner: OwnerId,
    mode: Mode,
    info: Arc<OwnerInfo>,
    token: Token,
    since: SystemTime,
    expires: BootInstant,
    cell: ValidityCell,
    revocation: RevocationCell,
}

#[derive(Debug)]
struct Waiter {
    owner: OwnerId,
    mode: Mode,
    info: Arc<OwnerInfo>,
    since: SystemTime,
    ttl: Duration,
    grant: oneshot::Sender<Grant>,
}

#[derive(Debug)]
struct Grant {
    token: Token,
    cell: ValidityCell,
    revocation: Revocation,
}

/// The last token of all named stores: one that is opened again, after nobody had it, goes on from there.
static LAST_OF_NAMED: AtomicU64 = AtomicU64::new(0);
static NAMED: LazyLock<Mutex<HashMap<String, Weak<Store>>>> = LazyLock::new(Mutex::default);

impl Memory {
    /// Opens the store.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when the time to live is too short.
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
        let renewer = Arc::new(Renewer::new(Arc::clone(&store), config.clock));
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
        let start = self.store.clock.now();
        let mut place = match self.store.ask(&request, ttl) {
            Asked::Granted(owner, grant) => return Ok(self.lease(&request, owner, grant, start, ttl)),
            Asked::Busy => return Ok(Acquired::Busy),
            Asked::Queued(place, before) => {
                request.report_position(before);
                place
            }
        };
        let granted = tokio::select! {
            biased;
            // The place gives back what was granted by then.
            () = self.closed.cancelled() => return Err(Error::closed(BACKEND)),
            granted = place.granted(request.wait) => granted,
        };
        match granted {
            Some(grant) => Ok(self.lease(&request, place.owner, grant, self.store.clock.now(), ttl)),
            None => Ok(Acquired::Busy),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.check_open()?;
        let mut table = self.store.table();
        table.expire(name, &self.store.clock);
        let Some(lock) = table.locks.get(name) else { return Ok(LockState::free()) };
        let now = self.store.clock.now();
        let mut state = LockState::held(lock.holds.iter().map(|hold| hold.info(now)));
        state.waiters = lock.waiters.len();
        state.queue = lock.waiters.iter().take(LockState::MAX_QUEUE).map(Waiter::info).collect();
        Ok(state)
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.check_open()?;
        let mut table = self.store.table();
        table.expire(name, &self.store.clock);
        Ok(table.end_holds(name, &self.store.clock, LossReason::Removed, |_| true))
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.check_open()?;
        let mut table = self.store.table();
        table.expire(name, &self.store.clock);
        Ok(table.end_holds(name, &self.store.clock, LossReason::Removed, |hold| hold.token == token))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.check_open()?;
        let mut table = self.store.table();
        let begins_so = |name: &&LockName| name.as_str().starts_with(prefix);
        let mut names: Vec<_> = table.locks.keys().filter(begins_so).cloned().collect();
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
        let Some(lock) = table.locks.get(name) else { return Ok(false) };
        lock.holds.iter().for_each(|hold| hold.revocation.request());
        Ok(!lock.holds.is_empty())
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

    fn lease(
        &self,
        request: &AcquireRequest,
        owner: OwnerId,
        grant: Grant,
        start: BootInstant,
        ttl: Duration,
    ) -> Acquired {
        let hold_until = request.lease.max_hold.map_or(BootInstant::NEVER, |hold| start + hold);
        let key = (request.name.clone(), owner);
        let terms = Terms { ttl, auto: request.lease.renewed, hold_until };
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

#[derive(Debug)]
struct MemoryLease {
    store: Arc<Store>,
    name: LockName,
    owner: OwnerId,
    token: Token,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    revocation: Revocation,
}

#[async_trait]
impl Lease for MemoryLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        Some(&self.revocation)
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let leases = Capabilities::new(BACKEND, LeaseKind::Ttl { default: ttl, min: MemoryConfig::MIN_TTL });
        leases.check_ttl(ttl, MemoryConfig::MIN_TTL)?;
        self.renewal.extend(ttl).await.deadline(BACKEND)
    }

    async fn verify(&self) -> Result<GuardState> {
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        let mut table = self.store.table();
        table.expire(&self.name, &self.store.clock);
        let hold = table.hold_mut(&self.name, self.owner).ok_or_else(|| Error::lost(BACKEND))?;
        hold.mode = Mode::Shared;
        table.advance(&self.name, &self.store.clock);
        Ok(())
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let valid = self.validity.is_valid();
        let mut table = self.store.table();
        table.expire(&self.name, &self.store.clock);
        let ours = |hold: &Hold| hold.owner == self.owner;
        let ended = table.end_holds(&self.name, &self.store.clock, LossReason::Released, ours);
        self.cell.lose(LossReason::Released);
        Ok(if valid && ended { Released::Released } else { Released::AlreadyLost })
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        let mut table = self.store.table();
        table.expire(&self.name, &self.store.clock);
        if table.hold_mut(&self.name, self.owner).is_none() {
            return Err(Error::lost(BACKEND));
        }
        if floor.get() >= i64::MAX as u64 {
            return Err(Error::new(ErrorKind::Exhausted, BACKEND)
                .with_message(format!("no token is larger than {floor}"))
                .with_hint("raise the tokens to a smaller number"));
        }
        table.tokens.use_up(floor.get());
        Ok(())
    }
}

#[async_trait]
impl Renew for Arc<Store> {
    type Key = (LockName, OwnerId);

    async fn renew(&self, batch: &[(Self::Key, Duration)]) -> Vec<Renewed> {
        batch.iter().map(|((name, owner), ttl)| self.renew_one(name, *owner, *ttl)).collect()
    }
}

enum Asked {
    Granted(OwnerId, Grant),
    Busy,
    /// Behind so many.
    Queued(Place, usize),
}

/// A place in the queue. Dropping it gives it up, and gives back a grant that crossed the drop.
struct Place {
    store: Arc<Store>,
    name: LockName,
    owner: OwnerId,
    grant: oneshot::Receiver<Grant>,
    taken: bool,
}

impl Place {
    async fn granted(&mut self, wait: Wait) -> Option<Grant> {
        let moved = Arc::clone(&self.store.table().moved);
        loop {
            let mut change = pin!(moved.notified());
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
                () = over(wait) => return None,
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.taken {
            self.store.table().abandon(&self.name, self.owner, &self.store.clock);
        }
    }
}

async fn over(wait: Wait) {
    match wait {
        Wait::Never => {}
        Wait::Until(deadline) => tokio::time::sleep_until(deadline).await,
        Wait::Forever => std::future::pending().await,
    }
}

impl Store {
    fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), table: Mutex::default() })
    }

    fn named(name: String, clock: &Clock) -> Arc<Self> {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|_, store| store.strong_count() > 0);
        named.get(&name).and_then(Weak::upgrade).unwrap_or_else(|| {
            // Whoever dropped the last handle of a store had granted its last token before.
            fence(Ordering::Acquire);
            let store = Self::new(clock);
            store.table().tokens = Tokens { last: LAST_OF_NAMED.load(Ordering::Relaxed), named: true };
            named.insert(name, Arc::downgrade(&store));
            store
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(self: &Arc<Self>, request: &AcquireRequest, ttl: Duration) -> Asked {
        let mut table = self.table();
        table.expire(&request.name, &self.clock);
        let open = table.locks.get(&request.name).is_none_or(|lock| lock.is_open_to(request.mode));
        if !open && request.wait.is_over() {
            return Asked::Busy;
        }
        let (sender, mut grant) = oneshot::channel();
        let (owner, mode, info) = (OwnerId::random(), request.mode, Arc::clone(&request.owner));
        let since = SystemTime::now();
        let lock = table.locks.entry(request.name.clone()).or_default();
        lock.waiters.push_back(Waiter { owner, mode, info, since, ttl, grant: sender });
        table.advance(&request.name, &self.clock);
        if let Ok(grant) = grant.try_recv() {
            return Asked::Granted(owner, grant);
        }
        let (store, name) = (Arc::clone(self), request.name.clone());
        let before = table.locks.get(&name).map_or(0, |lock| lock.holds.len() + lock.waiters.len() - 1);
        Asked::Queued(Place { store, name, owner, grant, taken: false }, before)
    }

    /// When a hold ends next, if nobody renews it.
    fn next_expiry(&self, name: &LockName) -> BootInstant {
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
                table.moved.notify_waiters();
                Renewed::Until(until)
            }
            None => Renewed::NotOurs,
        }
    }
}

impl Hold {
    fn info(&self, now: BootInstant) -> HolderInfo {
        HolderInfo {
            token: Some(self.token),
            since: Some(self.since),
            remaining: Some(self.expires.saturating_duration_since(now)),
            ..HolderInfo::new(Holder::Known(OwnerInfo::clone(&self.info)), self.mode.into())
        }
    }
}

impl Waiter {
    fn info(&self) -> WaiterInfo {
        let since = Some(self.since);
        WaiterInfo { since, ..WaiterInfo::new(Holder::Known(OwnerInfo::clone(&self.info)), self.mode.into()) }
    }
}

impl Lock {
    /// Whether one who comes now gets the lock: who waits already comes first.
    fn is_open_to(&self, mode: Mode) -> bool {
        self.waiters.is_empty() && self.admits(mode)
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
    /// Grants none of the tokens up to this one from now on.
    fn use_up(&mut self, token: u64) {
        self.last = self.last.max(token);
        if self.named {
            LAST_OF_NAMED.fetch_max(self.last, Ordering::Relaxed);
        }
    }
}

impl Table {
    fn hold_mut(&mut self, name: &LockName, owner: OwnerId) -> Option<&mut Hold> {
        self.locks.get_mut(name)?.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    /// Lets in those who wait, in their order, up to the first who cannot be.
    fn advance(&mut self, name: &LockName, clock: &Clock) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        while lock.waiters.front().is_some_and(|first| lock.admits(first.mode)) {
            let Some(waiter) = lock.waiters.pop_front() else { break };
            self.tokens.use_up(self.tokens.last + 1);
            let (token, expires) = (Token::new(self.tokens.last), clock.now() + waiter.ttl);
            let cell = ValidityCell::new(clock.clone(), expires);
            let asked = RevocationCell::new();
            let grant = Grant { token, cell: cell.clone(), revocation: asked.revocation() };
            if waiter.grant.send(grant).is_ok() {
                let (owner, mode, info, since) = (waiter.owner, waiter.mode, waiter.info, SystemTime::now());
                lock.holds.push(Hold { owner, mode, info, token, since, expires, cell, revocation: asked });
                self.moved.notify_waiters();
            }
        }
        if lock.holds.is_empty() {
            self.locks.remove(name);
        }
    }

    fn expire(&mut self, name: &LockName, clock: &Clock) {
        let now = clock.now();
        self.end_holds(name, clock, LossReason::DeadlinePassed, |hold| now >= hold.expires);
    }

    /// Ends the holds of which this is true, and says whether there were any.
    fn end_holds(
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
        self.advance(name, clock);
        !ended.is_empty()
    }

    /// Takes a waiter out, or ends what it holds by now. Those behind it may have waited for it only.
    fn abandon(&mut self, name: &LockName, owner: OwnerId, clock: &Clock) {
        if let Some(lock) = self.locks.get_mut(name) {
            lock.waiters.retain(|waiter| waiter.owner != owner);
        }
        self.end_holds(name, clock, LossReason::Released, |hold| hold.owner == owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockOptions;

    fn locks() -> Locks {
        MemoryConfig::new().clock(Clock::tokio()).connect().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_lease_ends_and_the_next_gets_a_larger_token() {
        let locks = locks();
        let fixed = locks.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(1))).unwrap();
        let first = fixed.acquire().await.unwrap();
        let token = first.token();
        // Another client of the same store: the queue of this one would wait for the guard.
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        std::mem::forget(first);
        assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
        let second = other.mutex("a").acquire().await.unwrap();
        assert!(second.token() > token);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_waiter_leaves_nothing() {
        let locks = locks();
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(other.mutex("a").try_acquire_for(Duration::from_secs(1)).await.unwrap().is_none());
        assert_eq!(locks.inspect("a").await.unwrap().waiters, 0);
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        assert_eq!(locks.inspect("a").await.unwrap(), LockState::free());
    }

    #[tokio::test(start_paused = true)]
    async fn breaking_tells_the_holder_at_once() {
        let locks = locks();
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(locks.break_lock("a").await.unwrap());
        assert_eq!(guard.lost().await, LossReason::Removed);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert!(!locks.break_lock("a").await.unwrap());
    }

    #[tokio::test]
    async fn stores_of_one_name_are_shared() {
        let url = "memory://shared-store?ttl=5s";
        let one = MemoryConfig::from_url(url).unwrap().connect().unwrap();
        let two = MemoryConfig::from_url(url).unwrap().connect().unwrap();
        let _guard = one.mutex("a").acquire().await.unwrap();
        assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
        let own = MemoryConfig::new().connect().unwrap();
        assert!(own.mutex("a").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn tokens_of_a_named_store_go_on_when_it_is_opened_again() {
        let open = || MemoryConfig::from_url("memory://opened-again").unwrap().connect().unwrap();
        let mut last = Token::new(0);
        for round in 0..3 {
            let locks = open();
            // Nothing renews it, and so nothing keeps the store when this round is over.
            let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(30))).unwrap();
            let guard = mutex.acquire().await.unwrap();
            assert!(guard.token() > last, "{round}: {} came after {last}", guard.token());
            last = Token::new(guard.token().get() + 10);
            guard.raise_token(last).await.unwrap();
            guard.release().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_ends_with_its_own_lease() {
        let locks = locks();
        let ttl = |seconds| LockOptions::new().fixed_ttl(Duration::from_secs(seconds));
        let (short, long) = (locks.rw_with("a", ttl(1)).unwrap(), locks.rw_with("a", ttl(60)).unwrap());
        let (dead, alive) = (short.read().await.unwrap(), long.read().await.unwrap());
        std::mem::forget(dead);
        let writer = locks.rw("a");
        assert!(writer.try_write_for(Duration::from_secs(5)).await.unwrap().is_none());
        assert_eq!(locks.inspect("a").await.unwrap().token, Some(alive.token()));
        assert_eq!(alive.release().await.unwrap(), Released::Released);
        assert!(writer.try_write().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
        let locks = locks();
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        let first = locks.rw("a").read().await.unwrap();
        let writer = locks.rw("a");
        let writer = tokio::spawn(async move { writer.try_write_for(Duration::from_secs(5)).await });
        tokio::task::yield_now().await;
        assert!(other.rw("a").try_read().await.unwrap().is_none(), "it would overtake the writer");
        let second = other.rw("a").read().await.unwrap();
        assert!(writer.await.unwrap().unwrap().is_none());
        assert!(first.is_valid() && second.token() > first.token());
    }

    #[tokio::test(start_paused = true)]
    async fn raised_tokens_are_not_granted_again() {
        let locks = locks();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let floor = Token::new(guard.token().get() + 1_000);
        guard.raise_token(floor).await.unwrap();
        guard.raise_token(guard.token()).await.unwrap();
        let most = guard.raise_token(Token::new(i64::MAX as u64)).await.unwrap_err();
        assert_eq!(most.kind(), ErrorKind::Exhausted);
        assert!(locks.break_lock("a").await.unwrap());
        assert_eq!(guard.raise_token(floor).await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(locks.mutex("a").acquire().await.unwrap().token() > floor);
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_share_a_lock_are_asked_to_give_it_up() {
        let locks = locks();
        assert!(!locks.request_revocation("a").await.unwrap(), "nobody holds it");
        let (one, two) = (locks.rw("a").read().await.unwrap(), locks.rw("a").read().await.unwrap());
        assert!(!one.is_revoke_requested());
        assert!(locks.request_revocation("a").await.unwrap());
        one.revoke_requested().await;
        assert!(one.is_valid() && two.is_revoke_requested());
        drop((one, two));
        assert!(!locks.rw("a").write().await.unwrap().is_revoke_requested(), "it was asked of others");
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_told_how_many_are_before_them() {
        let locks = locks();
        let _held = locks.mutex("a").acquire().await.unwrap();
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut waiters = Vec::new();
        for _ in 0..2 {
            let (other, sender) = (Locks::from_dyn(Arc::clone(locks.backend())), sender.clone());
            let options = LockOptions::new().on_queued(move |before| sender.send(before).unwrap());
            let mutex = other.mutex_with("a", options).unwrap();
            waiters.push(tokio::spawn(async move { mutex.acquire().await }));
            tokio::task::yield_now().await;
        }
        assert_eq!((told.recv().await, told.recv().await), (Some(1), Some(2)));
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
