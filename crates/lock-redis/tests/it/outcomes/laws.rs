//! What holds whatever is done to a lock: one holder, tokens that grow, waiters that are neither forgotten nor overtaken.

use std::collections::BTreeSet;

use lock_core::{Mode, TokenBlock};

use super::op::Op;
use super::state::{Family, Fence, Lock, NAMES, Place, Stand, State, Who};

/// An operation on a lock, and what it did.
pub struct Step {
    pub op: Op,
    pub family: Family,
    /// Whose processes listen.
    pub alive: [bool; NAMES.len()],
    pub before: State,
    pub after: State,
    pub answer: String,
    /// Who was told what, as in `ann granted`, `bob next 100` and `free`.
    pub notified: Vec<String>,
    /// The largest token before, the one that was answered, and the last one after.
    pub previous: u64,
    pub token: Option<u64>,
    pub last: Option<u64>,
}

impl Step {
    pub fn check(&self) {
        self.holders_end_by_themselves();
        self.holders_are_granted();
        self.answers_are_true();
        self.waiters_are_not_forgotten();
        self.waiters_are_not_overtaken();
        self.tokens_grow();
    }

    fn is(&self, holds: bool, law: &str) {
        let Self { op, before, answer, notified, after, previous, token, last, .. } = self;
        assert!(
            holds,
            "{law}: {op} on {before}, after {previous}: {answer:?}, notified {notified:?}, then {after}; token {token:?}, \
             noted {last:?}"
        );
    }

    /// Nobody else ends a lock, but whoever breaks it.
    fn holders_end_by_themselves(&self) {
        let (before, after) = (self.holders(&self.before), self.holders(&self.after));
        let by_force = matches!(self.op, Op::Break | Op::Delete | Op::FlushAll | Op::Overwrite(_));
        for who in before.difference(&after) {
            let ends = match self.op {
                Op::Release(other) | Op::Leave(other, _) | Op::Rotate(other, _) | Op::Vacate(other, _) => {
                    other == *who
                }
                // Its own lock, if no token can be minted.
                Op::Claim(other, _) | Op::LineUp(other) => other == *who && self.answer == "refused",
                Op::Expire(other) => other == *who,
                _ => by_force,
            };
            self.is(ends, "somebody else ended a lock");
        }
        if self.is_of_others(&self.before) {
            self.is(by_force || self.after.lock == self.before.lock, "the lock of a stranger was changed");
        }
    }

    /// A lock has a holder only if that was told, and in the mode that it wants.
    fn holders_are_granted(&self) {
        let (before, after) = (self.holders(&self.before), self.holders(&self.after));
        for who in after.difference(&before) {
            let answered =
                ["granted", "unclear", "passed"].contains(&&*self.answer) && self.op.gets() == Some(*who);
            self.is(answered || self.was_granted(*who), "a holder does not know that it is one");
            let fits = matches!(
                (&self.after.lock, self.mode_of(*who)),
                (Lock::Held(..), None | Some(Mode::Exclusive))
                    | (Lock::Readers(_), Some(Mode::Shared))
                    | (Lock::Permits(_), Some(Mode::Permit { .. }))
            );
            self.is(fits, "a lock was granted in another mode");
        }
        // The last of them found room, and it is not told which one that is.
        let most = after.difference(&before).filter_map(|who| match self.mode_of(*who)? {
            Mode::Permit { max } => Some(max.get() as usize),
            _ => None,
        });
        self.is(most.max().is_none_or(|most| after.len() <= most), "a lock was granted to too many");
    }

    fn answers_are_true(&self) {
        let (before, after) = (self.holders(&self.before), self.holders(&self.after));
        let Some(who) = self.op.who() else { return };
        let (had, has) = (before.contains(&who), after.contains(&who));
        let is_true = match self.answer.split([' ', ',']).next().unwrap_or_default() {
            "granted" => has,
            "busy" => !had && !has,
            "released" | "vacated" => had && (!has || self.was_granted(who)),
            // What only an exclusive holder may do.
            "not" => !had || matches!(self.op, Op::Keep(_) | Op::Rotate(..)) && !self.before.is_exclusive(),
            "extended" | "kept" | "downgraded" | "raised" => had && has,
            "passed" => had && self.op.gets().is_some_and(|next| after.contains(&next)),
            _ => true,
        };
        self.is(is_true, "the answer is not true");
        if let Op::Look(_) = self.op {
            self.is(self.after == self.before && self.notified.is_empty(), "a look changed something");
        }
    }

