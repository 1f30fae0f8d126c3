//! Walks over the keys of all servers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{BootInstant, Result, Token, TokenBlock};
use redis::{Pipeline, RedisResult, Value};

use crate::connect::link::Link;
use crate::error::{Failure, code, is_refusal};
use crate::route::client::RedisClient;
use crate::scripts::keys::{Keys, RESERVED};

/// The COUNT of each `SCAN`.
const SCANNED: usize = 1_000;
/// How many keys are read at a time, and how much of each: more than a tombstone has. Somebody else may have written values of any size.
const READ_AT_A_TIME: usize = 100;
const LONGEST_READ: usize = 64 * 1024;
/// How often a scan restarts after a broken connection.
const SCANS: usize = 3;

/// The member of the sorted set of a lock whose score is the last token.
const LAST: &str = "last";

/// A key that was read on a walk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadKey {
    /// The key.
    pub key: String,
    /// Its value, as far as it is read; `None` if it is not a string.
    pub value: Option<String>,
    /// The time until it expires, if it does.
    pub left: Option<Duration>,
    /// The value of the key beside it, if the walk reads one.
    pub beside: Option<String>,
    /// When the request was sent.
    pub sent: BootInstant,
    /// The [generation](RedisClient::generation) of the connection.
    pub connection: u64,
}

/// The name of another key that a walk reads with each key.
pub type Beside = fn(&str) -> String;

impl RedisClient {
    /// The keys that begin with this text and may be locks, in any order and perhaps repeated. Stops soon after more than
    /// `most` were found.
    ///
    /// Scans all keys of all servers, a thousand for each round trip. The result is not a snapshot.
    ///
    /// # Errors
    ///
    /// When a server cannot be reached, refuses, or is replaced by another during every scan.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn keys_that_begin(&self, with: &str, most: usize) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for link in self.links().await? {
            let (mut scan, mut here) = (Scan::new(link, with), HashSet::new());
            while let Some(page) = scan.next().await? {
                match page {
                    Page::Keys(keys) => here.extend(keys),
                    Page::Restarted => here.clear(),
                }
                if here.len() > most {
                    break;
                }
            }
            found.extend(here);
            if found.len() > most {
                break;
            }
        }
        Ok(found)
    }

    /// Reads all keys that begin with this text, of any type, by plain commands that only read. `visit` may see a key
    /// several times: the last time counts.
    ///
    /// It is not a snapshot. In a cluster, a key whose slot moves during the walk may be missed.
    ///
    /// # Errors
    ///
    /// When a server cannot be reached, refuses, or is replaced by another during every scan.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn read_keys(
        &self,
        with: &str,
        beside: Option<Beside>,
        mut visit: impl FnMut(ReadKey) + Send,
    ) -> Result<()> {
        for link in self.masters().await? {
            let (mut scan, mut how) = (Scan::new(Arc::clone(&link), with), HowToRead::Beginning);
            while let Some(page) = scan.next().await? {
                let Page::Keys(keys) = page else { continue };
                for keys in keys.chunks(READ_AT_A_TIME) {
                    self.read_page(&link, keys, beside, &mut how).await?.into_iter().for_each(&mut visit);
                }
            }
        }
        Ok(())
    }

    /// The largest token that the servers remember of all locks with this prefix, by plain commands that only read.
    ///
    /// # Errors
    ///
    /// Those of [`read_keys`](Self::read_keys).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn largest_token(&self, prefix: &str) -> Result<Option<Token>> {
        let mut largest = None;
        for link in self.masters().await? {
            for with in Keys::all_tokens(prefix) {
                let mut scan = Scan::new(Arc::clone(&link), &with);
                while let Some(page) = scan.next().await? {
                    if let Page::Keys(keys) = page {
                        largest = largest.max(self.largest_of(&link, keys).await?);
                    }
                }
            }
        }
        Ok(largest)
    }

    async fn largest_of(&self, link: &Arc<Link>, keys: Vec<String>) -> Result<Option<Token>> {
        if keys.is_empty() {
            return Ok(None);
        }
        let mut commands = Pipeline::new();
        for key in keys {
            commands.cmd("ZSCORE").arg(key).arg(LAST);
        }
        let mut largest = None;
        for answer in self.query_each(link, &commands).await? {
            largest = largest.max(score(link, &answer)?);
        }
        Ok(largest)
    }

    async fn read_page(
        &self,
        link: &Arc<Link>,
        keys: &[String],
        beside: Option<Beside>,
        how: &mut HowToRead,
    ) -> Result<Vec<ReadKey>> {
        link.connection().await?;
        let (connection, sent) = (self.generation_of(link).unwrap_or_default(), self.clock().now());
        let mut answers = self.query_each(link, &reads(keys, beside, *how)).await?;
        let is_refused = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_refusal);
        if *how == HowToRead::Beginning && answers.iter().any(is_refused) {
            *how = HowToRead::Whole;
            answers = self.query_each(link, &reads(keys, beside, *how)).await?;
        }
        let each = if beside.is_some() { 3 } else { 2 };
        let mut read = Vec::with_capacity(keys.len());
        for (key, answers) in keys.iter().zip(answers.chunks(each)) {
            let [value, left, rest @ ..] = answers else { break };
            let (value, left) = (got(link, value)?, int(link, left)?);
            // PTTL answers -1 for a key without a ttl, and -2 for one that does not exist. One of the two may see the key
            // just before it expires.
            if left == -2 || matches!(value, Got::Missing) {
                continue;
            }
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            let beside = rest.first().map(|answer| got(link, answer)).transpose()?.and_then(Got::string);
            read.push(ReadKey { key: key.clone(), value: value.string(), left, beside, sent, connection });
        }
        Ok(read)
    }
}

