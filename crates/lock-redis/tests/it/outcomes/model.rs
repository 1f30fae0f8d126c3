//! The model: what every operation answers, tells and leaves.

use lock_core::{Mode, TokenBlock};

use super::op::Op;
use super::state::{Family, Fence, Lock, NAMES, Place, Stand, State, Ttl, Who, ttl_text};

/// How long a lock is kept for a waiter that was granted it, what an acquisition asks for, and an extension.
pub const GRACE: u32 = 100;
/// How far a release looks behind waiters that let others pass.
const NEAR: usize = 16;
/// How many of those an acquisition passes at most.
const FAR: usize = 256;
pub const ASKED: u32 = 300;
pub const EXTENDED: u32 = 400;

#[derive(Clone, Debug)]
pub struct Model {
    pub state: State,
    pub family: Family,
    pub alive: [bool; NAMES.len()],
    /// Whether a release is published on the channel of the lock.
    pub tells_free: bool,
}

/// What an operation did beside its change of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    pub answer: String,
    pub notified: Vec<String>,
    /// How many tokens were minted.
    pub mints: u64,
    /// How far above the last token is the one that it became, where that does not depend on the clock.
    pub noted: Option<Noted>,
}

/// What a master notes as the last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// That much more than the one before.
    By(i64),
    /// The first of the block after that of the one before.
    NextBlock,
}

impl Noted {
    /// For a proposal that is larger than the last token by this.
    fn claimed(by: i64) -> Self {
        if by > 0 { Self::By(by) } else { Self::NextBlock }
    }

    pub fn after(self, last: u64) -> u64 {
        match self {
            Self::By(by) => last.saturating_add_signed(by),
            Self::NextBlock => TokenBlock::end(last) + 1,
        }
    }
}

impl Model {
    pub fn new(family: Family, state: State, tells_free: bool) -> Self {
        let mut alive = [true; NAMES.len()];
        (alive[6], alive[7]) = (false, false);
        let state = if family == Family::Single { state.of_single() } else { state };
        Self { state, family, alive, tells_free }
    }

    pub fn run(&mut self, op: Op) -> Effect {
        let mut effect = Effect::default();
        effect.answer = self.answer(op, &mut effect);
        if self.family == Family::Single {
            self.state = self.state.clone().of_single();
        }
        effect
    }

    /// How far above the last token the one is that is meant. Where the last one was lost, others go on from where they
    /// were.
    pub fn above(&self, by: i64) -> i64 {
        if self.state.fence == Fence::Lost { by.max(1) } else { by }
    }

    fn answer(&mut self, op: Op, effect: &mut Effect) -> String {
        match op {
            Op::Claim(who, by) => {
                let by = by.map(|by| self.above(by));
                let answer = self.claim(who, false, effect);
                effect.noted = by.map(Noted::claimed).filter(|_| effect.mints > 0);
                answer
            }
            Op::Outright(who, by) => self.outright(who, by, effect),
            Op::LineUp(who) => self.claim(who, true, effect),
            Op::Vacate(who, leaves) => self.vacate(who, leaves, effect),
            Op::Ask(who, mode) => self.ask(who, mode, false, effect),
            Op::Queue(who, mode) | Op::Confirm(who, mode) => self.ask(who, mode, true, effect),
            Op::Release(who) => self.release(who, None, effect),
            Op::Leave(who, mode) => self.release(who, Some(mode), effect),
            Op::Rotate(from, to) => self.rotate(from, to, effect),
            Op::Extend(who) => {
                let ours = self.holds(who);
                if ours {
                    self.extend(who, EXTENDED);
                }
                if ours { "extended".into() } else { "not ours".into() }
            }
            Op::Keep(who) => {
                if !matches!(self.state.lock, Lock::Held(holder, _) if holder == who) {
                    if self.state.lock == Lock::Free {
                        self.call_first(0, effect);
                    }
                    return "not ours".into();
                }
                self.extend(who, EXTENDED);
                self.call_first(EXTENDED, effect);
                "kept".into()
            }
            Op::Downgrade(who) => self.downgrade(who, effect),
            Op::Raise(who, by) => self.raise(who, by, effect),
            Op::Look(who) if self.family == Family::Single => self.look(who),
            Op::Look(_) => self.look_at_vote(),
            Op::Break => self.break_lock(effect),
            other => {
                self.happens(other);
                String::new()
            }
        }
    }

