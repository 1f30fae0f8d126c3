//! The floor of Redis: `SET key value NX PX ttl`, and a script that deletes the key if the value is ours; with or without
//! fencing tokens.

use std::time::Duration;

use polylock::OwnerId;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Value};

use super::Floor;
use crate::backends::redis as redis_servers;
use crate::failure::{Failure, Outcome};

/// A multiplexed connection, with commands that are packed once.
#[derive(Debug)]
pub(crate) struct BareRedis {
    pub(super) connection: MultiplexedConnection,
    pub(super) set: Cmd,
    pub(super) delete: Cmd,
    /// The key of the last token, with tokens.
    tokens: Option<String>,
}

impl BareRedis {
    /// Connects to a host of this URL, and loads the script.
    pub(crate) async fn connect(
        url: &str,
        host: &str,
        key: &str,
        owner: OwnerId,
        ttl: Duration,
    ) -> Outcome<Self> {
        Self::on(redis_servers::connect(url, host).await?, key, owner, ttl).await
    }

    /// Uses this connection, which others may share, and loads the script.
    pub(crate) async fn on(
        mut connection: MultiplexedConnection,
        key: &str,
        owner: OwnerId,
        ttl: Duration,
    ) -> Outcome<Self> {
        let hash = load(&mut connection, COMPARE_AND_DELETE).await?;
        let owner = owner.to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(u64::try_from(ttl.as_millis())?);
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(hash).arg(1).arg(key).arg(&owner);
        Ok(Self { connection, set, delete, tokens: None })
    }

    /// With fencing tokens: the clock of the server, if that is larger than the last token.
    pub(crate) async fn minting(mut self, key: &str, owner: OwnerId, ttl: Duration) -> Outcome<Self> {
        let hash = load(&mut self.connection, MINT).await?;
        let tokens = tokens_of(key);
        let mut mint = redis::cmd("EVALSHA");
        mint.arg(hash).arg(2).arg(key).arg(&tokens);
        mint.arg(owner.to_string()).arg(u64::try_from(ttl.as_millis())?).arg(TOKEN_TTL_MS);
        Ok(Self { set: mint, tokens: Some(tokens), ..self })
    }
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> Outcome<String> {
    Ok(redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await?)
}

impl Floor for BareRedis {
    async fn acquire(&mut self) -> Outcome<()> {
        match self.connection.req_packed_command(&self.set).await? {
            Value::BulkString(_) if self.tokens.is_some() => Ok(()),
            answer => expect(answer, &Value::Okay),
        }
    }

    async fn release(&mut self) -> Outcome<()> {
        expect(self.connection.req_packed_command(&self.delete).await?, &Value::Int(1))
    }

    async fn clean(mut self) -> Outcome<()> {
        match &self.tokens {
            Some(tokens) => Ok(redis::cmd("DEL").arg(tokens).exec_async(&mut self.connection).await?),
            None => Ok(()),
        }
    }
}

/// The key of the last token of a lock.
pub(super) fn tokens_of(key: &str) -> String {
    format!("{key}-token")
}

/// Fails unless the command did its work: otherwise its time is no floor.
pub(in crate::floor) fn expect(answer: Value, wanted: &Value) -> Outcome<()> {
    if answer == *wanted {
        return Ok(());
    }
    Err(Failure::new(format!("the bare commands failed: {answer:?} instead of {wanted:?}")))
}

/// How long the last token is kept.
pub(super) const TOKEN_TTL_MS: u64 = 7 * 24 * 3600 * 1000;
/// A real client would do more when the last token is not smaller, which does not happen here.
const MINT: &str = "\
local time = redis.call('TIME')
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local token = time[1] .. string.sub('00000' .. time[2], -6)
  local last = redis.call('SET', KEYS[2], token, 'PX', ARGV[3], 'GET')
  if not last or last < token then
    return token
  end
end
return false";
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
