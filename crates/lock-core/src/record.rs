//! The specification of a lock: its state, and what each request makes of it.
//!
//! The functions are pure: what only a store knows, the time, which waiters live and the next token, they ask of [`Now`]. The memory store
//! runs them behind a mutex. The scripts of Redis and the functions of PostgreSQL decide the same, and their outcome tables are
//! compared with these functions.
//!
//! Waiters of all modes wait in one queue and get the lock in its order, sharers together. A reader waits for a writer ahead of it, so
//! nobody starves; but a waiter for one of fewer permits than are taken lets those behind it pass.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{
    BootInstant, Holder, HolderInfo, LockState, Mode, OwnerId, OwnerInfo, Token, WaiterInfo, engine,
};

/// One lock: who holds it, who waits for it, and the last token.
///
/// A store keeps a `P` with each holder and waiter: who they are, and how to reach them. A record that is stored has the form of this version of
/// the library: keep a version beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record<P = ()> {
    last: Token,
    holders: Vec<Holding<P>>,
    queue: VecDeque<Waiting<P>>,
}

/// What one holder has. There is one of an exclusive lock; of a shared one there are several of one kind, the oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holding<P = ()> {
    /// Who holds it.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// The fencing token.
    pub token: Token,
    /// The end of the lease.
    pub until: BootInstant,
    /// What the store keeps with it.
    pub party: P,
}

/// A waiter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Waiting<P = ()> {
    /// Who waits.
    pub owner: OwnerId,
    /// For what.
    pub mode: Mode,
    /// How it gets the lock.
    pub turn: Turn,
    /// What the store keeps with it.
    pub party: P,
}

/// How a waiter gets the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Turn {
    /// It is granted the lock for this long, and told so.
    Granted(Duration),
    /// It asks now and then, and the lock is kept free for it until then.
    Asks,
}

/// A request for the lock.
#[derive(Clone, Debug)]
pub struct Ask<P = ()> {
    /// Who asks.
    pub owner: OwnerId,
    /// For what.
    pub mode: Mode,
    /// For how long.
    pub ttl: Duration,
    /// Whether it waits, and how.
    pub waits: Option<Turn>,
    /// What the store is to keep with it.
    pub party: P,
}

/// The answer to a request for the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The owner has it now, with this token.
    Granted(Token),
    /// Others have it, or are first.
    Busy {
        /// How many waiters come before it, if it waits.
        ahead: Option<usize>,
        /// When it may be free, if it has holders: at the end of all of them, or of the first for a permit.
        until: Option<BootInstant>,
    },
}

/// What has happened to others.
#[derive(Debug)]
pub struct Changes<P = ()> {
    /// The holders that were waiters before.
    pub granted: Vec<OwnerId>,
    /// The holders that were removed.
    pub removed: Vec<Holding<P>>,
    /// The holders whose lease had ended.
    pub expired: Vec<Holding<P>>,
}

/// What `inspect` shows of a holder or a waiter.
pub trait Shown {
    /// Who it is.
    fn info(&self) -> &OwnerInfo;
    /// Since when it has the lock, or waits.
    fn since(&self) -> SystemTime;
}

/// What a store knows when it is asked.
pub trait Now<P> {
    /// The time, on one clock for all clients of the store, which never goes back. Only those of one host, and of one boot, share
    /// [`Clock::boot`](crate::Clock::boot). A client may use its own if the ends in the record are what it has observed.
    fn time(&self) -> BootInstant;
    /// Whether a waiter is still there.
    fn lives(&self, waiter: &Waiting<P>) -> bool;
    /// Whether a waiter that lives, as far as is known, has said so too long ago: it gets the lock after the others. A store that knows which
    /// waiters live needs no such doubt.
    fn doubts(&self, _waiter: &Waiting<P>) -> bool {
        false
    }
    /// A token larger than this one, and than any other of this lock: the next number, or the first of the next [block](crate::TokenBlock).
    fn mint(&mut self, last: Token) -> Token;
}

