//! The table of locks: holders, waiters and tokens.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};

use crate::record::{Ask, Changes, Now, Record, Shown, Turn, Waiting};
use crate::renewal::{Answered, Due, Renew, Renewed};
use crate::{
    AcquireRequest, BootInstant, Clock, LockName, LockState, LossReason, OwnerId, OwnerInfo, Revocation,
    RevocationCell, Token, ValidityCell, Wait, record,
};

/// The locks of one store.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) clock: Clock,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) locks: HashMap<LockName, Record<Party>>,
    pub(super) tokens: Tokens,
    /// Notified when a lock has other holders, or a hold another end.
    changed: Arc<Notify>,
    /// At how many locks those are removed that nobody has any more.
    sweep_at: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tokens {
    last: u64,
    /// Whether the store can be opened again by its name.
    named: bool,
}

/// Who waits for a lock or holds it.
#[derive(Debug)]
pub(super) struct Party {
    info: Arc<OwnerInfo>,
    since: SystemTime,
    /// Until it holds the lock.
    grant: Option<oneshot::Sender<Grant>>,
    /// Once it holds the lock.
    cells: Option<(ValidityCell, RevocationCell)>,
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

/// Fewer locks are not worth a sweep.
const SWEEP_AT: usize = 256;

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
            let (owner, name) = (self.owner, &self.name);
            let leave = |record: &mut Record<Party>, now: &mut Moment<'_>| record.release(now, owner);
            self.store.table().change(name, &self.store.clock, LossReason::Released, leave);
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
        let (sender, mut receiver) = oneshot::channel();
        let (owner, mode, info) = (OwnerId::random(), request.mode, Arc::clone(&request.owner));
        let party = Party { info, since: SystemTime::now(), grant: Some(sender), cells: None };
        let waits = (!request.wait.is_expired()).then_some(Turn::Granted(ttl));
        let mut table = self.table();
        if !table.locks.contains_key(&request.name) {
            table.sweep(&self.clock);
            table.locks.insert(request.name.clone(), Record::new());
        }
        let ask = |record: &mut Record<Party>, now: &mut Moment<'_>| {
            let (answer, changes) = record.ask(now, Ask { owner, mode, ttl, waits, party });
            ((answer, record.holders().len()), changes)
        };
        let answer = table.change(&request.name, &self.clock, LossReason::Removed, ask);
        match answer.expect("the record is there") {
            (record::Answer::Granted(_), _) => {
                Answer::Granted(owner, receiver.try_recv().expect("a holder gets its grant at once"))
            }
            (record::Answer::Busy { ahead: Some(waiters), .. }, holders) => {
                let (store, name) = (Arc::clone(self), request.name.clone());
                let entry = QueueEntry { store, name, owner, grant: receiver, taken: false };
                Answer::Queued(entry, holders + waiters)
            }
            (record::Answer::Busy { ahead: None, .. }, _) => Answer::Busy,
        }
    }

    /// Notified when a lock has other holders, or a hold another end.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.table().changed)
    }

    /// When the next hold of this lock expires.
    pub(super) fn next_expiry(&self, name: &LockName) -> BootInstant {
        let table = self.table();
        let holders = table.locks.get(name).into_iter().flat_map(Record::holders);
        holders.map(|holder| holder.until).min().unwrap_or(BootInstant::NEVER)
    }

    fn renew_one(&self, name: &LockName, owner: OwnerId, ttl: Duration) -> Renewed {
        let mut table = self.table();
        let extend = |record: &mut Record<Party>, now: &mut Moment<'_>| {
            let changes = record.settle(now);
            (record.extend(now, owner, ttl, true), changes)
        };
        match table.change(name, &self.clock, LossReason::Removed, extend).flatten() {
            Some(until) => {
                table.changed.notify_waiters();
                Renewed::Until(until)
            }
            None => Renewed::Lost,
        }
    }
}

/// What the store knows when it is asked.
pub(super) struct Moment<'a> {
    time: BootInstant,
    tokens: &'a mut Tokens,
}

impl Now<Party> for Moment<'_> {
    fn time(&self) -> BootInstant {
        self.time
    }

    fn lives(&self, waiter: &Waiting<Party>) -> bool {
        waiter.party.grant.as_ref().is_some_and(|grant| !grant.is_closed())
    }

    fn mint(&mut self, _: Token) -> Token {
        self.tokens.use_up(self.tokens.last + 1);
        Token::new(self.tokens.last)
    }
}

