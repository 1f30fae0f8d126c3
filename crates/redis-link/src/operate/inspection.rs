//! The state of a lock as one server reports it.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use lock_core::migration::Tombstone;
use lock_core::{Holder, HolderInfo, LockMode, LockState, OwnerId, Token, WaiterInfo, stored_time};
use redis::Value;

use crate::error::type_in_words;

/// The answer about one owner: {type, value, fence, number of waiters, whether the owner holds the lock}.
type Brief = (String, Vec<u8>, Vec<u8>, usize, bool);
/// The rest of a full answer: mode, ms until the lock ends, shares, waiters.
type Rest = (String, i64, Vec<(Vec<u8>, u64)>, Vec<(String, Vec<u8>, String)>);

/// The holder of a shared lock whose shares have all expired.
const ENDED: &str = "an unknown client";

/// The state of a lock on one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The type of the key, `none` when the lock is free.
    pub kind: String,
    /// The value of the key.
    pub value: String,
    /// The last token.
    pub token: Option<Token>,
    /// The owner that this token was granted to.
    pub owner: String,
    /// The owner info of that owner, as JSON.
    pub info: String,
    /// When it was granted, in microseconds since 1970, by the clock of the server or of the client that proposed the
    /// token.
    pub since: Option<u64>,
    /// How many processes wait for the lock.
    pub waiters: usize,
    /// Whether the given owner holds the lock.
    pub is_ours: bool,
    /// The mode in which it is held.
    pub mode: Option<LockMode>,
    /// When the key expires, if it does.
    pub ends_in: Option<Duration>,
    /// The owners that share the lock, and when the share of each ends.
    pub shares: Vec<(String, Duration)>,
    /// The first waiters, in order.
    pub queue: Vec<WaiterInfo>,
}

impl Inspection {
    /// Parses the answer of a script that inspects a lock.
    #[must_use]
    pub fn read(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let (brief, rest) = parts.split_at_checked(5)?;
        let (kind, value, fence, waiters, is_ours): Brief = read(brief)?;
        let fence = text(&fence);
        let mut words = fence.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        let mut inspection = Self {
            kind,
            value: text(&value),
            token: word().parse().ok().and_then(Token::stored),
            owner: word().to_owned(),
            since: word().parse().ok(),
            info: word().to_owned(),
            waiters,
            is_ours,
            ..Self::default()
        };
        if rest.is_empty() {
            return Some(inspection);
        }
        let (mode, ends_in, shares, queue): Rest = read(rest)?;
        inspection.mode = Some(mode_of(&mode));
        inspection.ends_in = u64::try_from(ends_in).ok().map(Duration::from_millis);
        let share = |(owner, ends_in): (Vec<u8>, u64)| (text(&owner), Duration::from_millis(ends_in));
        inspection.shares = shares.into_iter().map(share).collect();
        inspection.queue = queue.iter().map(|(mode, info, since)| waiter(mode, info, since)).collect();
        Some(inspection)
    }

    /// The holder with the last token, as far as the lock tells.
    fn granted(&self, mode: LockMode) -> HolderInfo {
        let holder = match serde_json::from_str(&self.info) {
            Ok(owner) => Holder::Known(owner),
            Err(_) => Holder::Foreign(format!("a client with the value {:?}", self.value)),
        };
        let mut info = HolderInfo::new(holder, mode);
        // Redlock's value goes on behind it.
        info.id = self.owner.get(..32).and_then(OwnerId::decode);
        if info.owner().is_some() {
            info.token = self.token;
            info.since = self.since.filter(|micros| *micros > 0).and_then(time);
        }
        info
    }

    fn holders(&self) -> Vec<HolderInfo> {
        let mode = self.mode.unwrap_or(LockMode::Exclusive);
        let alone = |text: String| HolderInfo::new(Holder::Foreign(text), LockMode::Exclusive);
        let mut holder = match (self.kind.as_str(), mode) {
            ("none", _) => return Vec::new(),
            ("string", LockMode::Exclusive) if self.value == self.owner => self.granted(mode),
            ("string", LockMode::Exclusive) => alone(format!("a client with the value {:?}", self.value)),
            ("string", _) if !self.shares.is_empty() => return self.sharers(mode),
            // All shares have just expired.
            ("string", _) => HolderInfo::new(Holder::Unknown(ENDED.into()), mode),
            (kind, _) => alone(format!("a client whose key is {}", type_in_words(kind))),
        };
        holder.remaining = self.ends_in;
        vec![holder]
    }