    /// What others do, and what time does.
    fn happens(&mut self, op: Op) {
        let free = self.state.lock == Lock::Free;
        match op {
            Op::Set(ttl) if free => self.state.lock = Lock::Foreign(ttl),
            Op::Overwrite(ttl) if !free => self.state.lock = Lock::Foreign(ttl),
            Op::SetHash if free => self.state.lock = Lock::Hash,
            Op::Delete => self.state.lock = Lock::Free,
            Op::Expire(who) => {
                self.state.shares.entry(who).and_modify(|ttl| *ttl = 0);
            }
            Op::FlushAll => self.state = State::free(),
            Op::Die(who) => self.alive[who.0] = false,
            Op::Rise(who) => self.alive[who.0] = true,
            _ => {}
        }
    }

    fn claim(&mut self, who: Who, in_line: bool, effect: &mut Effect) -> String {
        match &self.state.lock {
            Lock::Held(holder, _) if *holder == who => {}
            Lock::Free => {}
            _ => {
                if in_line {
                    self.state.line.insert(Stand::Waits(who));
                }
                return self.busy(self.lock_ttl(), None);
            }
        }
        if !self.mint(who, effect) {
            self.state.lock = Lock::Free;
            return "refused".into();
        }
        // It is never shortened.
        let ttl = if self.state.lock == Lock::Free { Some(0) } else { self.lock_ttl() };
        self.state.lock = Lock::Held(who, Some(ttl.map_or(ASKED, |ttl| ttl.max(ASKED))));
        if in_line {
            self.state.line.remove(&Stand::Waits(who));
        }
        "granted".into()
    }

    /// Whoever it says to be unclear may have the lock, and no token.
    fn outright(&mut self, who: Who, by: i64, effect: &mut Effect) -> String {
        let taken = self.state.lock == Lock::Free;
        if taken {
            self.state.lock = Lock::Held(who, Some(ASKED));
        }
        let by = self.above(by);
        let is_larger = by > 0 && !matches!(self.state.fence, Fence::Hash | Fence::Full);
        if is_larger {
            self.state.fence = Fence::Of(None);
            effect.noted = Some(Noted::By(by));
        }
        if !taken || !is_larger {
            return "unclear".into();
        }
        effect.mints = 1;
        "granted".into()
    }

    fn vacate(&mut self, who: Who, leaves: bool, effect: &mut Effect) -> String {
        let held = matches!(self.state.lock, Lock::Held(holder, _) if holder == who);
        if leaves {
            self.state.line.remove(&Stand::Waits(who));
        }
        let is_wanted = match held || self.state.lock == Lock::Free {
            true => self.hand_over(effect),
            false => !self.state.line.is_empty(),
        };
        let held = if held { "vacated" } else { "not ours" };
        if is_wanted { format!("{held}, wanted") } else { held.into() }
    }

    /// Hands the lock of one of several masters over to the first waiter that is alive; says whether there may be waiters.
    fn hand_over(&mut self, effect: &mut Effect) -> bool {
        self.state.lock = Lock::Free;
        while let Some(first) = self.state.line.pop_first() {
            let Stand::Waits(next) = first else { continue };
            if effect.mints == 0 && !self.mint(next, effect) {
                self.state.line.insert(first);
                return true;
            }
            effect.noted = Some(Noted::By(1));
            if self.alive[next.0] {
                effect.notified.push(format!("{next} passed"));
                self.state.lock = Lock::Held(next, Some(GRACE));
                return true;
            }
        }
        false
    }

