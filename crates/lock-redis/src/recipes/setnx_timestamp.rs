//! The legacy recipe `SETNX key time`, which depends on the clients' clocks: its scripts, times and limits.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use lock_core::engine::Extension;
use lock_core::migration::{Removal, Tombstone};
use lock_core::{BootInstant, Clock, Finding, FindingLevel, OwnerId, Token};
use redis::Value;
use redis_link::keys::Keys;
use redis_link::scan::Beside;
use redis_link::script;
use redis_link::script::{Call, Script, ScriptList};
use redis_link::wall_clock::WallClock;
use redis_link::wire::{TokenTtl, millis};

use crate::error::MOVED_SOMEWHERE;
use crate::recipes::recipe::{KeyState, Recipe};
use crate::recipes::request::{Ask, Moment, ReleaseKind, mode_name};

pub(crate) static SCRIPTS: ScriptList =
    &[&ASK, &RELEASE, &EXTEND, &RAISE, &INSPECT, &BREAK, &SWAP, &READ_TOMBSTONE, &REMOVE_TOMBSTONE];

static ASK: LazyLock<Script> = script!(clock mint setnx setnx_moved setnx_ask);
static RELEASE: LazyLock<Script> = script!(setnx setnx_release);
static EXTEND: LazyLock<Script> = script!(setnx setnx_extend);
static RAISE: LazyLock<Script> = script!(clock mint raise_last setnx setnx_raise);
static INSPECT: LazyLock<Script> = script!(setnx setnx_moved setnx_inspect);
static BREAK: LazyLock<Script> = script!(setnx setnx_moved setnx_break);
static SWAP: LazyLock<Script> = script!(clock setnx setnx_moved setnx_swap);
static READ_TOMBSTONE: LazyLock<Script> = script!(setnx setnx_moved setnx_tombstone);
static REMOVE_TOMBSTONE: LazyLock<Script> =
    script!(clock mint raise_last setnx setnx_moved setnx_value remove_tombstone);

/// The default clock skew. Hosts with NTP differ by a tenth of it; a leap second that only some of them smear adds up to it.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Why a lock has one holder.
pub(crate) const ONE_TIME: &str = "a key of the recipe setnx-timestamp stores the time of one holder";
/// The time of a lock that has moved, in milliseconds since 1970: the year 5000.
const MOVED: u64 = 95_617_584_000_000;
/// From here on, in milliseconds, the time of a lock means that it has moved. As in setnx_moved.lua.
const MOVED_FROM: f64 = 9e13;
/// From this on, a difference between the spans of two clocks is a step of one.
const A_STEP: Duration = Duration::from_millis(1);
/// The same between two sendings: a pause between the readings of both clocks looks like a step back later.
const A_STEP_BACK: Duration = Duration::from_millis(10);
/// What the scripts take for times, in milliseconds. As in setnx.lua.
const TIMES: Range<f64> = 1e11..1e14;

/// The unit of the times of [`RedisRecipe::SetnxTimestamp`](crate::RedisRecipe::SetnxTimestamp). A value in another unit never
/// counts as expired.
///
/// # Examples
///
/// ```
/// use lock_redis::{RecipeUnit, RedisConfig};
///
/// let legacy = RedisConfig::from_url("redis://localhost?recipe=setnx-timestamp")?;
/// let legacy = legacy.recipe_unit(RecipeUnit::Seconds);
/// # let _ = legacy;
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecipeUnit {
    /// Milliseconds since 1970.
    #[default]
    Millis,
    /// Seconds since 1970: whole ones are written, and fractions are also read.
    Seconds,
}

/// The recipe of [`RedisRecipe::SetnxTimestamp`](crate::RedisRecipe::SetnxTimestamp).
#[derive(Debug)]
pub(crate) struct SetnxTimestamp {
    unit: RecipeUnit,
    skew: Duration,
    clock: WallClock,
    token_ttl: TokenTtl,
    warned: AtomicBool,
    /// The last moment at which something was sent.
    last: Mutex<Option<Moment>>,
    /// When the wall clock was last found to be set back, in microseconds since the boot.
    set_back: AtomicU64,
}

