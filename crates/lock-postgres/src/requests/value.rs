//! Values that the functions take and return.

use std::time::Duration;

use lock_core::engine::{Ask, Changed};
use lock_core::{Error, Mode, Result, Token};
use tokio_postgres::types::ToSql;

use crate::error::unexpected;
use crate::message::{Key, Secret};

pub(crate) type Value<'a> = &'a (dyn ToSql + Sync);

/// How a waiter is notified.
#[derive(Clone, Copy)]
pub(crate) struct ToInbox<'a> {
    pub(crate) id: &'a str,
    /// The process of the server that listens for it.
    pub(crate) listener: i32,
    pub(crate) key: Key,
    pub(crate) secret: Secret,
}

/// The fields of a record of words and numbers, the last of which says whether somebody is to be notified. As one column in text it is read
/// without a scan, which would be planned at each call.
#[derive(Debug)]
pub(crate) struct Record(pub(crate) String);

impl Record {
    pub(crate) fn split(&self) -> (&str, &str) {
        let record = self.0.trim_start_matches('(').trim_end_matches(')');
        record.rsplit_once(',').unwrap_or((record, ""))
    }

    pub(crate) fn fields(&self) -> Vec<&str> {
        self.split().0.split(',').collect()
    }

    pub(crate) fn tells(&self) -> bool {
        self.split().1 == "t"
    }

    pub(crate) fn is_grant(&self) -> bool {
        self.split().0.starts_with("granted")
    }

    pub(crate) fn changed(&self) -> Result<Changed> {
        changed(self.split().0)
    }
}

/// What others see of the owner.
pub(crate) fn info<M>(ask: &Ask<'_, M>) -> String {
    serde_json::to_string(&**ask.info).unwrap_or_default()
}

/// The number of a mode in the calls.
pub(crate) fn mode_number(mode: Mode) -> i32 {
    match mode {
        Mode::Permit { max } => i32::try_from(max.get()).unwrap_or(i32::MAX),
        Mode::Shared => -1,
        _ => 0,
    }
}

pub(crate) fn changed(status: &str) -> Result<Changed> {
    match status {
        "released" | "shared" | "raised" | "broken" => Ok(Changed::Done(())),
        "lost" | "free" => Ok(Changed::NotHeld),
        "locked" => Ok(Changed::Blocked),
        other => Err(unknown_status(other)),
    }
}

pub(crate) fn unknown_status(status: &str) -> Error {
    unexpected(format!("the server answered {status:?}"))
}

pub(crate) fn token(number: &str) -> Result<Token> {
    number.parse().map(Token::new).map_err(|_| unexpected(format!("{number:?} is no token")))
}

pub(crate) fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// A fraction counts: a lease is never shorter on the server.
pub(crate) fn millis(time: Duration) -> i64 {
    let up = time.saturating_add(Duration::from_nanos(999_999));
    i64::try_from(up.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_millisecond_counts() {
        assert_eq!(millis(Duration::from_micros(1_500)), 2);
        assert_eq!(millis(Duration::from_millis(2)), 2);
        assert_eq!(millis(Duration::MAX), i64::MAX);
    }
}