    fn ask(&mut self, who: Who, mode: Mode, waits: bool, effect: &mut Effect) -> String {
        if self.holds(who) {
            return self.token_again(who, effect);
        }
        // An exclusive holder shares with no client: the rest of the queue is not read.
        let alone = matches!(self.state.lock, Lock::Held(..) | Lock::Foreign(..));
        let doubts = self.has_room(mode);
        let depth = if doubts { FAR } else { 0 };
        if !alone && self.advance(Some(who), (false, doubts, depth), effect) && self.has_room(mode) {
            if !self.grant(who, mode, ASKED, effect) {
                return "refused".into();
            }
            self.advance(Some(who), (true, false, NEAR), effect);
            return "granted".into();
        }
        let place = waits.then(|| {
            let entry = Place::Waits(who, mode);
            let at = self.state.queue.iter().position(|other| *other == entry);
            at.unwrap_or_else(|| {
                self.state.queue.push(entry);
                self.state.queue.len() - 1
            })
        });
        let ends_in = self.ends_in(mode);
        self.busy(ends_in, place)
    }

    fn release(&mut self, who: Who, entry: Option<Mode>, effect: &mut Effect) -> String {
        let held = self.holds(who);
        match self.state.lock {
            Lock::Held(..) if held => {
                if self.pass_on(effect) {
                    return "released".into();
                }
                self.state.lock = Lock::Free;
            }
            Lock::Readers(_) | Lock::Permits(_) if self.state.shares.remove(&who).is_some() => {
                if self.sharers() == 0 {
                    self.state.lock = Lock::Free;
                } else {
                    self.settle();
                }
            }
            _ => {}
        }
        let place = entry.filter(|_| !held).map(|mode| Place::Waits(who, mode));
        let place = place.and_then(|entry| self.state.queue.iter().position(|other| *other == entry));
        if let Some(place) = place {
            self.state.queue.remove(place);
        }
        if held || place.is_some() {
            self.advance(None, (true, false, NEAR), effect);
            let is_shared = matches!(self.state.lock, Lock::Readers(_) | Lock::Permits(_));
            if self.tells_free && self.state.queue.is_empty() && (is_shared || self.state.lock == Lock::Free)
            {
                effect.notified.push("free".into());
            }
        }
        if held { "released".into() } else { "not ours".into() }
    }

    fn rotate(&mut self, from: Who, to: Who, effect: &mut Effect) -> String {
        if !matches!(self.state.lock, Lock::Held(who, _) if who == from) {
            return "not ours".into();
        }
        if !self.mint(to, effect) {
            return "refused".into();
        }
        self.state.lock = Lock::Held(to, Some(ASKED));
        "passed".into()
    }

    fn downgrade(&mut self, who: Who, effect: &mut Effect) -> String {
        if !self.holds(who) {
            return "not ours".into();
        }
        if matches!(self.state.lock, Lock::Held(..)) {
            self.state.shares.clear();
            self.state.lock = Lock::Readers(None);
            self.extend(who, EXTENDED);
            self.advance(None, (false, true, NEAR), effect);
            if self.tells_free && self.state.queue.is_empty() {
                effect.notified.push("free".into());
            }
        }
        self.extend(who, EXTENDED);
        "downgraded".into()
    }

    /// Lifts the last token.
    fn raise(&mut self, who: Who, by: i64, effect: &mut Effect) -> String {
        if !self.holds(who) {
            return "not ours".into();
        }
        let by = self.above(by);
        match self.state.fence {
            Fence::Hash => return "refused".into(),
            Fence::Full if by > 0 => return "refused".into(),
            Fence::Lost => self.state.fence = Fence::Of(None),
            _ => {}
        }
        effect.noted = Some(Noted::By(by.max(0)));
        "raised".into()
    }

    fn look(&self, who: Who) -> String {
        let (kind, mut value) = self.seen();
        if let (Lock::Readers(_) | Lock::Permits(_), Fence::Of(Some(last))) =
            (&self.state.lock, self.state.fence)
            && self.holds(last)
        {
            value = last.to_string();
        }
        let ours = if self.holds(who) { "ours" } else { "" };
        words(&[kind, &value, &format!("waiters={}", self.state.queue.len()), ours])
    }