/// How the values of keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HowToRead {
    /// Of a longer one, the rest is not sent.
    Beginning,
    /// For a user without the right to the former.
    Whole,
}

/// Reads these keys, and those beside them. Of a key that does not exist, the ttl alone says so.
fn reads(keys: &[String], beside: Option<Beside>, how: HowToRead) -> Pipeline {
    let mut commands = Pipeline::new();
    let value = |commands: &mut Pipeline, key: &str| {
        match how {
            HowToRead::Beginning => commands.cmd("GETRANGE").arg(key).arg(0).arg(LONGEST_READ - 1),
            HowToRead::Whole => commands.cmd("GET").arg(key),
        };
    };
    for key in keys {
        value(&mut commands, key);
        commands.cmd("PTTL").arg(key);
        if let Some(beside) = beside {
            value(&mut commands, &beside(key));
        }
    }
    commands
}

/// A scan of one server.
struct Scan {
    link: Arc<Link>,
    pattern: String,
    /// Whether helper keys are returned, too.
    with_helpers: bool,
    /// `None` at the end.
    cursor: Option<String>,
    /// The connection of the first answer: a cursor is valid on its own server only.
    on: Option<Option<u64>>,
    tries: usize,
}

enum Page {
    Keys(Vec<String>),
    /// The scan begins anew.
    Restarted,
}

impl Scan {
    fn new(link: Arc<Link>, with: &str) -> Self {
        let (pattern, with_helpers) = (glob(with), with.starts_with(RESERVED));
        Self { link, pattern, with_helpers, cursor: Some("0".into()), on: None, tries: 1 }
    }

    async fn next(&mut self) -> Result<Option<Page>> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(SCANNED);
        let endpoint = &self.link.endpoint;
        let answer = match self.link.query(&scan).await {
            Err(Failure::Dropped) if self.tries < SCANS => return Ok(Some(self.restart())),
            answer => answer.map_err(|failure| endpoint.failed(failure))?,
        };
        if *self.on.get_or_insert_with(|| self.link.generation()) != self.link.generation() {
            if self.tries < SCANS {
                return Ok(Some(self.restart()));
            }
            return Err(endpoint.dropped());
        }
        let (cursor, keys): (String, Vec<Vec<u8>>) =
            redis::from_redis_value_ref(&answer).map_err(|_| endpoint.unexpected(&answer))?;
        self.cursor = Some(cursor).filter(|cursor| cursor != "0");
        // A key that is not UTF-8 is not a lock name.
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        Ok(Some(Page::Keys(keys.filter(|key| self.with_helpers || !key.starts_with(RESERVED)).collect())))
    }

    fn restart(&mut self) -> Page {
        (self.cursor, self.on) = (Some("0".into()), None);
        self.tries += 1;
        Page::Restarted
    }
}

/// The answer to GET.
enum Got {
    Missing,
    String(String),
    OtherType,
}

impl Got {
    fn string(self) -> Option<String> {
        if let Self::String(value) = self { Some(value) } else { None }
    }
}

fn got(link: &Link, answer: &RedisResult<Value>) -> Result<Got> {
    match answer {
        Ok(Value::Nil) => Ok(Got::Missing),
        Ok(Value::BulkString(bytes)) => Ok(Got::String(String::from_utf8_lossy(bytes).into_owned())),
        Ok(other) => Err(link.endpoint.unexpected(other)),
        Err(error) if code(error) == "WRONGTYPE" => Ok(Got::OtherType),
        Err(error) if error.is_cluster_error() => Err(link.endpoint.slot_moves()),
        Err(error) => Err(link.endpoint.refused(error)),
    }
}

/// The last token that may be in use by this score, which the newer protocol has as a number.
fn score(link: &Link, answer: &RedisResult<Value>) -> Result<Option<Token>> {
    let score = match answer {
        Ok(Value::Double(score)) => Some(*score),
        answer => got(link, answer)?.string().and_then(|score| score.parse::<f64>().ok()),
    };
    // The cast saturates: what is beyond all tokens is the largest one.
    let end = |score: f64| TokenBlock::end((score as i64).unsigned_abs()).min(i64::MAX.unsigned_abs());
    Ok(score.filter(|score| *score >= 0.0).map(|score| Token::new(end(score))))
}

fn int(link: &Link, answer: &RedisResult<Value>) -> Result<i64> {
    match answer {
        Ok(Value::Int(number)) => Ok(*number),
        Ok(other) => Err(link.endpoint.unexpected(other)),
        Err(error) if error.is_cluster_error() => Err(link.endpoint.slot_moves()),
        Err(error) => Err(link.endpoint.refused(error)),
    }
}

/// The glob pattern of all keys that begin with this text.
fn glob(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(glob(""), "*");
        assert_eq!(glob("a*b?[c]\\ö"), "a\\*b\\?\\[c\\]\\\\ö*");
    }
}
