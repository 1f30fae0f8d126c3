//! The record of a lock, as it is stored: its entries count from when a client sees them, or was told on a clock that it shares.

use std::time::{Duration, SystemTime};

use lock_core::drift::margin;
use lock_core::record::{Holding, Now, Record, Shown, Turn, Waiting};
use lock_core::{BootInstant, Mode, OwnerId, OwnerInfo, Result, Token, TokenBlock, random};
use rand::Rng;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

use crate::boot::{BootId, BootTime};
use crate::error::{not_a_record, other_format};
use crate::registers::Notice;
use crate::waiters;

const FORMAT: u32 = 1;
/// Far beyond all that is counted or minted, and so far from the end that nothing overflows. Nothing larger is written.
const LARGEST: u64 = i64::MAX.cast_unsigned() - TokenBlock::SIZE;

/// One value of a lock. Each that is ever written differs from all others, as its number does, and its mark.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Stored {
    format: u32,
    /// How many values there were before it, from a random number on.
    number: u64,
    /// A random number.
    mark: u32,
    last: Token,
    holders: Vec<Holder>,
    queue: Vec<Waiter>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Holder {
    owner: OwnerId,
    mode: Mode,
    token: Token,
    /// Whether it is notified of its grant, and has not confirmed it.
    #[serde(default, skip_serializing_if = "is_false")]
    notified: bool,
    #[serde(flatten)]
    party: Party,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Waiter {
    owner: OwnerId,
    mode: Mode,
    /// For how long the lock is kept for it once it is granted.
    grace_ms: u64,
    #[serde(flatten)]
    party: Party,
}

/// What is kept of a holder or a waiter.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Party {
    info: OwnerInfo,
    since: SystemTime,
    /// The number of the value by which its owner last said that it lives: while this is the same, it has said nothing.
    beat: u64,
    /// For how long it lives after that.
    lasts_ms: u64,
    /// When that was, where processes share a clock: before the value was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<BootTime>,
    /// When it ends by the time of day, if nobody counts on it: its guard is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left_until: Option<SystemTime>,
    /// When this client counts it dead.
    #[serde(skip, default = "never")]
    dead_at: BootInstant,
}

/// What a client knows when it changes a record.
#[derive(Debug)]
pub(crate) struct Moment {
    now: BootInstant,
    /// The boot whose clock this is.
    boot: Option<BootId>,
    /// Those that say that they live, for so long at least.
    alive: Vec<(OwnerId, Duration)>,
    /// Those of them whose guards are gone.
    leaving: Vec<OwnerId>,
    /// Whether waiters are notified of a grant.
    notifies: bool,
}

impl Stored {
    /// The record of a lock that nobody has had.
    pub(crate) fn new() -> Self {
        let number = random::rng().random_range(1..1 << 40);
        let (holders, queue) = (Vec::new(), Vec::new());
        Self { format: FORMAT, number, mark: 0, last: Token::new(0), holders, queue }
    }

    /// Parses a value.
    pub(crate) fn parse(name: &'static str, key: &str, value: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } =
            serde_json::from_slice(value).map_err(|error| not_a_record(name, key, error))?;
        if format != FORMAT {
            return Err(other_format(name, key, format, FORMAT));
        }
        let stored: Self = serde_json::from_slice(value).map_err(|error| not_a_record(name, key, error))?;
        if stored.is_possible() {
            Ok(stored)
        } else {
            let text = "a number is larger than any that is ever written";
            Err(not_a_record(name, key, serde_json::Error::custom(text)))
        }
    }

    /// Whether the numbers are some that are written: others would overflow.
    pub(crate) fn is_possible(&self) -> bool {
        let mut tokens = self.holders.iter().map(|holder| holder.token).chain([self.last]);
        self.number <= LARGEST && tokens.all(|token| token.get() <= LARGEST)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has no keys but text")
    }