    /// A waiter that listens leaves the queue with the lock only, or by itself.
    fn waiters_are_not_forgotten(&self) {
        let (before, after) = (waiters(&self.before), waiters(&self.after));
        for who in before.iter().filter(|who| self.alive[who.0] && !after.contains(who)) {
            let leaves = match self.op {
                Op::Leave(other, _) | Op::Vacate(other, true) => other == *who,
                Op::FlushAll => true,
                _ => self.op.gets() == Some(*who) && self.holders(&self.after).contains(who),
            };
            self.is(leaves || self.is_full() || self.was_granted(*who), "a waiter was forgotten");
        }
        for text in &self.notified {
            let mut words = text.split(' ');
            let (who, what) = (words.next().and_then(|name| name.parse::<Who>().ok()), words.next());
            let is_true = match (who, what) {
                (Some(who), Some("next")) => first(&self.after) == Some(who),
                (Some(who), _) => {
                    before.contains(&who) && (self.is_full() || self.holders(&self.after).contains(&who))
                }
                (None, _) => text == "free" && self.after.queue.is_empty(),
            };
            self.is(is_true, "a notification is not true");
        }
        let ends = ["released", "vacated"].iter().any(|end| self.answer.starts_with(end));
        if ends && self.after.lock == Lock::Free && !self.is_full() {
            self.is(
                !after.iter().any(|who| self.alive[who.0]),
                "a free lock was left to a waiter that is not told",
            );
        }
    }

    /// Who wants the lock alone comes after all who waited before.
    fn waiters_are_not_overtaken(&self) {
        let (Op::Ask(who, Mode::Exclusive)
        | Op::Queue(who, Mode::Exclusive)
        | Op::Confirm(who, Mode::Exclusive)) = self.op
        else {
            return;
        };
        if self.answer != "granted" || self.holders(&self.before).contains(&who) {
            return;
        }
        let ahead = self.before.queue.iter().filter_map(|place| match place {
            Place::Waits(other, _) => Some(*other),
            Place::Junk => None,
        });
        let overtaken = ahead.take_while(|other| *other != who).any(|other| self.alive[other.0]);
        self.is(!overtaken, "a waiter was overtaken");
    }

    fn tokens_grow(&self) {
        let (previous, token) = (self.previous, self.token);
        let was_known = matches!(self.before.fence, Fence::Of(_) | Fence::Full) && self.op != Op::FlushAll;
        self.is(
            token.is_none_or(|token| token > previous && self.last.is_some_and(|last| last >= token)),
            "a token that is not larger, or not noted",
        );
        self.is(!was_known || self.last.is_some_and(|last| last >= previous), "the last token fell");
        let proposed = |by: i64| previous.checked_add_signed(by).unwrap();
        let noted = match self.op {
            Op::Raise(_, by) if self.answer == "raised" => {
                Some(previous.max(proposed(self.before.above(by))))
            }
            Op::Claim(_, Some(by)) if token.is_some() => Some(match self.before.above(by) {
                by @ 1.. => proposed(by),
                _ => TokenBlock::end(previous) + 1,
            }),
            // It is noted before it is known whether the lock is free.
            Op::Outright(_, by) if !self.is_full() => Some(previous.max(proposed(self.before.above(by)))),
            _ if token.is_some() || !self.notified.is_empty() => None,
            // One that was minted for a waiter that turned out to be dead is lost.
            Op::Release(_) | Op::Leave(..) | Op::Vacate(..) => None,
            _ if was_known => Some(previous),
            _ => None,
        };
        self.is(
            noted.is_none_or(|noted| self.last == Some(noted)),
            "another token was noted than the last one",
        );
    }

    /// The acquisitions that hold the lock.
    fn holders(&self, state: &State) -> BTreeSet<Who> {
        match state.lock {
            Lock::Held(holder, _) => BTreeSet::from([holder]),
            Lock::Readers(_) | Lock::Permits(_) if self.family == Family::Single => {
                state.shares.iter().filter(|(_, ttl)| **ttl > 0).map(|(who, _)| *who).collect()
            }
            _ => BTreeSet::new(),
        }
    }

    fn is_of_others(&self, state: &State) -> bool {
        match state.lock {
            Lock::Free | Lock::Held(..) => false,
            Lock::Readers(_) | Lock::Permits(_) => self.family == Family::Master,
            Lock::Bare(..) | Lock::Longer(..) | Lock::Foreign(_) | Lock::Hash => true,
        }
    }

    /// Whether no token can be noted.
    const fn is_full(&self) -> bool {
        matches!(self.before.fence, Fence::Hash | Fence::Full)
    }

    fn was_granted(&self, who: Who) -> bool {
        ["granted", "passed"].iter().any(|what| self.notified.contains(&format!("{who} {what}")))
    }

    /// In which mode it wants the lock; `None` on a master.
    fn mode_of(&self, who: Who) -> Option<Mode> {
        let waits = self.before.queue.iter().find_map(|place| match place {
            Place::Waits(other, mode) if *other == who => Some(*mode),
            _ => None,
        });
        match self.op {
            Op::Ask(other, mode) | Op::Queue(other, mode) | Op::Confirm(other, mode) if other == who => {
                Some(mode)
            }
            Op::Rotate(_, next) if next == who => Some(Mode::Exclusive),
            _ => waits,
        }
    }
}

fn waiters(state: &State) -> BTreeSet<Who> {
    let in_queue = state.queue.iter().filter_map(|place| match place {
        Place::Waits(who, _) => Some(*who),
        Place::Junk => None,
    });
    let in_line = state.line.iter().filter_map(|stand| match stand {
        Stand::Waits(who) => Some(*who),
        Stand::Junk => None,
    });
    in_queue.chain(in_line).collect()
}

fn first(state: &State) -> Option<Who> {
    match state.queue.first() {
        Some(Place::Waits(who, _)) => Some(*who),
        _ => None,
    }
}
