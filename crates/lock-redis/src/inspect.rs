//! What a server knows about a lock, and what that means.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{
    Error, ErrorKind, Holder, HolderInfo, LockMode, LockState, OwnerId, Result, Token, WaiterInfo,
};
use redis::Value;

use crate::server::Sight;

/// What an owner is asked about: {type, value, fence, waiters, whether it is the owner's}.
type Brief = (String, Vec<u8>, Vec<u8>, usize, bool);
/// What follows when nobody is asked about: mode, ms until the lock ends, shares, waiters.
type Rest = (String, i64, Vec<(Vec<u8>, u64)>, Vec<(String, Vec<u8>, String)>);

/// Who holds a shared lock of which no share is left.
const ENDED: &str = "a client of which no more is known";

impl Sight {
    /// Reads the answer of the scripts that look at a lock.
    pub(crate) fn read(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let (brief, rest) = parts.split_at_checked(5)?;
        let (kind, value, fence, waiters, is_ours): Brief = read(brief)?;
        let fence = text(&fence);
        let mut words = fence.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        let mut sight = Self {
            kind,
            value: text(&value),
            token: word().parse().ok().filter(|number| *number <= i64::MAX as u64).map(Token::new),
            owner: word().to_owned(),
            since: word().parse().ok(),
            info: word().to_owned(),
            waiters,
            is_ours,
            ..Self::default()
        };
        if rest.is_empty() {
            return Some(sight);
        }
        let (mode, ends_in, shares, queue): Rest = read(rest)?;
        sight.mode = Some(mode_of(&mode));
        sight.ends_in = u64::try_from(ends_in).ok().map(Duration::from_millis);
        let share = |(owner, ends_in): (Vec<u8>, u64)| (text(&owner), Duration::from_millis(ends_in));
        sight.shares = shares.into_iter().map(share).collect();
        sight.queue = queue.iter().map(|(mode, info, since)| waiter(mode, info, since)).collect();
        Some(sight)
    }

    /// The last that was granted, as far as the fence tells.
    fn granted(&self, mode: LockMode) -> HolderInfo {
        let holder = match serde_json::from_str(&self.info) {
            Ok(owner) => Holder::Known(owner),
            Err(_) => Holder::Foreign(format!("a client with the value {:?}", self.value)),
        };
        let mut info = HolderInfo::new(holder, mode);
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
            // Their shares have just ended.
            ("string", _) => HolderInfo::new(Holder::Unknown(ENDED.into()), mode),
            (kind, _) => alone(format!("a key of type {kind}")),
        };
        holder.remaining = self.ends_in;
        vec![holder]
    }

    /// Those who share the lock, the last that was granted first.
    fn sharers(&self, mode: LockMode) -> Vec<HolderInfo> {
        let sharer = |(owner, ends_in): &(String, Duration)| {
            let mut sharer = match *owner == self.owner {
                true => self.granted(mode),
                false => HolderInfo::new(Holder::Unknown(format!("owner id {}", owner.escape_debug())), mode),
            };
            sharer.remaining = Some(*ends_in);
            sharer
        };
        let mut sharers: Vec<_> = self.shares.iter().map(sharer).collect();
        sharers.sort_by_key(|sharer| sharer.owner().is_none());
        sharers
    }

    /// The owner id of the holder with this token, if the server keeps it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when one of several holders may have that token of which only the last is kept.
    pub(crate) fn holder_with(&self, token: Token, backend: &'static str) -> Result<Option<OwnerId>> {
        let is_last = self.token == Some(token);
        let holds = match self.mode {
            Some(LockMode::Shared | LockMode::Permit { .. }) if !is_last => {
                let is_old = self.token.is_none_or(|last| token < last);
                // Who is granted the lock alone is the last.
                let others = self.shares.iter().any(|(owner, _)| *owner != self.owner);
                return if is_old && others { Err(not_kept(backend, token)) } else { Ok(None) };
            }
            Some(LockMode::Shared | LockMode::Permit { .. }) => {
                self.shares.iter().any(|(owner, _)| *owner == self.owner)
            }
            _ => is_last && self.kind == "string" && self.value == self.owner,
        };
        Ok(OwnerId::decode(&self.owner).filter(|_| holds))
    }
}

