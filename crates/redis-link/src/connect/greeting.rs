//! The greeting of a server (HELLO), and its identity.

use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::time::Instant;

use crate::connect::connection::Connection;

/// The first version with all commands that the scripts use.
const OLDEST: (u32, u32) = (6, 2);

/// Version, mode and role of a server; empty if the server refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// Such as `7.0.15`.
    pub version: String,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: String,
    /// `master` or `replica`.
    pub role: String,
}

/// The identity of a server process, which changes with every restart, and of its data, which may be those of another server
/// once it was a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The random id of the server process.
    pub run_id: String,
    /// Its uptime by its wall clock, in whole seconds.
    pub uptime: Duration,
    /// The number of keys in the database.
    pub keys: u64,
    /// When this was read.
    pub at: Instant,
    /// The id of its replication history, if it says so. A replica that becomes a master begins another one.
    pub history: Option<String>,
    /// Whether it was a replica before that history.
    pub was_promoted: bool,
    /// Changes when this client has seen it as a replica.
    pub(crate) demotions: u64,
}

impl Greeting {
    /// Parses the answer to HELLO; falls back to INFO if the server does not know or allow HELLO.
    pub(crate) async fn read(answer: RedisResult<Value>, connection: &mut Connection) -> RedisResult<Self> {
        match answer {
            Ok(answer) => Ok(Self::of_hello(&answer)),
            Err(_) => {
                let info = redis::cmd("INFO").query_async::<String>(connection).await;
                match info {
                    Ok(info) => Ok(Self::of_info(&info)),
                    Err(error) if error.code().is_some() => Ok(Self::default()),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Whether this library needs a later release.
    #[must_use]
    pub fn is_too_old(&self) -> bool {
        let mut numbers = self.version.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST,
            _ => false,
        }
    }

    pub(crate) fn is_replica(&self) -> bool {
        matches!(self.role.as_str(), "replica" | "slave")
    }

    /// Parses the answer to HELLO.
    #[must_use]
    pub fn of_hello(answer: &Value) -> Self {
        let mut greeting = Self::default();
        let mut note = |key: &Value, value: &Value| {
            let (Ok(key), Ok(value)) = (text(key), text(value)) else { return };
            match key.as_str() {
                "version" => greeting.version = value,
                "mode" => greeting.mode = value,
                "role" => greeting.role = value,
                _ => {}
            }
        };
        match answer {
            Value::Array(parts) => {
                for pair in parts.chunks_exact(2) {
                    note(&pair[0], &pair[1]);
                }
            }
            Value::Map(pairs) => pairs.iter().for_each(|(key, value)| note(key, value)),
            _ => {}
        }
        greeting
    }

    /// Parses the answer to INFO.
    #[must_use]
    pub fn of_info(info: &str) -> Self {
        let field = |name: &str| info_field(info, name).unwrap_or_default().to_owned();
        let mode = mode(info).unwrap_or_default().to_owned();
        Self { version: field("redis_version"), mode, role: field("role") }
    }
}

impl Identity {
    /// An identity that is read now.
    #[must_use]
    pub fn new(run_id: impl Into<String>, uptime: Duration, keys: u64) -> Self {
        let (run_id, at) = (run_id.into(), Instant::now());
        Self { run_id, uptime, keys, at, history: None, was_promoted: false, demotions: 0 }
    }

    /// Parses the answers to INFO and DBSIZE; `None` if the server refused.
    #[must_use]
    pub fn read(info: Option<RedisResult<Value>>, keys: Option<RedisResult<Value>>) -> Option<Self> {
        let info = redis::from_redis_value::<String>(info?.ok()?).ok()?;
        // Negative after its wall clock was set back.
        let uptime: i64 = info_field(&info, "uptime_in_seconds")?.parse().ok()?;
        let uptime = Duration::from_secs(u64::try_from(uptime).unwrap_or_default());
        let keys = redis::from_redis_value(keys?.ok()?).ok()?;
        Some(Self::new(info_field(&info, "run_id")?, uptime, keys))
    }

    /// Adds what the answer to INFO says of its replication. Not every server says anything.
    #[must_use]
    pub fn with_history(mut self, info: &str) -> Self {
        self.history = info_field(info, "master_replid").map(str::to_owned);
        // The history before, which is all zeros if there is none.
        let before = info_field(info, "master_replid2").unwrap_or_default();
        self.was_promoted = before.chars().any(|digit| digit != '0');
        self
    }

    /// Whether this is the same process as earlier, and has been a master since then, as far as that shows.
    #[must_use]
    pub fn continues(&self, earlier: &Self) -> bool {
        // The first replica of a master begins another history as well, and no promotion.
        let was_promoted = self.was_promoted && self.history != earlier.history;
        self.run_id == earlier.run_id && self.demotions == earlier.demotions && !was_promoted
    }
}

/// A field of the answer to INFO.
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The mode in the answer to INFO, which Valkey has by another name.
pub(crate) fn mode(info: &str) -> Option<&str> {
    info_field(info, "redis_mode").or_else(|| info_field(info, "server_mode"))
}

fn text(value: &Value) -> Result<String, redis::ParsingError> {
    redis::from_redis_value_ref(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let is_too_old =
            |version: &str| Greeting { version: version.to_owned(), ..Greeting::default() }.is_too_old();
        assert!(is_too_old("6.0.16") && is_too_old("5.0.0") && is_too_old("3.2"));
        assert!(!is_too_old("6.2.0") && !is_too_old("7.0.15") && !is_too_old("10.0.1"));
        assert!(!is_too_old("") && !is_too_old("unknown"));
    }

    #[test]
    fn both_protocols_and_info_give_the_same_greeting() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let pairs = [("version", "7.0.15"), ("mode", "standalone"), ("role", "master")];
        let map = Value::Map(pairs.map(|(key, value)| (bulk(key), bulk(value))).to_vec());
        let array = Value::Array(pairs.iter().flat_map(|(key, value)| [bulk(key), bulk(value)]).collect());
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\n";
        let greeting = Greeting::of_info(info);
        assert_eq!((greeting.version.as_str(), greeting.is_replica()), ("7.0.15", false));
        assert_eq!(Greeting::of_hello(&map), greeting);
        assert_eq!(Greeting::of_hello(&array), greeting);
    }
    #[test]
    fn an_uptime_by_a_clock_that_was_set_back_is_none() {
        let bulk = |text: &str| Some(Ok(Value::BulkString(text.as_bytes().to_vec())));
        let read = Identity::read(bulk("run_id:a\r\nuptime_in_seconds:-90\r\n"), Some(Ok(Value::Int(3))));
        assert_eq!(read.map(|identity| (identity.uptime, identity.keys)), Some((Duration::ZERO, 3)));
    }

    #[test]
    fn a_promotion_begins_another_identity_and_a_first_replica_does_not() {
        let none = "0".repeat(40);
        let identity = |run_id: &str, history: &str, before: &str| {
            let info = format!("role:master\r\nmaster_replid:{history}\r\nmaster_replid2:{before}\r\n");
            Identity::new(run_id, Duration::ZERO, 0).with_history(&info)
        };
        let known = identity("a", "h1", &none);
        assert!(identity("a", "h1", &none).continues(&known));
        assert!(identity("a", "h2", &none).continues(&known));
        assert!(!identity("a", "h2", "h1").continues(&known));
        assert!(!identity("b", "h1", &none).continues(&known));
        let promoted = identity("a", "h2", "other");
        assert!(identity("a", "h2", "other").continues(&promoted));
        assert!(!identity("a", "h3", "other").continues(&promoted));
        let silent = Identity::new("a", Duration::ZERO, 0);
        assert!(silent.continues(&known) && silent.clone().continues(&silent));
    }
}
