//! `SET key value NX PX ttl`, and a script that deletes the key if the value is ours.

use std::time::Duration;

use lock_redis::with_nodelay;
use polylock::OwnerId;
use polylock::backend::LockUrl;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Client, Cmd, Value};

use super::Floor;
use crate::failure::{Failure, Outcome};

/// One multiplexed connection without Nagle's delay, commands that are packed once, a script that is loaded.
#[derive(Debug)]
pub(crate) struct BareRedis {
    pub(super) connection: MultiplexedConnection,
    pub(super) set: Cmd,
    pub(super) delete: Cmd,
}

impl BareRedis {
    /// Connects to the host of this URL, with the URL's credentials and database, for this owner of the lock.
    ///
    /// # Errors
    ///
    /// When the server does not let us in.
    pub(crate) async fn connect(
        url: &str,
        host: &str,
        key: &str,
        owner: OwnerId,
        ttl: Duration,
    ) -> Outcome<Self> {
        let info = lock_redis::connection_info("redis", &LockUrl::parse(url)?, host)?;
        let client = Client::open(with_nodelay(info))?;
        let mut connection = client.get_multiplexed_async_connection().await?;

        let hash: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut connection).await?;
        let owner = owner.to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(u64::try_from(ttl.as_millis())?);
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(hash).arg(1).arg(key).arg(&owner);
        Ok(Self { connection, set, delete })
    }
}

impl Floor for BareRedis {
    async fn acquire(&mut self) -> Outcome<()> {
        expect(self.connection.req_packed_command(&self.set).await?, &Value::Okay)
    }

    async fn release(&mut self) -> Outcome<()> {
        expect(self.connection.req_packed_command(&self.delete).await?, &Value::Int(1))
    }

    async fn clean(self) -> Outcome<()> {
        Ok(())
    }
}

/// The floor is one only if the commands did what they are there for.
pub(in crate::floor) fn expect(answer: Value, wanted: &Value) -> Outcome<()> {
    if answer == *wanted {
        return Ok(());
    }
    Err(Failure::new(format!("the bare commands failed: {answer:?} instead of {wanted:?}")))
}

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
