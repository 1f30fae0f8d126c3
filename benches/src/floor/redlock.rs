//! The floor of Redlock: the commands of one server on all masters in parallel, until a majority has answered; with or
//! without fencing tokens.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use polylock::OwnerId;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, RedisResult, Script, Value};

use super::Floor;
use super::redis::{BareRedis, TOKEN_TTL_MS, expect, tokens_of};
use crate::failure::{Failure, Outcome};
use crate::url;

/// One connection for each master.
///
/// An operation ends when a majority has answered. The other answers are read during later operations: the driver might not
/// send a request whose answer is not awaited, and the key would stay.
#[derive(Debug)]
pub(crate) struct BareRedlock {
    masters: Vec<Master>,
    mint: Option<Mint>,
    operation: u64,
    in_flight: FuturesUnordered<BoxFuture<'static, (u64, RedisResult<Value>)>>,
}

#[derive(Debug)]
struct Master {
    connection: MultiplexedConnection,
    set: Arc<Cmd>,
    delete: Arc<Cmd>,
}

/// The script that acquires a lock with a token.
#[derive(Debug)]
struct Mint {
    script: Script,
    key: String,
    owner: String,
    ttl_ms: u64,
}

impl BareRedlock {
    /// Connects to all masters of this URL.
    pub(crate) async fn connect(url: &str, key: &str, ttl: Duration) -> Outcome<Self> {
        Self::connect_as(OwnerId::random(), url, key, ttl).await
    }

    async fn connect_as(owner: OwnerId, url: &str, key: &str, ttl: Duration) -> Outcome<Self> {
        let mut masters = Vec::new();
        for host in url::hosts(url) {
            let BareRedis { connection, set, delete, .. } =
                BareRedis::connect(url, host, key, owner, ttl).await?;
            masters.push(Master { connection, set: Arc::new(set), delete: Arc::new(delete) });
        }
        Ok(Self { masters, mint: None, operation: 0, in_flight: FuturesUnordered::new() })
    }

    /// With fencing tokens: the local clock, if that is larger than the last token of each master.
    pub(crate) async fn connect_minting(url: &str, key: &str, ttl: Duration) -> Outcome<Self> {
        let owner = OwnerId::random();
        let mut floor = Self::connect_as(owner, url, key, ttl).await?;
        let (script, ttl_ms) = (Script::new(MINT), u64::try_from(ttl.as_millis())?);
        for master in &mut floor.masters {
            script.load_async(&mut master.connection).await?;
        }
        let mint = Mint { script, key: key.to_owned(), owner: owner.to_string(), ttl_ms };
        Ok(Self { mint: Some(mint), ..floor })
    }

    async fn at_majority(&mut self, command: impl Fn(&Master) -> Arc<Cmd>, wanted: &Value) -> Outcome<()> {
        self.operation += 1;
        let operation = self.operation;
        for master in &self.masters {
            let (mut connection, command) = (master.connection.clone(), command(master));
            let answer = async move { (operation, connection.req_packed_command(&command).await) };
            self.in_flight.push(Box::pin(answer));
        }
        let mut missing = self.masters.len() / 2 + 1;
        while missing > 0 {
            let Some((of, answer)) = self.in_flight.next().await else {
                return Err(Failure::new("a majority of the masters did not answer"));
            };
            let answer = answer?;
            if of == operation {
                expect(answer, wanted)?;
                missing -= 1;
            }
        }
        Ok(())
    }
}

impl Mint {
    fn command(&self, token: &str) -> Cmd {
        let Self { script, key, owner, ttl_ms } = self;
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(2).arg(key).arg(tokens_of(key));
        command.arg(owner).arg(ttl_ms).arg(token).arg(TOKEN_TTL_MS);
        command
    }
}

impl Floor for BareRedlock {
    async fn acquire(&mut self) -> Outcome<()> {
        let Some(mint) = &self.mint else {
            return self.at_majority(|master| Arc::clone(&master.set), &Value::Okay).await;
        };
        let token = UNIX_EPOCH.elapsed()?.as_micros().to_string();
        let command = Arc::new(mint.command(&token));
        self.at_majority(|_| Arc::clone(&command), &Value::BulkString(token.into_bytes())).await
    }

    async fn release(&mut self) -> Outcome<()> {
        self.at_majority(|master| Arc::clone(&master.delete), &Value::Int(1)).await
    }

    async fn clean(mut self) -> Outcome<()> {
        while let Some((_, answer)) = self.in_flight.next().await {
            answer?;
        }
        if let Some(mint) = &self.mint {
            let delete = redis::cmd("DEL").arg(tokens_of(&mint.key)).clone();
            for master in &mut self.masters {
                delete.exec_async(&mut master.connection).await?;
            }
        }
        Ok(())
    }
}

/// A real client would do more when the last token is not smaller, which does not happen here.
const MINT: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local last = redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4], 'GET')
  if not last or last < ARGV[3] then
    return ARGV[3]
  end
end
return false";