impl<P> Record<P> {
    /// A lock that nobody has had.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Token::new(0), [], [])
    }

    /// A lock in this state.
    #[must_use]
    pub fn of(
        last: Token,
        holders: impl IntoIterator<Item = Holding<P>>,
        queue: impl IntoIterator<Item = Waiting<P>>,
    ) -> Self {
        Self { last, holders: holders.into_iter().collect(), queue: queue.into_iter().collect() }
    }

    /// What `inspect` shows of it.
    pub fn state(&self, now: &impl Now<P>) -> LockState
    where
        P: Shown,
    {
        let time = now.time();
        let holders = self.holders.iter().filter(|holder| holder.until > time);
        let mut state = LockState::held(holders.map(|holder| HolderInfo {
            token: Some(holder.token),
            since: Some(holder.party.since()),
            remaining: Some(holder.until.saturating_duration_since(time)),
            id: Some(holder.owner),
            ..HolderInfo::new(Holder::Known(holder.party.info().clone()), holder.mode.into())
        }));
        let waiters = || self.queue.iter().filter(|waiter| now.lives(waiter));
        let shown = |waiter: &Waiting<P>| WaiterInfo {
            since: Some(waiter.party.since()),
            ..WaiterInfo::new(Holder::Known(waiter.party.info().clone()), waiter.mode.into())
        };
        state.queue = waiters().take(LockState::MAX_QUEUE).map(shown).collect();
        state.waiters = waiters().count();
        state.token = state.token.or_else(|| Some(self.last).filter(|last| last.get() > 0));
        state
    }

    /// Whether this owner has the lock now.
    pub fn is_held_by(&self, now: &impl Now<P>, owner: OwnerId) -> bool {
        self.holders.iter().any(|holder| holder.owner == owner && holder.until > now.time())
    }

    /// Its holders, some of which may have ended.
    #[must_use]
    pub fn holders(&self) -> &[Holding<P>] {
        &self.holders
    }

    /// The same, for what the store keeps with them.
    pub fn parties_mut(&mut self) -> impl Iterator<Item = (&mut P, Token, BootInstant)> {
        self.holders.iter_mut().map(|holder| (&mut holder.party, holder.token, holder.until))
    }

    /// Whether nobody has it or waits for it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Its waiters in order, some of which may have gone.
    #[must_use]
    pub fn queue(&self) -> &VecDeque<Waiting<P>> {
        &self.queue
    }

    /// The last token, or a floor that was raised above it.
    #[must_use]
    pub fn last(&self) -> Token {
        self.last
    }

    /// Grants the lock, confirms what the owner has already, or queues it up. Idempotent for an owner, but the ttl counts from the last
    /// request.
    pub fn ask(&mut self, now: &mut impl Now<P>, ask: Ask<P>) -> (Answer, Changes<P>) {
        let mut changes = Changes::default();
        // The common case of a lock that is busy changes nothing else.
        if !self.holders.iter().any(|holder| is_of_another(holder, ask.owner) && holder.until > now.time()) {
            changes.expired = self.expire(now);
            if let Some(holding) = self.holding_mut(ask.owner) {
                holding.until = now.time() + ask.ttl;
                return (Answer::Granted(holding.token), changes);
            }
            if self.advance(now, Some(ask.owner), &mut changes) && self.has_room(ask.mode) {
                let Ask { owner, mode, ttl, party, .. } = ask;
                self.queue.retain(|waiter| waiter.owner != owner);
                let token = self.admit(now, owner, mode, ttl, party);
                if mode != Mode::Exclusive {
                    // Those behind it may have room as well.
                    self.advance(now, None, &mut changes);
                }
                return (Answer::Granted(token), changes);
            }
        }
        let ends = self.holders.iter().map(|holder| holder.until);
        let until = if self.lets_pass(ask.mode) { ends.min() } else { ends.max() };
        let ahead = ask.waits.map(|turn| self.queue_up(ask.owner, ask.mode, turn, ask.party));
        (Answer::Busy { ahead, until }, changes)
    }

    /// Removes what the owner has: the lock, its share of it, or its queue entry; and hands the lock over to the next waiters. Returns
    /// whether it had the lock.
    pub fn release(&mut self, now: &mut impl Now<P>, owner: OwnerId) -> (bool, Changes<P>) {
        let mut changes = Changes { expired: self.expire(now), ..Changes::default() };
        changes.removed = self.holders.extract_if(.., |holder| holder.owner == owner).collect();
        self.queue.retain(|waiter| waiter.owner != owner);
        self.advance(now, None, &mut changes);
        (!changes.removed.is_empty(), changes)
    }

    /// Extends the lease of an owner, and returns its end; nothing if it has the lock no more. A longer one is left alone unless it is to
    /// be shortened: a request that is executed late shortens no other.
    pub fn extend(
        &mut self,
        now: &impl Now<P>,
        owner: OwnerId,
        ttl: Duration,
        shortens: bool,
    ) -> Option<BootInstant> {
        let (time, until) = (now.time(), now.time() + ttl);
        let holding = self.holding_mut(owner).filter(|holding| holding.until > time)?;
        holding.until = if shortens { until } else { until.max(holding.until) };
        Some(holding.until)
    }

    /// Hands an exclusive lock over to another owner of the same process, and returns its token; nothing if the owner has it no more.
    pub fn hand_over(&mut self, now: &mut impl Now<P>, from: OwnerId, to: Ask<P>) -> Option<Token> {
        let [holder] = &self.holders[..] else { return None };
        if holder.owner != from || holder.mode != Mode::Exclusive || holder.until <= now.time() {
            return None;
        }
        self.holders.clear();
        // Else it would wait for what it has.
        self.queue.retain(|waiter| waiter.owner != to.owner);
        Some(self.admit(now, to.owner, Mode::Exclusive, to.ttl, to.party))
    }

    /// Makes an exclusive lock a shared one, and admits the readers that are next. Confirms a share, when called again. Returns whether the
    /// owner has a share.
    pub fn downgrade(&mut self, now: &mut impl Now<P>, owner: OwnerId, ttl: Duration) -> (bool, Changes<P>) {
        let mut changes = Changes { expired: self.expire(now), ..Changes::default() };
        let is_held = self.extend(now, owner, ttl, false).is_some();
        if let Some(holding) = self.holding_mut(owner)
            && holding.mode == Mode::Exclusive
        {
            holding.mode = Mode::Shared;
            self.advance(now, None, &mut changes);
        }
        self.hand_over_after(now, &mut changes);
        (is_held, changes)
    }

    /// Makes later tokens larger than this one. Returns whether the owner has the lock; else nothing happens.
    pub fn raise(&mut self, now: &impl Now<P>, owner: OwnerId, floor: Token) -> bool {
        let holds = self.is_held_by(now, owner);
        if holds {
            self.last = self.last.max(floor);
        }
        holds
    }

    /// Removes the lock from the holders with these tokens, and hands it over. Returns whether there were any.
    pub fn break_lock(&mut self, now: &mut impl Now<P>, which: impl Fn(Token) -> bool) -> (bool, Changes<P>) {
        let mut changes = Changes { expired: self.expire(now), ..Changes::default() };
        changes.removed = self.holders.extract_if(.., |holder| which(holder.token)).collect();
        self.hand_over_after(now, &mut changes);
        (!changes.removed.is_empty(), changes)
    }

    /// Removes the holders whose lease has ended, and hands the lock over.
    pub fn settle(&mut self, now: &mut impl Now<P>) -> Changes<P> {
        let mut changes = Changes { expired: self.expire(now), ..Changes::default() };
        self.hand_over_after(now, &mut changes);
        changes
    }

    /// Hands the lock over if these changes have removed a holder.
    fn hand_over_after(&mut self, now: &mut impl Now<P>, changes: &mut Changes<P>) {
        if !changes.removed.is_empty() || !changes.expired.is_empty() {
            self.advance(now, None, changes);
        }
    }

    fn holding_mut(&mut self, owner: OwnerId) -> Option<&mut Holding<P>> {
        self.holders.iter_mut().find(|holding| holding.owner == owner)
    }

    fn expire(&mut self, now: &impl Now<P>) -> Vec<Holding<P>> {
        self.holders.extract_if(.., |holder| holder.until <= now.time()).collect()
    }

    /// Grants the lock to waiters in order, while there is room, and removes those that have gone. Those that are doubted get it if nobody
    /// else does. Returns whether nobody comes before this owner.
    fn advance(&mut self, now: &mut impl Now<P>, before: Option<OwnerId>, changes: &mut Changes<P>) -> bool {
        let is_next = self.grant(now, before, false, changes);
        if before.is_none() && self.holders.is_empty() {
            self.grant(now, None, true, changes);
        }
        is_next
    }

    fn grant(
        &mut self,
        now: &mut impl Now<P>,
        before: Option<OwnerId>,
        in_doubt: bool,
        changes: &mut Changes<P>,
    ) -> bool {
        let mut at = 0;
        while let Some(waiter) = self.queue.get(at) {
            if Some(waiter.owner) == before {
                return true;
            }
            if !now.lives(waiter) {
                self.queue.remove(at);
            } else if !in_doubt && now.doubts(waiter) {
                at += 1;
            } else if self.has_room(waiter.mode) {
                let Turn::Granted(ttl) = waiter.turn else { return false };
                let Some(Waiting { owner, mode, party, .. }) = self.queue.remove(at) else { return false };
                self.admit(now, owner, mode, ttl, party);
                changes.granted.push(owner);
            } else if self.lets_pass(waiter.mode) {
                at += 1;
            } else {
                return false;
            }
        }
        true
    }

    /// Whether the lock can be granted in this mode beside its holders.
    fn has_room(&self, mode: Mode) -> bool {
        match (self.holders.first().map(|holder| holder.mode), mode) {
            (None, _) | (Some(Mode::Shared), Mode::Shared) => true,
            (Some(Mode::Permit { .. }), Mode::Permit { max }) => self.holders.len() < max.get() as usize,
            _ => false,
        }
    }

    /// Whether a waiter without room lets those behind it pass that have: its number of permits is used up, and theirs may be larger. It
    /// waits for the first of the holders to end, and not for all.
    fn lets_pass(&self, waiter: Mode) -> bool {
        let holder = self.holders.first().map(|holder| holder.mode);
        matches!((holder, waiter), (Some(Mode::Permit { .. }), Mode::Permit { .. }))
    }

    fn admit(&mut self, now: &mut impl Now<P>, owner: OwnerId, mode: Mode, ttl: Duration, party: P) -> Token {
        self.last = now.mint(self.last);
        let (token, until) = (self.last, now.time() + ttl);
        self.holders.push(Holding { owner, mode, token, until, party });
        token
    }

    /// Returns how many waiters come before it.
    fn queue_up(&mut self, owner: OwnerId, mode: Mode, turn: Turn, party: P) -> usize {
        let place = self.queue.iter().position(|waiter| waiter.owner == owner);
        match place.map(|at| &mut self.queue[at]) {
            Some(waiter) => (waiter.turn, waiter.party) = (turn, party),
            None => self.queue.push_back(Waiting { owner, mode, turn, party }),
        }
        place.unwrap_or(self.queue.len() - 1)
    }
}

