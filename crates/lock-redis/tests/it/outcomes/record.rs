//! What every operation does by the specification, [`lock_core::record`], from the same state.
//!
//! It says nothing about locks of other clients, keys of another type and junk in the queue. Redis differs on purpose:
//!
//! * Who releases what it does not have hands nothing over.
//! * A hand-over within a process leaves the queue entry of the next holder, which `leave` removes.
//! * Dead waiters stay in the queue, and count, until the lock is free or somebody asks who could share it. Those behind them ask now and then.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::record::{Answer, Ask, Changes, Holding, Now, Record, Turn, Waiting};
use lock_core::{BootInstant, Mode, OwnerId, Token};

use super::bench::{ASKED, EXTENDED, GRACE, seconds};
use super::laws::Step;
use super::op::Op;
use super::state::{Fence, Lock, NAMES, Place, State, Who, mode_text};

/// Compares what an operation did with the specification.
pub fn check(step: &Step) {
    let Some(mut record) = record_of(step) else { return };
    let Some((answer, changes)) = run(&mut record, step) else { return };
    let mut granted: Vec<_> = changes.granted.iter().map(|owner| who(*owner)).collect();
    granted.sort();
    let told = |told: &&String| told.ends_with(" granted") || told.ends_with(" passed");
    let mut told: Vec<Who> = step
        .notified
        .iter()
        .filter(told)
        .map(|told| told.split(' ').next().unwrap().parse().unwrap())
        .collect();
    told.sort();
    let dead = record_of(step)
        .map(|before| before.queue().iter().filter(|waiter| !step.alive[who(waiter.owner).0]).count());
    if dead > Some(0) && step.answer.starts_with("busy") {
        return;
    }
    let seen = (step.answer.as_str(), told, Essence::of_state(&step.after, step));
    let wanted = (answer.as_str(), granted, Essence::of_record(&record, step));
    assert_eq!(seen, wanted, "the specification: {} on {}", step.op, step.before);
}

fn run(record: &mut Record, step: &Step) -> Option<(String, Changes)> {
    let mut now = Moment(step);
    let ours = |is_ours, what: &str| if is_ours { what } else { "not ours" }.to_owned();
    let ask = |owner, mode, waits| Ask { owner: id(owner), mode, ttl: seconds(ASKED), waits, party: () };
    let nobody = Changes::default();
    let holds = |who| record.holders().iter().any(|holder| holder.owner == id(who));
    let waits = |who| record.queue().iter().any(|waiter| waiter.owner == id(who));
    Some(match step.op {
        Op::Ask(who, mode) => answered(record.ask(&mut now, ask(who, mode, None))),
        Op::Queue(who, mode) | Op::Confirm(who, mode) => {
            answered(record.ask(&mut now, ask(who, mode, Some(Turn::Granted(seconds(GRACE))))))
        }
        Op::Release(who) if holds(who) => {
            let (was_held, changes) = record.release(&mut now, id(who));
            (ours(was_held, "released"), changes)
        }
        Op::Leave(who, _) if holds(who) || waits(who) => {
            let (was_held, changes) = record.release(&mut now, id(who));
            (ours(was_held, "released"), changes)
        }
        Op::Rotate(from, to) if from != to && !waits(to) => {
            let token = record.hand_over(&mut now, id(from), ask(to, Mode::Exclusive, None));
            (ours(token.is_some(), "passed"), nobody)
        }
        Op::Extend(who) => {
            (ours(record.extend(&now, id(who), seconds(EXTENDED), true).is_some(), "extended"), nobody)
        }
        Op::Downgrade(who) => {
            let (is_shared, changes) = record.downgrade(&mut now, id(who), seconds(EXTENDED));
            (ours(is_shared, "downgraded"), changes)
        }
        Op::Raise(who, by) => {
            let floor = Token::new(step.previous.saturating_add_signed(by));
            (ours(record.raise(&now, id(who), floor), "raised"), nobody)
        }
        Op::Break => {
            let (was_held, changes) = record.break_lock(&mut now, |_| true);
            (if was_held { "string" } else { "none" }.to_owned(), changes)
        }
        _ => return None,
    })
}

fn answered((answer, changes): (Answer, Changes)) -> (String, Changes) {
    let answer = match answer {
        Answer::Granted(_) => "granted".to_owned(),
        Answer::Busy { ahead, until } => {
            let ends = until.map_or(0, |until| until.saturating_duration_since(after(0)).as_secs());
            let place = ahead.map_or_else(String::new, |ahead| format!(" place={ahead}"));
            format!("busy {ends}{place}")
        }
    };
    (answer, changes)
}