    /// What this client has to observe: each owner with its last beat.
    pub(crate) fn beats(&self) -> impl Iterator<Item = (OwnerId, u64)> {
        let holders = self.holders.iter().map(|holder| (holder.owner, holder.party.beat));
        holders.chain(self.queue.iter().map(|waiter| (waiter.owner, waiter.party.beat)))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Whether others change it now and then: it has waiters, or several holders.
    pub(crate) fn is_busy(&self) -> bool {
        self.holders.len() > 1 || !self.queue.is_empty()
    }

    /// The record, with the ends that this client observes: `seen` is when a read returned that showed this beat of the owner first. It was
    /// written before, and a process of the same boot knows when. Of what was left, the time of day tells the end as well.
    pub(crate) fn record(
        &self,
        seen: impl Fn(OwnerId, u64) -> BootInstant,
        (now, boot): (BootInstant, Option<&BootId>),
    ) -> Record<Party> {
        let observed = |owner, party: &Party| {
            let (lasts, seen) = (party.lasts(), seen(owner, party.beat));
            let written = party.at.as_ref().and_then(|at| at.on(boot)).unwrap_or(seen);
            let dead_at = seen.min(written) + lasts + margin(lasts);
            let left = party.left_until.map(|end| now + end.duration_since(wall_clock()).unwrap_or_default());
            Party { dead_at: left.map_or(dead_at, |end| end.min(dead_at)), ..party.clone() }
        };
        let holders = self.holders.iter().map(|holder| {
            let party = observed(holder.owner, &holder.party);
            Holding::new(holder.owner, holder.mode, holder.token, party.dead_at, party)
        });
        let queue = self.queue.iter().map(|waiter| {
            let turn = Turn::Granted(Duration::from_millis(waiter.grace_ms));
            Waiting::new(waiter.owner, waiter.mode, turn, observed(waiter.owner, &waiter.party))
        });
        Record::of(self.last, holders, queue)
    }

    /// The next value, if this record follows.
    pub(crate) fn followed_by(&self, record: &Record<Party>, moment: &Moment) -> Self {
        let (number, mark) = (self.number + 1, random::rng().random());
        let holders = record.holders().iter().map(|holder| {
            let &Holding { owner, mode, token, until, .. } = holder;
            let mut party = moment.beat_of(owner, &holder.party, Some(until), number);
            let before = self.holders.iter().find(|before| before.owner == owner);
            if before.is_none() {
                // It may have waited until now.
                party.since = wall_clock();
            }
            let notified = moment.notifies && moment.heard(owner).is_none();
            Holder {
                owner,
                mode,
                token,
                notified: notified && before.is_none_or(|before| before.notified),
                party,
            }
        });
        let queue = record.queue().iter().map(|waiter| Waiter {
            owner: waiter.owner,
            mode: waiter.mode,
            grace_ms: match waiter.turn {
                Turn::Granted(grace) => millis(grace),
                Turn::Asks => 0,
            },
            party: moment.beat_of(waiter.owner, &waiter.party, None, number),
        });
        let (holders, queue) = (holders.collect(), queue.collect());
        Self { format: FORMAT, number, mark, last: record.last(), holders, queue }
    }

    /// Who is notified of a grant, and has not confirmed it, with its beat.
    pub(crate) fn notified(&self) -> impl Iterator<Item = (OwnerId, u64)> {
        self.holders.iter().filter(|holder| holder.notified).map(|holder| (holder.owner, holder.party.beat))
    }

    /// What waiters are told when this value follows another one.
    pub(crate) fn notices_after(&self, before: &Self) -> Vec<Notice> {
        let notified = |stored: &Self| stored.notified().map(|(owner, _)| owner).collect::<Vec<_>>();
        let (before, after) = (notified(before), notified(self));
        let over = before.iter().filter(|owner| !after.contains(owner));
        let granted = after.iter().filter(|owner| !before.contains(owner));
        over.copied().map(Notice::Over).chain(granted.copied().map(Notice::Granted)).collect()
    }

    /// Whether it says the same as this one, but for what tells them apart.
    pub(crate) fn says_the_same_as(&self, before: &Self) -> bool {
        let Self { last, holders, queue, .. } = before;
        self.last == *last && self.holders == *holders && self.queue == *queue
    }

    /// How long the lease of a holder lasts from a beat on.
    pub(crate) fn lasts(&self, owner: OwnerId) -> Option<Duration> {
        self.holders.iter().find(|holder| holder.owner == owner).map(|holder| holder.party.lasts())
    }
}

impl Party {
    /// A new one, which lasts for so long after each beat.
    pub(crate) fn new(info: &OwnerInfo, lasts: Duration) -> Self {
        let (since, lasts_ms) = (wall_clock(), millis(lasts));
        Self { info: info.clone(), since, beat: 0, lasts_ms, at: None, left_until: None, dead_at: never() }
    }