impl Answer {
    /// The same, as an [engine] expects it of its store.
    #[must_use]
    pub fn at(self, now: BootInstant) -> engine::Answer {
        match self {
            Self::Granted(token) => engine::Answer::Granted(token),
            Self::Busy { ahead, until } => {
                let ends_in = until.map(|until| until.saturating_duration_since(now));
                engine::Answer::Busy { ahead, ends_in }
            }
        }
    }
}

fn is_of_another<P>(holder: &Holding<P>, owner: OwnerId) -> bool {
    holder.mode == Mode::Exclusive && holder.owner != owner
}

impl<P> Default for Record<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> Default for Changes<P> {
    fn default() -> Self {
        Self { granted: Vec::new(), removed: Vec::new(), expired: Vec::new() }
    }
}

impl<P> Holding<P> {
    /// What an owner has in this state.
    #[must_use]
    pub fn new(owner: OwnerId, mode: Mode, token: Token, until: BootInstant, party: P) -> Self {
        Self { owner, mode, token, until, party }
    }
}

impl<P> Waiting<P> {
    /// A waiter in this state.
    #[must_use]
    pub fn new(owner: OwnerId, mode: Mode, turn: Turn, party: P) -> Self {
        Self { owner, mode, turn, party }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(BootInstant);

    impl Now<()> for At {
        fn time(&self) -> BootInstant {
            self.0
        }

        fn lives(&self, _: &Waiting<()>) -> bool {
            true
        }

        fn mint(&mut self, last: Token) -> Token {
            Token::new(last.get() + 1)
        }
    }

    /// Waiters that are notified would learn of it at their next look alone.
    #[test]
    fn who_finds_that_a_lease_has_ended_hands_the_lock_over() {
        let (ttl, [holder, next, other]) = (Duration::from_secs(10), [(); 3].map(|()| OwnerId::random()));
        type Finds = fn(&mut Record, &mut At, OwnerId) -> (bool, Changes);
        let finds: [Finds; 3] = [
            |record, now, _| record.break_lock(now, |_| false),
            |record, now, other| record.downgrade(now, other, Duration::ZERO),
            |record, now, other| record.release(now, other),
        ];
        for find in finds {
            let (mut record, mut now) = (Record::new(), At(BootInstant::from_boot(ttl)));
            let ask = |owner, waits| Ask { owner, mode: Mode::Exclusive, ttl, waits, party: () };
            record.ask(&mut now, ask(holder, None));
            record.ask(&mut now, ask(next, Some(Turn::Granted(ttl))));
            now.0 = now.0 + ttl;
            let (_, changes) = find(&mut record, &mut now, other);
            assert_eq!(changes.granted, [next]);
        }
    }
}