/// The time stands still.
struct Moment<'a>(&'a Step);

impl Now<()> for Moment<'_> {
    fn time(&self) -> BootInstant {
        after(0)
    }

    fn lives(&self, waiter: &Waiting) -> bool {
        self.0.alive[who(waiter.owner).0]
    }

    fn mint(&mut self, last: Token) -> Token {
        Token::new(last.get() + 16)
    }
}

/// The state before, if the specification knows it.
fn record_of(step: &Step) -> Option<Record> {
    let State { lock, shares, queue, fence, .. } = &step.before;
    if !matches!(fence, Fence::Lost | Fence::Of(_)) || !matches!(step.after.fence, Fence::Lost | Fence::Of(_))
    {
        return None;
    }
    let last = Token::new(step.previous);
    let hold = |who: Who, mode, ttl| Holding::new(id(who), mode, last, after(ttl), ());
    let holders: Vec<_> = match lock {
        Lock::Free if shares.is_empty() => Vec::new(),
        Lock::Held(who, Some(ttl)) if shares.is_empty() => vec![hold(*who, Mode::Exclusive, *ttl)],
        // A share may have been ended by hand, and the lock lasts until the last of them was to end.
        Lock::Readers(ttl) | Lock::Permits(ttl) if *ttl != shares.values().max().copied() => return None,
        Lock::Readers(_) => shares.iter().map(|(who, ttl)| hold(*who, Mode::Shared, *ttl)).collect(),
        Lock::Permits(_) => shares.iter().map(|(who, ttl)| hold(*who, PERMIT, *ttl)).collect(),
        _ => return None,
    };
    let wait = |place: &Place| match place {
        Place::Waits(who, mode) => Some(Waiting::new(id(*who), *mode, Turn::Granted(seconds(GRACE)), ())),
        Place::Junk => None,
    };
    let queue = queue.iter().map(wait).collect::<Option<Vec<_>>>()?;
    // Who holds a lock does not wait for it: each acquisition has an owner of its own.
    let holds_too = |waiter: &Waiting| holders.iter().any(|holder: &Holding| holder.owner == waiter.owner);
    if queue.iter().any(holds_too) {
        return None;
    }
    Some(Record::of(last, holders, queue))
}

/// A server does not know how many permits a holder knew of.
const PERMIT: Mode = Mode::Permit { max: NonZeroU32::MAX };

/// What counts of a state: who holds the lock in which way for how long, and the waiters that live.
#[derive(Debug, PartialEq)]
struct Essence {
    holders: BTreeMap<Who, (&'static str, u64)>,
    queue: Vec<(Who, String)>,
}

impl Essence {
    fn of_state(state: &State, step: &Step) -> Self {
        let shares = |kind| {
            let lasting = state.shares.iter().filter(|(_, ttl)| **ttl > 0);
            lasting.map(|(who, ttl)| (*who, (kind, u64::from(*ttl)))).collect()
        };
        let holders = match &state.lock {
            Lock::Held(who, ttl) => BTreeMap::from([(*who, ("x", u64::from(ttl.unwrap_or_default())))]),
            Lock::Readers(_) => shares("r"),
            Lock::Permits(_) => shares("p"),
            _ => BTreeMap::new(),
        };
        let waits = |place: &Place| match place {
            Place::Waits(who, mode) => step.alive[who.0].then(|| (*who, mode_text(*mode))),
            Place::Junk => None,
        };
        Self { holders, queue: state.queue.iter().filter_map(waits).collect() }
    }

    fn of_record(record: &Record, step: &Step) -> Self {
        let lasting = record.holders().iter().filter(|holder| holder.until > after(0));
        let holders = lasting.map(|holder| {
            let kind = match holder.mode {
                Mode::Shared => "r",
                Mode::Permit { .. } => "p",
                _ => "x",
            };
            (who(holder.owner), (kind, holder.until.saturating_duration_since(after(0)).as_secs()))
        });
        let alive = record.queue().iter().filter(|waiter| step.alive[who(waiter.owner).0]);
        let queue = alive.map(|waiter| (who(waiter.owner), mode_text(waiter.mode))).collect();
        Self { holders: holders.collect(), queue }
    }
}

/// After this number of seconds.
fn after(seconds: u32) -> BootInstant {
    BootInstant::from_boot(Duration::from_secs(1_000 + u64::from(seconds)))
}

fn id(who: Who) -> OwnerId {
    OwnerId::decode(&format!("{:032x}", who.0 + 1)).expect("an id")
}

fn who(owner: OwnerId) -> Who {
    (0..NAMES.len()).map(Who).find(|who| id(*who) == owner).expect("one of the names")
}