    fn look_at_vote(&self) -> String {
        let (kind, value) = self.seen();
        let token = if matches!(self.state.fence, Fence::Of(_) | Fence::Full) { "token" } else { "" };
        words(&[kind, &value, token, &format!("waiters={}", self.state.line.len())])
    }

    /// The type of the key, and what is answered about its value.
    fn seen(&self) -> (&'static str, String) {
        match self.state.lock {
            Lock::Free => ("none", String::new()),
            Lock::Hash => ("hash", String::new()),
            Lock::Foreign(_) => ("string", "foreign".into()),
            Lock::Held(holder, _) => ("string", holder.to_string()),
            Lock::Bare(who, _) => ("string", format!("bare-{who}")),
            Lock::Longer(who, _) => ("string", format!("longer-{who}")),
            Lock::Readers(_) | Lock::Permits(_) => ("string", "shared".into()),
        }
    }

    fn break_lock(&mut self, effect: &mut Effect) -> String {
        match self.state.lock {
            Lock::Free => return "none".into(),
            Lock::Hash => return "hash".into(),
            _ => {}
        }
        self.state.lock = Lock::Free;
        self.state.shares.clear();
        if self.family == Family::Single {
            self.advance(None, (true, false, NEAR), effect);
            self.tell_free(effect);
        }
        "string".into()
    }

    /// Hands the lock over to the first waiter, if that wants it exclusively and is alive.
    fn pass_on(&mut self, effect: &mut Effect) -> bool {
        let Some(Place::Waits(who, Mode::Exclusive)) = self.state.queue.first().copied() else {
            return false;
        };
        self.state.queue.remove(0);
        let passed = self.mint(who, effect) && self.alive[who.0];
        if passed {
            effect.notified.push(format!("{who} passed"));
            self.state.lock = Lock::Held(who, Some(GRACE));
        }
        passed
    }

    /// Tells the first who is there that it is the first.
    fn call_first(&mut self, ttl: u32, effect: &mut Effect) {
        while let Some(first) = self.state.queue.first() {
            if let Place::Waits(first, _) = first
                && self.alive[first.0]
            {
                effect.notified.push(format!("{first} next {}", ttl_text(Some(ttl))));
                return;
            }
            self.state.queue.remove(0);
        }
    }

    /// Grants to waiters, while there is room; says whether nobody is before `me`. Waiters whose number of permits is used up
    /// are passed by those behind, up to `depth` of them.
    fn advance(
        &mut self,
        me: Option<Who>,
        (mut moved, doubts, depth): (bool, bool, usize),
        effect: &mut Effect,
    ) -> bool {
        let mut passed = 0;
        while let Some(next) = self.state.queue.get(passed).copied() {
            let Place::Waits(who, mode) = next else {
                self.state.queue.remove(passed);
                moved |= passed == 0;
                continue;
            };
            if self.has_room(mode) {
                self.state.queue.remove(passed);
                moved |= passed == 0;
                if me == Some(who) {
                    return true;
                }
                if self.alive[who.0] {
                    effect.notified.push(format!("{who} granted"));
                    if !self.grant(who, mode, GRACE, effect) {
                        return true;
                    }
                }
            } else if me != Some(who)
                && !self.alive[who.0]
                && (passed == 0 && moved || doubts && (passed == 0 || !matches!(mode, Mode::Permit { .. })))
            {
                self.state.queue.remove(passed);
                moved |= passed == 0;
            } else {
                if passed == 0 && moved && me != Some(who) {
                    let ends_in = ttl_text(self.ends_in(mode));
                    effect.notified.push(format!("{who} next {ends_in}"));
                }
                let lets_pass = matches!((&self.state.lock, mode), (Lock::Permits(_), Mode::Permit { .. }));
                if me == Some(who) || !lets_pass || passed == depth {
                    return false;
                }
                passed += 1;
            }
        }
        true
    }