/// What a sight of the server means, for users.
#[must_use]
pub fn state(sight: &Sight) -> LockState {
    let mut state = LockState::held(sight.holders());
    (state.token, state.waiters, state.queue) = (sight.token, sight.waiters, sight.queue.clone());
    state
}

/// A pattern that fits what begins with this text.
pub(crate) fn glob(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        if "*?[]\\^-".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    pattern
}

fn not_kept(backend: &'static str, token: Token) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message(format!(
            "several share the lock, and the server keeps only the token of the last of them: it does not tell who has {token}"
        ))
        .with_hint("break the lock for all of them, or wait until the lease of the one has ended")
}

fn waiter(mode: &str, info: &[u8], since: &str) -> WaiterInfo {
    let who = match serde_json::from_slice(info) {
        Ok(owner) => Holder::Known(owner),
        Err(_) => Holder::Unknown(format!("waiter {}", text(info).escape_debug())),
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

/// A number of microseconds since 1970 as a time, if it is one.
fn time(micros: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros))
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

    fn shared(shares: &[(&str, i64)], fence: &str) -> Sight {
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
        Sight::read(&Value::Array(answer.concat())).unwrap()
    }

    #[test]
    fn sharers_and_waiters_are_read() {
        let id = "0123456789abcdef0123456789abcdef";
        let fence = format!(r#"17 {id} 1500000 {{"host":"h","pid":5,"label":"job one"}}"#);
        let state = state(&shared(&[("ffff", 300), (id, 900)], &fence));
        assert_eq!(
            state.to_string(),
            "held by 2:\n  pid 5 on h (job one), shared, token 17, since 1970-01-01T00:00:01.500Z, 900ms left\n  \
             owner id ffff, shared, 300ms left\nwaiters: 2:\n  1. pid 7 on h, one of 4 permits\n  \
             2. waiter junk, exclusive, since 1970-01-01T00:00:02.000Z"
        );
    }

    #[test]
    fn ids_of_other_clients_forge_no_line() {
        let mut sight = shared(&[("ff\u{1b}[2K\nfree", 300)], "");
        sight.queue = vec![waiter("x", b"junk\nfree", "")];
        let told = state(&sight).to_string();
        assert!(told.contains(r"owner id ff\u{1b}[2K\nfree, shared"), "{told}");
        assert!(told.contains(r"waiter junk\nfree, exclusive"), "{told}");
        let ended = state(&shared(&[], "")).to_string();
        assert!(ended.starts_with("held by a client of which no more is known, shared"), "{ended}");
    }

    #[test]
    fn of_several_holders_only_the_last_is_told_by_its_token() {
        let id = "0123456789abcdef0123456789abcdef";
        let fence = format!(r#"17 {id} 1500000 {{"host":"h","pid":5}}"#);
        let with = |sight: &Sight, token| sight.holder_with(Token::new(token), "redis");
        let both = shared(&[("ffff", 300), (id, 900)], &fence);
        assert_eq!(with(&both, 17).unwrap(), OwnerId::decode(id));
        assert_eq!(with(&both, 16).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(with(&both, 18).unwrap(), None, "it was never granted");
        let left = shared(&[("ffff", 300)], &fence);
        assert_eq!(with(&left, 17).unwrap(), None, "the last has gone");
        assert_eq!(with(&left, 16).unwrap_err().kind(), ErrorKind::Unsupported);
        let alone = shared(&[(id, 300)], &fence);
        assert_eq!(with(&alone, 16).unwrap(), None, "there is nobody else");
    }

    #[test]
    fn patterns_mean_what_they_say() {
        assert_eq!(glob(""), "*");
        assert_eq!(glob("a*b?[c]\\ö"), "a\\*b\\?\\[c\\]\\\\ö*");
    }
}
