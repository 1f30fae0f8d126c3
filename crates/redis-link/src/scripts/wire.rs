//! Formats values for scripts, and parses their answers.

use std::borrow::Cow;
use std::time::Duration;

use lock_core::Token;
use redis::Value;

/// How long the last token of a lock is kept after its last use. With a long ttl it is a hundred times the ttl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenTtl(pub Duration);

/// The usual time in milliseconds.
pub const USUAL_FENCE_TTL: &str = "604800000";

/// The largest token: the score of a sorted set is exact up to here.
pub const LARGEST_TOKEN: u64 = (1 << f64::MANTISSA_DIGITS) - 1;

/// How much of a value scripts return, in bytes: more than an owner info has, whose label has 64 KiB before it is escaped. A key may have
/// any value of somebody else.
pub(crate) const LONGEST_READ: usize = 512 * 1024;

/// A ttl in milliseconds, at least one.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl TokenTtl {
    /// A week.
    pub const USUAL: Self = Self(Duration::from_secs(7 * 24 * 3600));

    /// The ttl of the last token of a lock with this ttl, formatted for the scripts.
    #[must_use]
    pub fn of(self, ttl: Duration) -> Cow<'static, str> {
        match self.0.max(ttl.saturating_mul(100)) {
            usual if usual == Self::USUAL.0 => USUAL_FENCE_TTL.into(),
            other => millis(other).min(i64::MAX as u64 / 2).to_string().into(),
        }
    }
}

/// The usual ttl of the last token of a lock with this ttl, formatted for the scripts.
#[must_use]
pub fn fence_ttl(ttl: Duration) -> Cow<'static, str> {
    TokenTtl::USUAL.of(ttl)
}

/// Parses 0 or 1.
#[must_use]
pub fn flag(answer: &Value) -> Option<bool> {
    match answer {
        Value::Int(0) => Some(false),
        Value::Int(1) => Some(true),
        _ => None,
    }
}

/// Parses a token.
#[must_use]
pub fn token(value: &Value) -> Option<Token> {
    let Value::BulkString(digits) = value else { return None };
    Token::stored(str::from_utf8(digits).ok()?.parse().ok()?)
}

/// Parses the answer to TIME, as the time since 1970.
#[must_use]
pub fn time(answer: &Value) -> Option<Duration> {
    let (seconds, micros) = redis::from_redis_value_ref::<(u64, u64)>(answer).ok()?;
    Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))
}

/// Reads a text.
#[must_use]
pub fn text(answer: &Value) -> Option<String> {
    redis::from_redis_value_ref(answer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_time_is_the_same_in_both_forms() {
        assert_eq!(USUAL_FENCE_TTL, millis(TokenTtl::USUAL.0).to_string());
    }

    #[test]
    fn a_token_outlives_its_lock_a_hundred_times() {
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        assert_eq!([fence_ttl(minute), fence_ttl(3 * hour)], ["604800000", "1080000000"]);
        let short = TokenTtl(hour);
        assert_eq!([short.of(minute / 2), short.of(minute)], ["3600000", "6000000"]);
        assert_eq!(fence_ttl(Duration::MAX), (i64::MAX as u64 / 2).to_string());
    }

    #[test]
    fn a_time_out_of_range_is_none() {
        let answer =
            |seconds: u64| Value::Array([seconds, u64::MAX].map(|number| text(&number.to_string())).into());
        assert_eq!((time(&answer(u64::MAX)), token(&text(&u64::MAX.to_string()))), (None, None));
        assert!(time(&answer(1)).is_some());
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }
}