    fn grant(&mut self, who: Who, mode: Mode, ttl: u32, effect: &mut Effect) -> bool {
        if !self.mint(who, effect) {
            return false;
        }
        if mode == Mode::Exclusive {
            self.state.lock = Lock::Held(who, Some(ttl));
            return true;
        }
        if self.state.lock == Lock::Free {
            self.state.shares.clear();
            self.state.lock = if mode == Mode::Shared { Lock::Readers(None) } else { Lock::Permits(None) };
        }
        self.extend(who, ttl);
        true
    }

    fn extend(&mut self, who: Who, ttl: u32) {
        if let Lock::Held(_, old) = &mut self.state.lock {
            *old = Some(ttl);
        } else {
            self.state.shares.insert(who, ttl);
            self.settle();
        }
    }

    /// The lock lasts as long as the last share.
    fn settle(&mut self) {
        if let Lock::Readers(ttl) | Lock::Permits(ttl) = &mut self.state.lock {
            *ttl = self.state.shares.values().max().copied();
        }
    }

    fn holds(&self, who: Who) -> bool {
        match self.state.lock {
            Lock::Held(holder, _) => holder == who,
            Lock::Readers(_) | Lock::Permits(_) if self.family == Family::Single => {
                self.state.shares.get(&who).is_some_and(|ttl| *ttl > 0)
            }
            _ => false,
        }
    }

    fn has_room(&mut self, mode: Mode) -> bool {
        match (&self.state.lock, mode) {
            (Lock::Free, _) | (Lock::Readers(_), Mode::Shared) => true,
            (Lock::Permits(_), Mode::Permit { max }) => self.sharers() < max.get() as usize,
            _ => false,
        }
    }

    /// How many share the lock; removes those that expired.
    fn sharers(&mut self) -> usize {
        self.state.shares.retain(|_, ttl| *ttl > 0);
        self.state.shares.len()
    }

    fn ends_in(&mut self, mode: Mode) -> Ttl {
        if let (Lock::Permits(_), Mode::Permit { .. }) = (&self.state.lock, mode)
            && self.sharers() > 0
        {
            return self.state.shares.values().min().copied();
        }
        self.lock_ttl()
    }

    fn lock_ttl(&self) -> Ttl {
        match self.state.lock {
            Lock::Free => Some(0),
            Lock::Hash => None,
            Lock::Held(_, ttl) | Lock::Bare(_, ttl) | Lock::Longer(_, ttl) => ttl,
            Lock::Foreign(ttl) | Lock::Readers(ttl) | Lock::Permits(ttl) => ttl,
        }
    }

    fn busy(&self, ends_in: Ttl, place: Option<usize>) -> String {
        let kind = if self.state.lock == Lock::Hash { " hash" } else { "" };
        let place = place.map(|place| format!(" place={place}")).unwrap_or_default();
        format!("busy {}{kind}{place}", ttl_text(ends_in))
    }

    /// The answer to who holds the lock already: another token.
    fn token_again(&mut self, who: Who, effect: &mut Effect) -> String {
        if !self.mint(who, effect) {
            return "refused".into();
        }
        self.extend(who, ASKED);
        if matches!(self.state.lock, Lock::Held(..)) {
            self.call_first(ASKED, effect);
        }
        "granted".into()
    }

    fn mint(&mut self, who: Who, effect: &mut Effect) -> bool {
        if matches!(self.state.fence, Fence::Hash | Fence::Full) {
            return false;
        }
        self.state.fence = Fence::Of((self.family == Family::Single).then_some(who));
        effect.mints += 1;
        true
    }

    fn tell_free(&self, effect: &mut Effect) {
        if self.tells_free && self.state.lock == Lock::Free {
            effect.notified.push("free".into());
        }
    }
}

/// Those that are not empty, one behind the other.
pub fn words(words: &[&str]) -> String {
    words.iter().copied().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
