//! The answer of a server to a request for a lock.

use std::time::Duration;

use lock_core::Token;
use redis::Value;

use crate::scripts::wire;

/// The answer to a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// The lock is granted, with this token.
    Granted(Token),
    /// Another owner has the key.
    Busy {
        /// The time until the key expires, if it does.
        ends_in: Option<Duration>,
        /// The type of the key if it is not a string, and so not a lock; the tombstone of a lock that has moved.
        foreign_type: Option<String>,
        /// The position in the wait queue, if the request has one.
        position: Option<usize>,
    },
    /// The connection broke: the lock may have been granted, or it was out of turn. [Take it back](crate::route::client::RedisClient::take_back); another
    /// request may then succeed, as the server may just have closed an idle connection.
    Broken,
}

impl LockAnswer {
    /// Parses the answer of a script.
    #[must_use]
    pub fn read(answer: &Value) -> Option<Self> {
        let parts = match answer {
            Value::Array(parts) => parts,
            token => return wire::token(token).map(Self::Granted),
        };
        match parts.as_slice() {
            [Value::Int(1), token, ..] => Some(Self::Granted(wire::token(token)?)),
            [Value::Int(0), Value::Int(pttl), kind, position @ ..] => {
                let position = match position {
                    [] | [Value::Int(..=-1)] => None,
                    [Value::Int(position)] => usize::try_from(*position).ok(),
                    _ => return None,
                };
                let kind: String = redis::from_redis_value_ref(kind).ok()?;
                // PTTL answers -1 for a key without a ttl, and -2 for one that expired between two commands.
                let ends_in =
                    if *pttl == -1 { None } else { Some(Duration::from_millis(pttl.max(&0).unsigned_abs())) };
                let foreign_type = Some(kind).filter(|kind| kind != "string" && kind != "none");
                Some(Self::Busy { ends_in, foreign_type, position })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn answers_are_read() {
        let granted = Value::Array(vec![Value::Int(1), bulk("42")]);
        assert_eq!(LockAnswer::read(&granted), Some(LockAnswer::Granted(Token::new(42))));
        assert_eq!(LockAnswer::read(&bulk("42")), Some(LockAnswer::Granted(Token::new(42))));
        let read = |pttl, kind| {
            LockAnswer::read(&Value::Array(vec![Value::Int(0), Value::Int(pttl), bulk(kind)])).unwrap()
        };
        let busy = |ends_in, foreign_type: Option<&str>| LockAnswer::Busy {
            ends_in,
            foreign_type: foreign_type.map(str::to_owned),
            position: None,
        };
        assert_eq!(read(7, "string"), busy(Some(Duration::from_millis(7)), None));
        assert_eq!(read(-1, "hash"), busy(None, Some("hash")));
        assert_eq!(read(-2, "none"), busy(Some(Duration::ZERO), None));
        assert_eq!(LockAnswer::read(&Value::Okay), None);
        let too_large = Value::Array(vec![Value::Int(1), bulk("99999999999999999999")]);
        assert_eq!(LockAnswer::read(&too_large), None);
    }
}