impl SetnxTimestamp {
    pub(crate) fn new(unit: RecipeUnit, skew: Duration, clock: WallClock, token_ttl: TokenTtl) -> Self {
        let (warned, last, set_back) = (AtomicBool::new(false), Mutex::default(), AtomicU64::new(0));
        Self { unit, skew, clock, token_ttl, warned, last, set_back }
    }

    /// Notes whether the wall clock was set back since the last moment. One that is slewed is not.
    fn follow(&self, now: Moment) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = *last {
            let passed = now.at.saturating_duration_since(last.at);
            if now.wall + A_STEP_BACK + passed / 1000 < last.wall + passed {
                self.set_back.store(micros(now.at), Ordering::Relaxed);
            }
        }
        if last.is_none_or(|last| last.at <= now.at) {
            *last = Some(now);
        }
    }

    /// The value to write for a lease of `ttl`: by any clock within the skew, its time passes only after the lease. As in
    /// existing fleets, one is added.
    fn value(&self, sent: Moment, ttl: Duration) -> u128 {
        let ends = sent.wall + ttl + self.skew;
        ends.as_millis() / u128::from(self.unit()) + 1
    }

    /// A lock with an earlier time has ended by any clock within the skew. In ms since 1970.
    fn over_before(&self) -> u128 {
        self.clock.now().saturating_sub(self.skew).as_millis()
    }

    /// The unit in ms.
    fn unit(&self) -> u32 {
        match self.unit {
            RecipeUnit::Millis => 1,
            RecipeUnit::Seconds => 1000,
        }
    }

    /// The value of a lock that has moved.
    fn moved(&self) -> u64 {
        MOVED / u64::from(self.unit())
    }

    /// The time of a value in ms, as the scripts read it.
    fn time_of(&self, value: &str) -> Option<f64> {
        let is_number = value.starts_with(|first: char| first.is_ascii_digit())
            && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let time = value.parse::<f64>().ok().filter(|_| is_number)? * f64::from(self.unit());
        TIMES.contains(&time).then_some(time)
    }

    /// Adds the value to write, and its time of sending.
    fn with_value(&self, call: Call, sent: Moment, ttl: Duration) -> Call {
        call.arg(self.value(sent, ttl).to_string()).arg(micros(sent.at))
    }

    /// Adds the unit, and the time before which a lock has ended.
    fn with_limit(&self, call: Call) -> Call {
        call.arg(self.unit()).arg(self.over_before().to_string())
    }

    /// Warns once if the server's clock and that of this host differ by more than the skew.
    fn compare(&self, sent: Moment, server: Duration) {
        let (ahead, behind) = (sent.wall.saturating_sub(server), server.saturating_sub(self.clock.now()));
        if ahead.max(behind) > self.skew && !self.warned.swap(true, Ordering::Relaxed) {
            let which = if ahead > behind { "ahead of" } else { "behind" };
            tracing::warn!(
                by = ?ahead.max(behind),
                clock_skew = ?self.skew,
                "the clock of this host is {which} the server's by more than clock_skew: two may hold a lock of the \
                 recipe setnx-timestamp at once; check the time synchronisation (chrony, ntpd) of all hosts"
            );
        }
    }
}

impl Recipe for SetnxTimestamp {
    fn ask(&self, ask: &Ask<'_>, sent: Moment) -> Call {
        let text = ask.keys.moved();
        let call = ASK
            .on(&[ask.keys.lock(), ask.keys.tokens(), &ask.keys.fence(), &text])
            .arg(ask.owner.encode(&mut [0; 32]))
            .arg(millis(ask.ttl));
        let call = call.arg(ask.info).arg("").arg(&*mode_name(ask.mode)).arg(&*self.token_ttl.of(ask.ttl));
        self.with_limit(self.with_value(call, sent, ask.ttl))
    }

    fn release(&self, lock: &Keys, owner: OwnerId, _: ReleaseKind<'_>) -> Call {
        on(&RELEASE, lock).arg(owner.encode(&mut [0; 32]))
    }

