//! The floor of Redis: `SET key value NX PX ttl`, and a script that deletes the key if the value is ours; with or without
//! fencing tokens.

use std::time::Duration;

use polylock::OwnerId;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, Value};

use super::Floor;
use crate::data::{Failure, Outcome};

/// A multiplexed connection, with commands that are packed once.
#[derive(Debug)]
pub(crate) struct BareRedis {
    connection: MultiplexedConnection,
    key: String,
    pub(super) set: Cmd,
    pub(super) delete: Cmd,
    mint: Option<Mint>,
}

/// What acquires the lock with a token, in one write.
///
/// `INCR` of a counter of this lock is the cheapest command whose replies grow: `ZADD GT CH` of a proposal takes more than
/// twice the time of the server. It needs no script: nobody else holds the lock between the two commands. The counter is kept
/// for good, as its expiry would take one more command.
#[derive(Debug)]
struct Mint {
    set_and_count: Pipeline,
    last: i64,
}

impl BareRedis {
    /// Uses this connection, which others may share, and loads the script.
    pub(crate) async fn on(
        mut connection: MultiplexedConnection,
        key: &str,
        owner: OwnerId,
        ttl: Duration,
    ) -> Outcome<Self> {
        let hash: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut connection).await?;
        let owner = owner.to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(u64::try_from(ttl.as_millis())?);
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(hash).arg(1).arg(key).arg(&owner);
        Ok(Self { connection, key: key.to_owned(), set, delete, mint: None })
    }

    pub(crate) fn minting(self) -> Self {
        let mut count = redis::cmd("INCR");
        count.arg(tokens_of(&self.key));
        let mut set_and_count = Pipeline::with_capacity(2);
        set_and_count.add_command(self.set.clone()).add_command(count);
        Self { mint: Some(Mint { set_and_count, last: 0 }), ..self }
    }
}

impl Floor for BareRedis {
    async fn acquire(&mut self) -> Outcome<()> {
        let Some(mint) = &mut self.mint else {
            return expect(self.connection.req_packed_command(&self.set).await?, &Value::Okay);
        };
        let answers = self.connection.req_packed_commands(&mint.set_and_count, 0, 2).await?;
        match answers[..] {
            [Value::Okay, Value::Int(token)] if token > mint.last => mint.last = token,
            _ => return Err(Failure::new(format!("the bare commands failed: {answers:?}"))),
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        expect(self.connection.req_packed_command(&self.delete).await?, &Value::Int(1))
    }

    async fn clean(mut self) -> Outcome<()> {
        if self.mint.is_none() {
            return Ok(());
        }
        Ok(redis::cmd("DEL").arg(tokens_of(&self.key)).exec_async(&mut self.connection).await?)
    }
}

/// The key of the last token of a lock.
pub(super) fn tokens_of(key: &str) -> String {
    format!("{key}-token")
}

/// Fails unless the command did its work: otherwise its time is no floor.
pub(in crate::rig::floor) fn expect(answer: Value, wanted: &Value) -> Outcome<()> {
    if answer == *wanted {
        return Ok(());
    }
    Err(Failure::new(format!("the bare commands failed: {answer:?} instead of {wanted:?}")))
}

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[cfg(test)]
mod tests {
    use lock_testkit::RedisServer;

    use super::*;
    use crate::rig::floor::BareConnections;

    #[tokio::test]
    async fn tokens_grow_and_a_held_lock_is_no_floor() {
        let server = RedisServer::start().await.unwrap();
        let ttl = Duration::from_secs(10);
        let connections = BareConnections::open(&server.url(), ttl).await.unwrap();
        let mut floor = connections.minting_floor("unit", ttl).await.unwrap();
        for _ in 0..3 {
            floor.acquire().await.unwrap();
            floor.release().await.unwrap();
        }
        let last = server.command(&["GET", "unit-token"]).await.unwrap();
        assert_eq!(last.text(), Some("3"), "{last:?}");
        floor.acquire().await.unwrap();
        let mut rival = connections.minting_floor("unit", ttl).await.unwrap();
        assert!(rival.acquire().await.is_err());
        floor.release().await.unwrap();
        floor.clean().await.unwrap();
        assert_eq!(server.command(&["DBSIZE"]).await.unwrap().int(), Some(0));
    }
}
