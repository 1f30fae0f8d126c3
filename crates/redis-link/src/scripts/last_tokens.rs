//! Counts the last tokens of a server, for the doctor: each lock that was used within a week has one.

use lock_core::{Finding, FindingLevel};
use redis::{RedisResult, Value};

use crate::connect::connection::Connection;
use crate::scripts::keys::TOKENS;

/// The COUNT of each `SCAN`.
const SCANNED: usize = 1_000;
/// How many pages are read. With more keys, they are a sample of all, as the order of a scan is that of hashes.
const PAGES: usize = 20;
/// Of how many last tokens the memory is asked.
const WEIGHED: usize = 16;
/// What a key costs in the tables of keys and of ttls, which MEMORY USAGE leaves out: by 200 000 keys, 61 bytes.
const TABLES: u64 = 61;
/// From how many on there is advice.
const MANY: u64 = 10_000;

/// What was seen of the keys.
#[derive(Debug, Default)]
struct Sample {
    keys: u64,
    tokens: u64,
    /// Some of the tokens.
    some: Vec<String>,
    is_whole: bool,
}

/// Counts the last tokens of the database of this connection, or estimates their number. Blocks the server for no longer than
/// a page of a scan takes.
pub(crate) async fn count(connection: &mut Connection, server: &str) -> RedisResult<Finding> {
    let note = |what: &str, advice: &str| Finding::new(FindingLevel::Note, server, what, advice);
    let sample = match Sample::take(connection).await {
        Err(error) if matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension) => {
            return Ok(note("SCAN is not allowed: the last tokens are not counted", ""));
        }
        sample => sample?,
    };
    let mut questions = redis::pipe();
    questions.ignore_errors().cmd("DBSIZE");
    for key in &sample.some {
        questions.cmd("MEMORY").arg("USAGE").arg(key);
    }
    let answers = questions.query_async::<Vec<RedisResult<Value>>>(connection).await?;
    let mut numbers = answers.into_iter().map(|answer| redis::from_redis_value::<u64>(answer.ok()?).ok());
    let count = sample.count(numbers.next().flatten());
    let weights: Vec<u64> = numbers.flatten().collect();
    let about = if sample.is_whole { "" } else { "about " };
    let memory = match weights.len() as u64 {
        0 => String::new(),
        weighed => {
            let each = weights.iter().sum::<u64>() / weighed + TABLES;
            format!(", {:.1} MB in all and {each} bytes each", (count * each) as f64 / 1e6)
        }
    };
    let what =
        format!("{about}{count} locks have a last token{memory}: it stays for some time after the last use");
    let advice = if count < MANY {
        ""
    } else {
        "names that are used once add up: use fewer, or on Redis a shorter token_ttl"
    };
    Ok(note(&what, advice))
}

impl Sample {
    async fn take(connection: &mut Connection) -> RedisResult<Self> {
        let (mut sample, mut cursor) = (Self::default(), String::from("0"));
        for _ in 0..PAGES {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("COUNT").arg(SCANNED);
            let page: (String, Vec<Vec<u8>>) = scan.query_async(connection).await?;
            sample.keys += page.1.len() as u64;
            for key in page.1.into_iter().filter(|key| key.starts_with(TOKENS.as_bytes())) {
                sample.tokens += 1;
                if sample.some.len() < WEIGHED {
                    sample.some.extend(String::from_utf8(key));
                }
            }
            cursor = page.0;
            sample.is_whole = cursor == "0";
            if sample.is_whole {
                break;
            }
        }
        Ok(sample)
    }

    /// The number of last tokens in a database with this many keys.
    fn count(&self, keys: Option<u64>) -> u64 {
        match keys {
            Some(keys) if !self.is_whole => {
                (u128::from(keys) * u128::from(self.tokens) / u128::from(self.keys.max(1))) as u64
            }
            _ => self.tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stands_for_all_keys() {
        let sample = |is_whole| Sample { keys: 20_000, tokens: 15_000, some: Vec::new(), is_whole };
        assert_eq!(sample(true).count(Some(20_100)), 15_000);
        assert_eq!(sample(false).count(Some(2_000_000)), 1_500_000);
        assert_eq!(Sample::default().count(Some(7)), 0);
    }
}