    fn extend(&self, lease: &Extension<'_, Arc<Keys>>, sent: Moment) -> Call {
        let call = on(&EXTEND, lease.place).arg(lease.owner.encode(&mut [0; 32])).arg(millis(lease.ttl));
        let call = self.with_value(call.arg(&*self.token_ttl.of(lease.ttl)), sent, lease.ttl);
        if lease.shortens { call.arg("shortens") } else { call }
    }

    fn raise(&self, lock: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Call {
        on(&RAISE, lock).arg(owner.to_string()).arg(floor.get()).arg(&*self.token_ttl.of(ttl))
    }

    fn inspect(&self, lock: &Keys, owner: &str) -> Call {
        let call = INSPECT.on(&[lock.lock(), lock.tokens(), &lock.fence(), &lock.moved()]);
        self.with_limit(call.arg(lock.channel()).arg(owner))
    }

    fn break_lock(&self, lock: &Keys, seen: &str) -> Call {
        self.with_limit(BREAK.on(&[lock.lock(), lock.tokens(), &lock.fence(), &lock.moved()]).arg(seen))
    }

    fn swap(&self, lock: &Keys, owner: OwnerId, tombstone: &Tombstone) -> Call {
        SWAP.on(&[lock.lock(), lock.tokens(), &lock.fence(), &lock.moved()])
            .arg(owner.to_string())
            .arg(tombstone.to_string())
            .arg(millis(tombstone.life))
            .arg(self.moved())
            .arg(self.unit())
            .arg(millis(self.skew))
    }

    fn read_tombstone(&self, lock: &Keys) -> Call {
        READ_TOMBSTONE.on(&[lock.lock(), &lock.moved()]).arg(self.unit())
    }

    fn remove_tombstone(&self, lock: &Keys, removal: &Removal<'_>) -> Call {
        REMOVE_TOMBSTONE
            .on(&[lock.lock(), lock.tokens(), &lock.moved()])
            .arg(removal.tombstone.to_string())
            .arg(removal.floor.get())
            .arg(removal.until)
            .arg(&*self.token_ttl.of(removal.ttl))
            .arg(self.unit())
    }

    fn beside(&self) -> Option<Beside> {
        Some(|lock| Keys::of(lock).moved())
    }

    fn key_state(&self, value: String, text: Option<String>, left: Option<Duration>) -> KeyState {
        match self.time_of(&value) {
            None => KeyState::held(left),
            Some(time) if time >= MOVED_FROM => {
                let text = text.filter(|text| Tombstone::is_one(text));
                KeyState::Moved(text.unwrap_or_else(|| MOVED_SOMEWHERE.into()))
            }
            Some(time) => {
                let ends = Duration::from_secs_f64(time / 1e3) + self.skew;
                match ends.saturating_sub(self.clock.now()) {
                    Duration::ZERO => KeyState::Free,
                    left => KeyState::Held(left),
                }
            }
        }
    }

    fn moment(&self, clock: &Clock) -> Moment {
        // In this order: a pause between the two readings makes a lease end early, not late.
        let at = clock.now();
        let now = Moment { at, wall: self.clock.now() };
        self.follow(now);
        now
    }

    fn says_the_end(&self) -> bool {
        true
    }

    fn was_stepped(&self, sent: Moment, now: BootInstant) -> bool {
        // Pauses between the readings of both clocks, here and at the sending, hide a step of this size, and make none.
        let (by_wall, by_clock) =
            (self.clock.now().saturating_sub(sent.wall), now.saturating_duration_since(sent.at));
        by_wall >= by_clock + A_STEP
    }

    fn was_set_back_since(&self, sent: u64) -> bool {
        self.set_back.load(Ordering::Relaxed) > sent
    }

    fn skew(&self) -> Duration {
        self.skew
    }

    fn danger(&self) -> Option<Finding> {
        Some(Finding::new(
            FindingLevel::Warning,
            "",
            "recipe=setnx-timestamp is only for fleets that already use it: two may hold a lock at once if the clocks of \
             their hosts differ",
            "when no other client uses it any more, change to recipe=set-nx-px",
        ))
    }

    fn answered(&self, sent: Moment, answer: &Value) {
        if let Some(server) = servers_clock(answer) {
            self.compare(sent, server);
        }
    }
}

/// The time of a moment, as the scripts compare it.
fn micros(at: BootInstant) -> u64 {
    u64::try_from(at.since_boot().as_micros()).unwrap_or(u64::MAX)
}

/// A call with the keys that this recipe uses.
fn on(script: &'static Script, keys: &Keys) -> Call {
    script.on(&[keys.lock(), keys.tokens(), &keys.fence()])
}

/// The server's clock, if the answer has it.
fn servers_clock(answer: &Value) -> Option<Duration> {
    let Value::Array(parts) = answer else { return None };
    let [Value::Int(1), _, micros] = parts.as_slice() else { return None };
    let micros: String = redis::from_redis_value_ref(micros).ok()?;
    micros.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const NOW: Duration = Duration::from_millis(1_700_000_000_400);
    const TTL: Duration = Duration::from_secs(10);

    fn timestamps(unit: RecipeUnit) -> (SetnxTimestamp, Moment) {
        let clock = WallClock::new(|| UNIX_EPOCH + NOW);
        let sent = Moment { at: BootInstant::from_boot(TTL), wall: NOW };
        (SetnxTimestamp::new(unit, CLOCK_SKEW, clock, TokenTtl::USUAL), sent)
    }

    #[test]
    fn values_are_written_as_existing_fleets_write_them() {
        let (millis, sent) = timestamps(RecipeUnit::Millis);
        assert_eq!(millis.value(sent, TTL), 1_700_000_011_401);
        let (seconds, sent) = timestamps(RecipeUnit::Seconds);
        assert_eq!(seconds.value(sent, TTL), 1_700_000_012);
    }

    #[test]
    fn the_skew_counts_on_both_sides() {
        for unit in [RecipeUnit::Millis, RecipeUnit::Seconds] {
            let (timestamps, sent) = timestamps(unit);
            assert_eq!(timestamps.over_before(), 1_699_999_999_400);
            let ends = timestamps.value(sent, TTL) * u128::from(timestamps.unit());
            assert!((sent.wall + TTL + timestamps.skew).as_millis() < ends);
        }
    }

    #[test]
    fn what_a_key_stands_for() {
        for unit in [RecipeUnit::Millis, RecipeUnit::Seconds] {
            let (timestamps, sent) = timestamps(unit);
            let state = |value: String, text: Option<&str>| {
                timestamps.key_state(value, text.map(str::to_owned), None)
            };
            let text = "polylock:moved to=zk://a";
            let moved = |text: &str| KeyState::Moved(text.into());
            assert_eq!(state(timestamps.moved().to_string(), Some(text)), moved(text));
            for text in [None, Some("some other text")] {
                assert_eq!(state(timestamps.moved().to_string(), text), moved("polylock:moved"));
            }
            assert!(timestamps.moved() as u128 > timestamps.value(sent, Duration::from_secs(1 << 35)));
            let held = state(timestamps.value(sent, TTL).to_string(), Some("old text"));
            assert!(matches!(held, KeyState::Held(left) if left > TTL && left < TTL * 2), "{held:?}");
            let past = timestamps.value(sent, TTL) - 30_000 / u128::from(timestamps.unit());
            assert_eq!(state(past.to_string(), None), KeyState::Free);
            for odd in ["", "x", ".5", "1.5.2", "17", "1e12", "inf", "+1700000000000"] {
                assert_eq!(state(odd.into(), None), KeyState::Held(Duration::MAX), "{odd}");
            }
        }
    }

    #[test]
    fn a_step_forward_is_noticed_and_a_step_back_is_not() {
        let (timestamps, sent) = timestamps(RecipeUnit::Millis);
        let after = |passed: u64, stepped: u64| {
            let sent = Moment { wall: sent.wall - Duration::from_millis(passed + stepped), ..sent };
            timestamps.was_stepped(sent, sent.at + Duration::from_millis(passed))
        };
        assert!(!after(0, 0) && !after(700, 0), "time passes by both clocks");
        assert!(after(700, 2) && after(700, 5_000));
        let back = Moment { wall: sent.wall + TTL, ..sent };
        assert!(!timestamps.was_stepped(back, sent.at + TTL / 2));
    }
}