    /// The holders of a shared lock, the latest first.
    fn sharers(&self, mode: LockMode) -> Vec<HolderInfo> {
        let sharer = |(owner, ends_in): &(String, Duration)| {
            let mut sharer = match *owner == self.owner {
                true => self.granted(mode),
                false => HolderInfo::new(Holder::Unknown(format!("owner id {owner}")), mode),
            };
            sharer.remaining = Some(*ends_in);
            sharer
        };
        let mut sharers: Vec<_> = self.shares.iter().map(sharer).collect();
        sharers.sort_by_key(|sharer| sharer.owner().is_none());
        sharers
    }

    /// The lock state for users.
    #[must_use]
    pub fn state(&self) -> LockState {
        let moved = Tombstone::parse(&self.value).filter(|_| self.kind == "string");
        let holders = if moved.is_some() { Vec::new() } else { self.holders() };
        let mut state = LockState::held(holders);
        state.moved = moved;
        (state.token, state.waiters, state.queue) = (self.token, self.waiters, self.queue.clone());
        state
    }
}

fn waiter(mode: &str, info: &[u8], since: &str) -> WaiterInfo {
    let who = match serde_json::from_slice(info) {
        Ok(owner) => Holder::Known(owner),
        Err(_) => Holder::Unknown(format!("waiter {}", text(info))),
    };
    let mut waiter = WaiterInfo::new(who, mode_of(mode));
    waiter.since = since.parse().ok().and_then(time);
    waiter
}

fn mode_of(text: &str) -> LockMode {
    match text {
        "r" => LockMode::Shared,
        "p" => LockMode::permit(None),
        number => match number.parse() {
            Ok(max) => LockMode::permit(NonZeroU32::new(max)),
            Err(_) => LockMode::Exclusive,
        },
    }
}

/// The time of a number of microseconds since 1970, if it is in range.
fn time(micros: u64) -> Option<SystemTime> {
    stored_time(Duration::from_micros(micros))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read<T: redis::FromRedisValue>(parts: &[Value]) -> Option<T> {
    redis::from_redis_value_ref(&Value::Array(parts.to_vec())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn shared(shares: &[(&str, i64)], fence: &str) -> Inspection {
        let shares = shares.iter().flat_map(|(owner, left)| [bulk(owner), Value::Int(*left)]).collect();
        let queue = ["4", r#"{"host":"h","pid":7}"#, "", "x", "junk", "2000000"].map(bulk).into();
        let answer = [
            vec![
                bulk("string"),
                bulk("polylock:shared"),
                bulk(fence),
                Value::Int(2),
                Value::Int(0),
                bulk("r"),
            ],
            vec![Value::Int(900), Value::Array(shares), Value::Array(queue)],
        ];
        Inspection::read(&Value::Array(answer.concat())).unwrap()
    }

    #[test]
    fn sharers_and_waiters_are_read() {
        let id = "0123456789abcdef0123456789abcdef";
        let fence = format!(r#"17 {id} 1500000 {{"host":"h","pid":5,"label":"job one"}}"#);
        let state = shared(&[("ffff", 300), (id, 900)], &fence).state();
        assert_eq!(
            state.to_string(),
            "held by 2:\n  pid 5 on h (job one), shared, token 17, since 1970-01-01T00:00:01.500Z, 900ms left\n  \
             owner id ffff, shared, 300ms left\nwaiters: 2:\n  1. pid 7 on h, one of 4 permits\n  \
             2. waiter junk, exclusive, since 1970-01-01T00:00:02.000Z"
        );
    }

    #[test]
    fn ids_of_other_clients_cannot_forge_a_line() {
        let mut inspection = shared(&[("ff\u{1b}[2K\nfree", 300)], "");
        inspection.queue = vec![waiter("x", b"junk\nfree", "")];
        let shown = inspection.state().to_string();
        assert!(shown.contains(r"owner id ff\u{1b}[2K\nfree, shared"), "{shown}");
        assert!(shown.contains(r"waiter junk\nfree, exclusive"), "{shown}");
        let ended = shared(&[], "").state().to_string();
        assert!(ended.starts_with("held by an unknown client, shared"), "{ended}");
    }
}