    fn lasts(&self) -> Duration {
        Duration::from_millis(self.lasts_ms)
    }

    /// When it is to say again that it lives: after a third of its time.
    pub(crate) fn next_beat(&self) -> BootInstant {
        let lasts = self.lasts();
        self.dead_at - margin(lasts) - lasts * 2 / 3
    }
}

impl Moment {
    pub(crate) const fn new(now: BootInstant, boot: Option<BootId>, notifies: bool) -> Self {
        Self { now, boot, alive: Vec::new(), leaving: Vec::new(), notifies }
    }

    /// For how long this owner lives at least, if it says so.
    fn heard(&self, owner: OwnerId) -> Option<Duration> {
        self.alive.iter().find(|(alive, _)| *alive == owner).map(|(_, lasts)| *lasts)
    }

    /// Notes that this owner lives, for so long at least: whoever observes it waits anew.
    pub(crate) fn hear(&mut self, owner: OwnerId, lasts: Duration) {
        self.alive.push((owner, lasts));
    }

    /// Notes that nobody counts on what this owner has.
    pub(crate) fn leave(&mut self, owner: OwnerId) {
        self.leaving.push(owner);
    }

    /// What is stored with an entry in the value of this number, `until` when it lasts if it has a lease.
    fn beat_of(&self, owner: OwnerId, party: &Party, until: Option<BootInstant>, number: u64) -> Party {
        let heard = self.heard(owner);
        let is_same = until.is_none_or(|until| until == party.dead_at);
        if heard.is_none() && is_same && party.beat != 0 {
            return Party { dead_at: never(), ..party.clone() };
        }
        let lasts = match until {
            None => return self.told(owner, party, heard.unwrap_or_else(|| party.lasts()), number),
            // A longer lease is left alone. Its end has the margin of an observer already.
            Some(until) if is_same => (until - margin(party.lasts())).saturating_duration_since(self.now),
            Some(until) => until.saturating_duration_since(self.now),
        };
        self.told(owner, party, lasts.max(heard.unwrap_or_default()), number)
    }

    fn told(&self, owner: OwnerId, party: &Party, lasts: Duration, number: u64) -> Party {
        let at = self.boot.as_ref().map(|boot| BootTime::new(boot, self.now));
        let left_until = self.leaving.contains(&owner).then(|| wall_clock() + lasts);
        Party { beat: number, lasts_ms: millis(lasts), at, left_until, dead_at: never(), ..party.clone() }
    }
}

/// The time of day, for people. One before 1970 cannot be stored.
fn wall_clock() -> SystemTime {
    SystemTime::now().max(SystemTime::UNIX_EPOCH)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(is: &bool) -> bool {
    !*is
}

fn never() -> BootInstant {
    BootInstant::NEVER
}

impl Now<Party> for Moment {
    fn time(&self) -> BootInstant {
        self.now
    }

    fn lives(&self, waiter: &Waiting<Party>) -> bool {
        waiters::lives(waiter.party.dead_at, self.now)
    }

    fn doubts(&self, waiter: &Waiting<Party>) -> bool {
        waiters::is_doubted(waiter.party.dead_at, waiter.party.lasts(), self.now)
    }

    /// Each grant has a block of tokens. By the clock, so that they grow if somebody deletes the record.
    fn mint(&mut self, last: Token) -> Token {
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock = u64::try_from(since_1970.as_micros()).unwrap_or_default();
        // One that is too large is refused when the record is written.
        let next = last.get().saturating_add(TokenBlock::SIZE).max(clock);
        Token::new(TokenBlock::start(next.min(i64::MAX.cast_unsigned())))
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

/// Rounded up: who observes a lease may wait longer, and never shorter.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As when two readers are admitted beside a record that somebody else has written.
    #[test]
    fn tokens_beyond_the_last_one_are_minted_and_not_written() {
        let mut now = Moment::new(BootInstant::from_boot(Duration::ZERO), None, false);
        let mut stored = Stored::new();
        stored.last = Token::new(LARGEST);
        for _ in 0..2 {
            assert!(stored.is_possible() == (stored.last.get() == LARGEST));
            stored.last = now.mint(stored.last);
        }
        assert!(!stored.is_possible());
    }
}