impl Party {
    /// It holds the lock now.
    fn hold(&mut self, token: Token, until: BootInstant, clock: &Clock) {
        let (cell, revocation) = (ValidityCell::new(clock.clone(), until), RevocationCell::new());
        let grant = Grant { token, cell: cell.clone(), revocation: revocation.revocation() };
        if let Some(waiter) = self.grant.take() {
            // One that leaves removes what it got.
            let _ = waiter.send(grant);
        }
        self.since = SystemTime::now();
        self.cells = Some((cell, revocation));
    }

    fn lose(&self, reason: LossReason) {
        if let Some((cell, _)) = &self.cells {
            cell.lose(reason);
        }
    }

    pub(super) fn request_revocation(&self) {
        if let Some((_, revocation)) = &self.cells {
            revocation.request();
        }
    }
}

impl Shown for Party {
    fn info(&self) -> &OwnerInfo {
        &self.info
    }

    fn since(&self) -> SystemTime {
        self.since
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
    /// Changes the lock of this name, if somebody has it or waits for it, and tells those whom that concerns. Removed holders have lost it
    /// for this reason.
    pub(super) fn change<T>(
        &mut self,
        name: &LockName,
        clock: &Clock,
        reason: LossReason,
        change: impl FnOnce(&mut Record<Party>, &mut Moment<'_>) -> (T, Changes<Party>),
    ) -> Option<T> {
        let record = self.locks.get_mut(name)?;
        let mut now = Moment { time: clock.now(), tokens: &mut self.tokens };
        let (answer, changes) = change(record, &mut now);
        changes.expired.iter().for_each(|holder| holder.party.lose(LossReason::DeadlinePassed));
        changes.removed.iter().for_each(|holder| holder.party.lose(reason));
        let mut is_changed = !(changes.expired.is_empty() && changes.removed.is_empty());
        for (party, token, until) in record.parties_mut().filter(|(party, ..)| party.cells.is_none()) {
            party.hold(token, until, clock);
            is_changed = true;
        }
        if record.is_idle() {
            self.locks.remove(name);
        }
        if is_changed {
            self.changed.notify_waiters();
        }
        Some(answer)
    }

    /// Removes the locks whose last lease has ended and that nobody has asked for since, whenever there are twice as many as after the
    /// last time: what a holder has left to its time to live.
    fn sweep(&mut self, clock: &Clock) {
        if self.locks.len() < self.sweep_at.max(SWEEP_AT) {
            return;
        }
        let names: Vec<_> = self.locks.keys().cloned().collect();
        names.iter().for_each(|name| self.expire(name, clock));
        self.sweep_at = 2 * self.locks.len();
    }

    /// What `inspect` shows of the lock.
    pub(super) fn state(&mut self, name: &LockName, clock: &Clock) -> LockState {
        self.expire(name, clock);
        let now = Moment { time: clock.now(), tokens: &mut self.tokens };
        self.locks.get(name).map_or_else(LockState::free, |record| record.state(&now))
    }

    /// Removes the holders whose lease has ended.
    pub(super) fn expire(&mut self, name: &LockName, clock: &Clock) {
        self.change(name, clock, LossReason::Removed, |record, now| ((), record.settle(now)));
    }
}

#[async_trait]
impl Renew for Arc<Store> {
    type Key = (LockName, OwnerId);

    async fn renew(&self, batch: &[Due<Self::Key>], answered: &dyn Answered<Renewed>) {
        for (at, due) in batch.iter().enumerate() {
            answered(at, self.renew_one(&due.key.0, due.key.1, due.ttl));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LeasePolicy;

    #[tokio::test(start_paused = true)]
    async fn locks_that_are_left_to_their_time_to_live_do_not_pile_up() {
        let store = Store::new(&Clock::tokio());
        let owner = Arc::new(OwnerInfo::this_process());
        for day in 0..5_000 {
            let name = LockName::new(format!("report/{day}")).unwrap();
            let request =
                AcquireRequest::exclusive(name, Wait::Never, LeasePolicy::default(), Arc::clone(&owner));
            assert!(matches!(store.request(&request, Duration::from_secs(1)), Answer::Granted(..)));
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!(store.table().locks.len() <= SWEEP_AT);
    }
}
